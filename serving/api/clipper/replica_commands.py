"""Commands for replicas, which Clipper's container managers give to Docker instead.

    POST /admin/start_containers   model_name, model_version, container_name, input_type,
                                   num_replicas (1), batch_size (-1)
    POST /admin/set_num_replicas   model_name, model_version, num_replicas
    POST /admin/get_num_replicas   model_name, model_version            -> a number
    POST /admin/stop_containers    models: {name: [version, ...]}

The container name is a bundled model, a model file or `path/to/file.py:function`.
"""

from __future__ import annotations

from serving.api.clipper.fields import JsonFields
from serving.api.clipper.inputs import input_type
from serving.api.clipper.model_commands import NAME_AND_VERSION, Command, checked_batch_size
from serving.api.clipper.service import DEFAULT_BATCH_SIZE, ClipperService
from serving.errors import InvalidRequest
from serving.values import ModelId


async def _start(service: ClipperService, fields: JsonFields) -> str:
    model = _model(fields)
    input_type(fields.string("input_type"))  # only checked: the model's own signature counts
    container = fields.string("container_name")
    replicas = _replicas(fields.integer("num_replicas", 1))
    batch_size = checked_batch_size(fields.integer("batch_size", DEFAULT_BATCH_SIZE))
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


_STOP = '{ "models" := { name := [version] } }'
COMMANDS: dict[str, tuple[Command, str]] = {
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
    "/get_num_replicas": (_count, NAME_AND_VERSION),
    "/stop_containers": (_stop, _STOP),
}
