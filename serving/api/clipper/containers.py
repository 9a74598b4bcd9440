"""Commands for replicas, which Clipper's container managers give to Docker instead.

    POST /admin/start_containers   model_name, model_version, container_name, input_type,
                                   num_replicas (1), batch_size (-1)
    POST /admin/set_num_replicas   model_name, model_version, num_replicas
    POST /admin/get_num_replicas   model_name, model_version            -> a number
    POST /admin/stop_containers    models: {name: [version, ...]}

The container name is a bundled model, a model file or `path/to/file.py:function`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from serving.api.clipper import requests
from serving.api.clipper.catalogue import DEFAULT_BATCH_SIZE
from serving.api.clipper.fields import CommandError, CommandFields, CommandResponse, refusal, reply
from serving.api.clipper.inputs import input_type
from serving.api.clipper.management import BASE
from serving.errors import ServingError
from serving.values import ModelId


class Containers(Protocol):
    """Replica operations; each may raise ServingError."""

    async def start(
        self, model: ModelId, *, container: str, input_type: str, replicas: int, batch_size: int
    ) -> None:
        """Load a version, not yet current, and wait for its replicas.

        An earlier version keeps serving.
        """
        ...

    async def resize(self, model: ModelId, replicas: int) -> None:
        """Scale a model to this many replicas and wait until they are ready; 0 stops all."""
        ...

    async def stop(self, models: Sequence[ModelId]) -> None:
        """Stop versions after their in-flight requests; ignore unknown ones."""
        ...

    def count(self, model: ModelId) -> int:
        """Return ready replicas; 0 for an unknown version."""
        ...


async def operate(containers: Containers, path: str, body: bytes) -> CommandResponse | None:
    """Execute a command; None if unknown."""
    known = _COMMANDS.get(path.removeprefix(BASE)) if path.startswith(f"{BASE}/") else None
    if known is None:
        return None
    command, schema = known
    try:
        outcome = await command(containers, CommandFields(requests.document(body, schema), schema))
    except ServingError as error:
        return refusal(error)
    return reply(outcome)


async def _start(containers: Containers, fields: CommandFields) -> str:
    model = _model(fields)
    kind = input_type(fields.string("input_type"))
    container = fields.string("container_name")
    replicas = _replicas(fields.optional_integer("num_replicas", 1))
    batch_size = fields.optional_integer("batch_size", DEFAULT_BATCH_SIZE)
    if batch_size <= 0 and batch_size != DEFAULT_BATCH_SIZE:
        raise CommandError("The batch size must be positive or DEFAULT_BATCH_SIZE, which is -1")
    await containers.start(
        model, container=container, input_type=kind, replicas=replicas, batch_size=batch_size
    )
    return f"Successfully started {replicas} replicas of model '{model.name}:{model.version}'"


async def _resize(containers: Containers, fields: CommandFields) -> str:
    model = _model(fields)
    replicas = _replicas(fields.integer("num_replicas"))
    await containers.resize(model, replicas)
    return f"Successfully set model '{model.name}:{model.version}' to {replicas} replicas"


async def _count(containers: Containers, fields: CommandFields) -> int:
    return containers.count(_model(fields))


async def _stop(containers: Containers, fields: CommandFields) -> str:
    named = fields.optional_object("models")
    inner = CommandFields(named, _STOP)
    models = [ModelId(name, version) for name in named for version in inner.strings(name)]
    await containers.stop(models)
    return f"Successfully stopped {len(models)} versions"


def _model(fields: CommandFields) -> ModelId:
    return ModelId(fields.string("model_name"), fields.string("model_version"))


def _replicas(count: int) -> int:
    if count < 0:
        raise CommandError(f"num_replicas is {count}, expected 0 or more")
    return count


_NAME_AND_VERSION = '{ "model_name" := string, "model_version" := string }'
_STOP = '{ "models" := { name := [version] } }'
_COMMANDS: dict[str, tuple[Callable[[Containers, CommandFields], Awaitable[Any]], str]] = {
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

PATHS = tuple(f"{BASE}{path}" for path in _COMMANDS)
