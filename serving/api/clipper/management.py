"""Clipper's management protocol: commands for applications, links, models and versions.

Success is 200; errors are 400 with Clipper's messages, which clients match on. This module
validates, the `Catalogue` executes. Pure. Source: Clipper's management frontend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from serving.api.clipper import requests
from serving.api.clipper.catalogue import (
    DEFAULT_BATCH_SIZE,
    SINGLE_MODEL_POLICY,
    Catalogue,
    Container,
    RegisteredModel,
)
from serving.api.clipper.fields import CommandError, CommandFields, CommandResponse, refusal, reply
from serving.api.clipper.inputs import input_type
from serving.errors import ServingError
from serving.selection.application import Application

BASE = "/admin"
PING = f"{BASE}/ping"
PONG = "PONG"
RESERVED_NAMES = frozenset({"v1", "v2", "monitoring", "admin"})
"""First path segments of other protocols, in any case: not allowed as application names."""

SELECTION = (
    "policy", "options", "costs", "task", "contexts", "most_users", "confidence_threshold", "suspicious_threshold",
)  # fmt: skip
"""Members of an application unknown to Clipper: how models are chosen and combined."""

_FORBIDDEN = (",", ":")
"""Separators in Clipper's identifiers, forbidden in names, versions and labels."""


def dispatch(catalogue: Catalogue, path: str, body: bytes) -> CommandResponse | None:
    """Execute a command; return None if unknown."""
    if path == PING:
        return CommandResponse(200, PONG, False)
    known = _COMMANDS.get(path.removeprefix(BASE)) if path.startswith(f"{BASE}/") else None
    if known is None:
        return None
    command, schema = known
    try:
        outcome = command(catalogue, CommandFields(requests.document(body, schema), schema))
    except ServingError as error:
        return refusal(error)
    return reply(outcome)


# Applications


def _add_app(catalogue: Catalogue, fields: CommandFields) -> str:
    name = fields.string("name")
    kind = input_type(fields.string("input_type"))
    default_output = fields.string("default_output")
    latency_slo_micros = fields.integer("latency_slo_micros")
    fields.only("name", "input_type", "default_output", "latency_slo_micros", *SELECTION)
    if _application(catalogue, name) is not None:
        raise CommandError(f"application '{name}' already exists")
    if not name or "/" in name or name.lower() in RESERVED_NAMES:
        raise CommandError(
            f"Invalid application name supplied: {name!r}. It is a part of paths: neither empty, "
            f"nor with a slash, nor one of {', '.join(sorted(RESERVED_NAMES))}"
        )
    if latency_slo_micros <= 0:
        raise CommandError(
            f"latency_slo_micros is {latency_slo_micros}, expected microseconds above 0"
        )
    catalogue.add_application(
        name,
        input_type=kind,
        default_output=default_output,
        latency_slo_s=latency_slo_micros * 1e-6,
        selection=fields.present(*SELECTION),
    )
    return f"Successfully added application with name '{name}'"


def _delete_app(catalogue: Catalogue, fields: CommandFields) -> str:
    name = fields.string("name")
    if _application(catalogue, name) is None:
        raise CommandError(f"Application '{name}' does not exist")
    catalogue.delete_application(name)
    return f"Successfully deleted application with name '{name}'"


def _get_all_applications(catalogue: Catalogue, fields: CommandFields) -> list[Any]:
    if fields.flag("verbose"):
        return [_shown_application(application) for application in catalogue.applications()]
    return [application.name for application in catalogue.applications()]


def _get_application(catalogue: Catalogue, fields: CommandFields) -> dict[str, Any]:
    application = _application(catalogue, fields.string("name"))
    return {} if application is None else _shown_application(application)


def _shown_application(application: Application) -> dict[str, Any]:
    return {
        "input_type": application.input_type,
        "default_output": application.default_output,
        "latency_slo_micros": round(application.latency_slo_s * 1e6),
        "name": application.name,
        "linked_models": list(application.models),
    }


# Links


def _add_model_links(catalogue: Catalogue, fields: CommandFields) -> str:
    name, models = fields.string("app_name"), fields.strings("model_names")
    application = _application(catalogue, name)
    if application is None:
        raise CommandError(f"No app with name '{name}' exists.")
    for model in models:
        taken = _input_types(catalogue, model)
        if taken is None:
            raise CommandError(f"No model with name '{model}' exists.")
        if application.input_type not in taken:
            raise CommandError(
                f"Model with name '{model}' has incompatible input_type "
                f"'{' or '.join(taken) or 'none: it does not take one input of one item'}'. "
                f"Requested app to link to has input_type '{application.input_type}'."
            )
    if not models:
        raise CommandError(
            "Please provide the name of the model that you want to link to the application "
            f"'{name}'"
        )
    only_one = application.policy == SINGLE_MODEL_POLICY
    if only_one and len(models) > 1:
        raise CommandError(
            "Applications must be linked with at most one model. "
            f"Attempted to add links to {len(models)} models."
        )
    for place, model in enumerate(models):
        if model in application.models or model in models[:place]:
            raise CommandError(f"The model with name '{model}' is already linked to '{name}'")
    if only_one and application.models:
        raise CommandError(
            f"A model with name {application.models[0]} is already linked to '{name}'."
        )
    catalogue.link(name, models)
    if only_one:
        return f"Successfully linked model with name '{models[0]}' to application '{name}'"
    quoted = ", ".join(f"'{model}'" for model in models)
    return f"Successfully linked models with names {quoted} to application '{name}'"


def _input_types(catalogue: Catalogue, model: str) -> Sequence[str] | None:
    """Return a model's registered input type, else those its signature fits; None: no such model.

    Unlike in Clipper, models are also served unregistered.
    """
    version = catalogue.current_version(model)
    found = None if version is None else _model(catalogue, model, version)
    return catalogue.served_input_types(model) if found is None else (found.input_type,)


def _delete_model_links(catalogue: Catalogue, fields: CommandFields) -> str:
    name, models = fields.string("app_name"), fields.strings("model_names")
    application = _application(catalogue, name)
    if application is None:
        raise CommandError(f"No app with name {name} exists.")
    for model in models:
        if model not in application.models:
            raise CommandError(
                f"Cannot remove nonexistent link between app {name} and model {model}"
            )
    catalogue.unlink(name, list(dict.fromkeys(models)))
    return "Success!"


def _get_linked_models(catalogue: Catalogue, fields: CommandFields) -> list[str]:
    name = fields.string("app_name")
    application = _application(catalogue, name)
    if application is None:
        raise CommandError(f"No application with name '{name}' exists.")
    return list(application.models)


# Models


def _add_model(catalogue: Catalogue, fields: CommandFields) -> str:
    model = RegisteredModel(
        name=fields.string("model_name"),
        version=fields.string("model_version"),
        labels=tuple(fields.strings("labels")),
        input_type=input_type(fields.string("input_type")),
        container_name=fields.string("container_name"),
        model_data_path=fields.string("model_data_path"),
        batch_size=fields.integer("batch_size"),
    )
    if model.batch_size <= 0 and model.batch_size != DEFAULT_BATCH_SIZE:
        raise CommandError("The batch size must be positive or DEFAULT_BATCH_SIZE, which is -1")
    _check_grouped(model.name, "model name")
    _check_grouped(model.version, "model version")
    for label in model.labels:
        _check_grouped(label, "label")
    if _model(catalogue, model.name, model.version) is not None:
        raise CommandError(
            f"model with name '{model.name}' and version '{model.version}' already exists"
        )
    _check_links(catalogue, model)
    catalogue.add_model(model)
    return f"Successfully added model with name '{model.name}' and input type '{model.input_type}'"


def _set_model_version(catalogue: Catalogue, fields: CommandFields) -> str:
    name, version = fields.string("model_name"), fields.string("model_version")
    if not any(model.name == name for model in catalogue.models()):
        raise CommandError(f"Cannot set version for nonexistent model '{name}'")
    model = _model(catalogue, name, version)
    if model is None:
        raise CommandError(
            f"Cannot set non-existent version '{version}' for model with name '{name}'"
        )
    _check_links(catalogue, model)
    catalogue.set_current_version(name, version)
    return f"Successfully set model with name '{name}' to version '{version}'"


def _delete_versioned_model(catalogue: Catalogue, fields: CommandFields) -> str:
    name, version = fields.string("model_name"), fields.string("model_version")
    model = _model(catalogue, name, version)
    what = f"model with name '{name}' and version '{version}'"
    if model is None:
        raise CommandError(f"{what} does not exist")
    if not model.is_valid:
        raise CommandError(f"{what} is already marked as 'invalid'")
    catalogue.delete_model(name, version)
    return f"Successfully deleted {what}"


def _get_all_models(catalogue: Catalogue, fields: CommandFields) -> list[Any]:
    if fields.flag("verbose"):
        return [_shown_model(catalogue, model) for model in catalogue.models()]
    return [f"{model.name}:{model.version}" for model in catalogue.models()]


def _get_model(catalogue: Catalogue, fields: CommandFields) -> dict[str, Any]:
    model = _model(catalogue, fields.string("model_name"), fields.string("model_version"))
    return {} if model is None else _shown_model(catalogue, model)


def _shown_model(catalogue: Catalogue, model: RegisteredModel) -> dict[str, Any]:
    return {
        "model_name": model.name,
        "model_version": model.version,
        "input_type": model.input_type,
        "labels": list(model.labels),
        "container_name": model.container_name,
        "model_data_path": model.model_data_path,
        "is_current_version": catalogue.current_version(model.name) == model.version,
    }


def _check_grouped(text: str, what: str) -> None:
    if any(letter in text for letter in _FORBIDDEN):
        listed = ", ".join(f"'{letter}'" for letter in _FORBIDDEN)
        raise CommandError(f"Invalid {what} supplied: {text}. Contains one of: {listed}")


def _check_links(catalogue: Catalogue, model: RegisteredModel) -> None:
    """Check that a version takes the inputs of the linked applications."""
    for application in catalogue.applications():
        if model.name in application.models and application.input_type != model.input_type:
            raise CommandError(
                f"Model with name '{model.name}' is already linked to app '{application.name}' "
                f"using input type '{application.input_type}'. The input type you provided for a "
                f"new version of the model, '{model.input_type}', is not compatible."
            )


# Containers and state


def _get_all_containers(catalogue: Catalogue, fields: CommandFields) -> list[Any]:
    if fields.flag("verbose"):
        return [_shown_container(container) for container in catalogue.containers()]
    return [
        f"{container.model_name}:{container.model_version}:{container.replica_id}"
        for container in catalogue.containers()
    ]


def _get_container(catalogue: Catalogue, fields: CommandFields) -> dict[str, Any]:
    wanted = (
        fields.string("model_name"),
        fields.string("model_version"),
        fields.integer("replica_id"),
    )
    for container in catalogue.containers():
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


def _get_state(catalogue: Catalogue, fields: CommandFields) -> str:
    name, user = fields.string("app_name"), fields.user("uid")
    if _application(catalogue, name) is None:
        raise CommandError(f"No application with name '{name}' exists.")
    return catalogue.selection_state(name, user)


# Look-ups


def _application(catalogue: Catalogue, name: str) -> Application | None:
    return next((found for found in catalogue.applications() if found.name == name), None)


def _model(catalogue: Catalogue, name: str, version: str) -> RegisteredModel | None:
    wanted = (name, version)
    return next((found for found in catalogue.models() if found[:2] == wanted), None)


_Command = Callable[[Catalogue, CommandFields], Any]

_INPUT_TYPE = '"integers" | "bytes" | "floats" | "doubles" | "strings"'
_NAME_AND_VERSION = '{ "model_name" := string, "model_version" := string }'
_VERBOSE = '{ "verbose" := bool }'
_LINKS = '{ "app_name" := string, "model_names" := [string] }'

_COMMANDS: dict[str, tuple[_Command, str]] = {
    "/add_app": (
        _add_app,
        (
            f'{{ "name" := string, "input_type" := {_INPUT_TYPE}, "default_output" := string, '
            '"latency_slo_micros" := int, and optional: "policy" := string, "options" := {}, "costs" := {}, '
            '"task" := {}, "contexts" := "shared" | "user", "most_users" := int, "confidence_threshold" := float, '
            '"suspicious_threshold" := float }'
        ),
    ),
    "/delete_app": (_delete_app, '{ "name" := string }'),
    "/add_model_links": (_add_model_links, _LINKS),
    "/delete_model_links": (_delete_model_links, _LINKS),
    "/get_linked_models": (_get_linked_models, '{ "app_name" := string }'),
    "/add_model": (
        _add_model,
        (
            '{ "model_name" := string, "model_version" := string, "labels" := [string], '
            f'"input_type" := {_INPUT_TYPE}, "container_name" := string, '
            '"model_data_path" := string, "batch_size" := int }'
        ),
    ),
    "/set_model_version": (_set_model_version, _NAME_AND_VERSION),
    "/delete_versioned_model": (_delete_versioned_model, _NAME_AND_VERSION),
    "/get_all_applications": (_get_all_applications, _VERBOSE),
    "/get_application": (_get_application, '{ "name" := string }'),
    "/get_all_models": (_get_all_models, _VERBOSE),
    "/get_model": (_get_model, _NAME_AND_VERSION),
    "/get_all_containers": (_get_all_containers, _VERBOSE),
    "/get_container": (
        _get_container,
        '{ "model_name" := string, "model_version" := string, "replica_id" := int }',
    ),
    "/get_state": (_get_state, '{ "app_name" := string, "uid" := int }'),
}
"""Path below `BASE` -> the command and its body's schema."""

PATHS = tuple(f"{BASE}{path}" for path in _COMMANDS)
"""All POST paths."""
