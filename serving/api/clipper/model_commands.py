"""Clipper's management commands for models, versions and containers, plus four for replicas.

Clipper's container managers use Docker instead of the replica commands, in which a container name
is a bundled model's name, a model file or `path/to/file.py:function`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serving.api.clipper.fields import JsonFields
from serving.api.clipper.inputs import input_type
from serving.api.clipper.service import (
    DEFAULT_BATCH_SIZE,
    ClipperService,
    Container,
    RegisteredModel,
)
from serving.errors import InvalidRequest
from serving.values import ModelId

Command = Callable[[ClipperService, JsonFields], Any]

INPUT_TYPE = '"integers" | "bytes" | "floats" | "doubles" | "strings"'
VERBOSE = '{ "verbose" := bool }'
_NAME_AND_VERSION = '{ "model_name" := string, "model_version" := string }'

_STOP = '{ "models" := { name := [version] } }'

_FORBIDDEN = (",", ":")
"""Separators in Clipper's identifiers, forbidden in names, versions and labels."""


def _checked_batch_size(size: int) -> int:
    if size <= 0 and size != DEFAULT_BATCH_SIZE:
        raise InvalidRequest("The batch size must be positive or DEFAULT_BATCH_SIZE, which is -1")
    return size


def _add_model(service: ClipperService, fields: JsonFields) -> str:
    model = RegisteredModel(
        name=fields.string("model_name"),
        version=fields.string("model_version"),
        labels=tuple(fields.strings("labels")),
        input_type=input_type(fields.string("input_type")),
        container_name=fields.string("container_name"),
        model_data_path=fields.string("model_data_path"),
        batch_size=_checked_batch_size(fields.integer("batch_size")),
    )
    _check_grouped(model.name, "model name")
    _check_grouped(model.version, "model version")
    for label in model.labels:
        _check_grouped(label, "label")
    if service.model(model.name, model.version) is not None:
        raise InvalidRequest(
            f"model with name '{model.name}' and version '{model.version}' already exists"
        )
    _check_links(service, model)
    service.add_model(model)
    return f"Successfully added model with name '{model.name}' and input type '{model.input_type}'"


def _set_model_version(service: ClipperService, fields: JsonFields) -> str:
    name, version = fields.string("model_name"), fields.string("model_version")
    if not any(model.name == name for model in service.models()):
        raise InvalidRequest(f"Cannot set version for nonexistent model '{name}'")
    model = service.model(name, version)
    if model is None:
        raise InvalidRequest(
            f"Cannot set non-existent version '{version}' for model with name '{name}'"
        )
    _check_links(service, model)
    service.set_current_version(name, version)
    return f"Successfully set model with name '{name}' to version '{version}'"


def _delete_versioned_model(service: ClipperService, fields: JsonFields) -> str:
    name, version = fields.string("model_name"), fields.string("model_version")
    model = service.model(name, version)
    what = f"model with name '{name}' and version '{version}'"
    if model is None:
        raise InvalidRequest(f"{what} does not exist")
    if not model.is_valid:
        raise InvalidRequest(f"{what} is already marked as 'invalid'")
    service.delete_model(name, version)
    return f"Successfully deleted {what}"


def _get_all_models(service: ClipperService, fields: JsonFields) -> list[Any]:
    if fields.flag("verbose"):
        return [_shown_model(service, model) for model in service.models()]
    return [f"{model.name}:{model.version}" for model in service.models()]


def _get_model(service: ClipperService, fields: JsonFields) -> dict[str, Any]:
    model = service.model(fields.string("model_name"), fields.string("model_version"))
    return {} if model is None else _shown_model(service, model)


def _shown_model(service: ClipperService, model: RegisteredModel) -> dict[str, Any]:
    return {
        "model_name": model.name,
        "model_version": model.version,
        "input_type": model.input_type,
        "labels": list(model.labels),
        "container_name": model.container_name,
        "model_data_path": model.model_data_path,
        "is_current_version": service.current_versions().get(model.name) == model.version,
    }


def _check_grouped(text: str, what: str) -> None:
    if any(letter in text for letter in _FORBIDDEN):
        listed = ", ".join(f"'{letter}'" for letter in _FORBIDDEN)
        raise InvalidRequest(f"Invalid {what} supplied: {text}. Contains one of: {listed}")


def _check_links(service: ClipperService, model: RegisteredModel) -> None:
    for application in service.applications.all():
        if model.name in application.models and application.input_type != model.input_type:
            raise InvalidRequest(
                f"Model with name '{model.name}' is already linked to app '{application.name}' "
                f"using input type '{application.input_type}'. The input type you provided for a "
                f"new version of the model, '{model.input_type}', is not compatible."
            )


def _get_all_containers(service: ClipperService, fields: JsonFields) -> list[Any]:
    shown = [_shown_container(container) for container in service.containers()]
    if fields.flag("verbose"):
        return shown
    return [f"{one['model_id']}:{one['model_replica_id']}" for one in shown]


def _get_container(service: ClipperService, fields: JsonFields) -> dict[str, Any]:
    name, version = fields.string("model_name"), fields.string("model_version")
    wanted = (name, version, fields.integer("replica_id"))
    for container in service.containers():
        if container[:3] == wanted:
            return _shown_container(container)
    return {}


def _shown_container(container: Container) -> dict[str, Any]:
    return {
        "model_id": f"{container.model_name}:{container.model_version}",
        "model_name": container.model_name,
        "model_version": container.model_version,
        "model_replica_id": container.replica_id,
        "input_type": container.input_type,
    }


# Replicas


async def _start(service: ClipperService, fields: JsonFields) -> str:
    model = _model(fields)
    input_type(fields.string("input_type"))  # only checked: the model's own signature counts
    container = fields.string("container_name")
    replicas = _replicas(fields.integer("num_replicas", 1))
    batch_size = _checked_batch_size(fields.integer("batch_size", DEFAULT_BATCH_SIZE))
    await service.start(model, container=container, replicas=replicas, batch_size=batch_size)
    return f"Successfully started {replicas} replicas of model '{model.name}:{model.version}'"


async def _resize(service: ClipperService, fields: JsonFields) -> str:
    model = _model(fields)
    replicas = _replicas(fields.integer("num_replicas"))
    await service.resize(model, replicas)
    return f"Successfully set model '{model.name}:{model.version}' to {replicas} replicas"


def _count(service: ClipperService, fields: JsonFields) -> int:
    return service.count(_model(fields))


async def _stop(service: ClipperService, fields: JsonFields) -> str:
    named = fields.given.get("models", {})
    if not isinstance(named, dict):
        raise fields.mismatch("models", "Object", named)
    inner = JsonFields(named, _STOP)
    models = [ModelId(name, version) for name in named for version in inner.strings(name)]
    await service.stop(models)
    return f"Successfully stopped {len(models)} versions"


def _model(fields: JsonFields) -> ModelId:
    return ModelId(fields.string("model_name"), fields.string("model_version"))


def _replicas(count: int) -> int:
    if count < 0:
        raise InvalidRequest(f"num_replicas is {count}, expected 0 or more")
    return count


COMMANDS: dict[str, tuple[Command, str]] = {
    "/add_model": (
        _add_model,
        (
            '{ "model_name" := string, "model_version" := string, "labels" := [string], '
            f'"input_type" := {INPUT_TYPE}, "container_name" := string, '
            '"model_data_path" := string, "batch_size" := int }'
        ),
    ),
    "/set_model_version": (_set_model_version, _NAME_AND_VERSION),
    "/delete_versioned_model": (_delete_versioned_model, _NAME_AND_VERSION),
    "/get_all_models": (_get_all_models, VERBOSE),
    "/get_model": (_get_model, _NAME_AND_VERSION),
    "/get_all_containers": (_get_all_containers, VERBOSE),
    "/get_container": (
        _get_container,
        '{ "model_name" := string, "model_version" := string, "replica_id" := int }',
    ),
    "/start_containers": (
        _start,
        (
            '{ "model_name" := string, "model_version" := string, "container_name" := string, '
            '"input_type" := string, "num_replicas" := int (optional), "batch_size" := int (optional) }'
        ),
    ),
    "/set_num_replicas": (
        _resize,
        '{ "model_name" := string, "model_version" := string, "num_replicas" := int }',
    ),
    "/get_num_replicas": (_count, _NAME_AND_VERSION),
    "/stop_containers": (_stop, _STOP),
}
"""Path below `/admin` -> the command and its body's schema."""
