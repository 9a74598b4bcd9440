"""Service behind Triton's extensions: statistics, configuration and control of models.

Models can be loaded by name, never by path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from serving import zoo
from serving.api.triton.extensions import ModelConfig, RepositoryIndexEntry, State
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.errors import InvalidRequest, ServingError, UnknownModel
from serving.metrics.statistics import ModelStatistics
from serving.model_spec import ModelSpec
from serving.values import ModelId

log = logging.getLogger(__name__)

_STATES: Mapping[str, State] = {"ready": "READY", "loading": "LOADING"}

_NOTHING_CHANGES = {
    "name", "platform", "backend", "input", "output", "version_policy", "parameters",
}  # fmt: skip
"""Configuration fields accepted without effect."""


class NotAllowed(InvalidRequest):
    """Error for a request that the server's settings do not allow on the inference ports."""

    status = 403


class RepositoryService:
    """Triton's extensions for one engine; not thread-safe."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository | None,
        *,
        specs: Sequence[ModelSpec],
        is_controlled: bool,
        shows_statistics: bool = True,
        keep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Store the arguments.

        `specs` can be loaded in addition to the repository's models; `keep` saves changes.
        """
        self._engine = engine
        self._repository = repository
        self._specs = {spec.name: spec for spec in specs}
        self._is_controlled = is_controlled
        self._shows_statistics = shows_statistics
        self._keep = keep

    def statistics(self, name: str | None, version: str | None) -> Iterable[ModelStatistics]:
        """Return the statistics of one version, of one model or of all models.

        Raises:
            NotAllowed: statistics are off.
            UnknownModel: the model does not exist.
        """
        if not self._shows_statistics:
            raise NotAllowed(
                "statistics are not available here, metrics only on the admin port; set "
                "server.metrics=inference to enable them"
            )
        if name is None:
            return [served.statistics() for served in self._engine.deployments()]
        entry = self._engine.catalogue.entry(name)
        versions = entry.versions if version is None else [entry.resolve_version(version)]
        return [entry.versions[one].statistics() for one in versions]

    def model_config(self, name: str, version: str | None) -> ModelConfig:
        """Return a version and its settings, or raise UnknownModel or NotReady."""
        target = self._engine.resolve(name, version)
        return ModelConfig(target.id, target.signature, self._engine.settings.of(name))

    def index(self) -> Iterator[RepositoryIndexEntry]:
        """Yield an entry for every version that is, or could be, served."""
        states = self._engine.states()
        for (name, version), (state, why) in states.items():
            reason = why or ("no replica is ready" if state == "unavailable" else "")
            yield RepositoryIndexEntry(name, version, _STATES.get(state, "UNAVAILABLE"), reason)
        for id_ in self._loadable():
            if id_ not in states:
                yield RepositoryIndexEntry(*id_, "UNAVAILABLE", "")

    async def load(self, name: str, config: Mapping[str, Any] | None) -> None:
        """Load or reload a model, and return when it is ready.

        `config` is in Triton's JSON form; None leaves the settings unchanged.

        Raises:
            NotAllowed: model control is off.
            InvalidRequest: the configuration is unsupported.
            UnknownModel: the model does not exist.
            ServingError: loading fails; the old state is kept.
        """
        self._check_controlled()
        try:
            async with self._engine.editing:
                await self._configure_and_load(name, config)
        finally:
            await self._save_changes()

    async def _configure_and_load(self, name: str, config: Mapping[str, Any] | None) -> None:
        before = self._engine.settings
        if config is not None:
            values = {f"models.{name}.{knob}": value for knob, value in _settings(config).items()}
            changed = before.with_changes(values, source="parameter config")
            await self._engine.apply(changed, keep_learned=True)
        try:
            await self._load(name)
        except ServingError:
            if config is not None:
                await self._engine.apply(before, keep_learned=True)
            raise

    async def _load(self, name: str) -> None:
        if self._repository is not None and await self._repository.load(name):
            return
        if name in {id_.name for id_ in self._engine.models()}:
            return
        spec = self._specs.get(name)
        if spec is None:
            raise UnknownModel(name, tuple(dict.fromkeys(id_.name for id_ in self._loadable())))
        if spec.path is None and spec in zoo.bundled_specs():  # its weights may have to be built
            spec = await asyncio.to_thread(zoo.find, name)
        await self._engine.deploy(spec)

    def _loadable(self) -> dict[ModelId, None]:
        listed: Iterable[ModelId] = self._repository.list_versions() if self._repository else ()
        return dict.fromkeys([*listed, *(spec.id for spec in self._specs.values())])

    async def unload(self, name: str) -> None:
        """Unload all versions of a model, and return when no request can reach them.

        Raises:
            NotAllowed: model control is off.
            UnknownModel: the model is not served.
        """
        self._check_controlled()
        try:
            if self._repository is not None:
                await self._repository.unload(name)
            else:
                await self._engine.retire_model(name)
        finally:
            await self._save_changes()

    async def _save_changes(self) -> None:
        if self._keep is not None:
            await self._keep()

    def _check_controlled(self) -> None:
        if not self._is_controlled:
            raise NotAllowed(
                "loading and unloading models is not allowed here; start the server with "
                "server.model_control=explicit to allow it"
            )


Answer = Callable[[ServingError | None], None]
"""Callback that receives the error of a load or unload, or None on success."""


class Change:
    """Exchange for a load or unload, which outlives the client's connection."""

    def __init__(self, response: Answer) -> None:
        self._answer: Answer | None = response

    def cancel(self) -> None:
        """Drop the response, because the client disconnected."""
        self._answer = None

    def on_finished(self, task: asyncio.Task[None]) -> None:
        """Send the outcome, unless the client has disconnected."""
        error = ServingError("the server is stopping") if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ServingError):
            log.error("loading hit a server error", exc_info=error)
            error = ServingError("internal error; the server's log has the reason")
        if self._answer is not None:
            self._answer(error)


class Changes:
    """All loads and unloads in progress."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None], response: Answer, *, name: str) -> Change:
        """Start a task; `response` gets its outcome unless the client disconnects."""
        change = Change(response)
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(change.on_finished)
        return change

    async def close(self) -> None:
        """Cancel loads and unloads in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    knobs: dict[str, Any] = {}
    for field, value in config.items():
        match field, value:
            case "max_batch_size", int():
                knobs["batching.max_size"] = max(1, value)  # 0: the model takes no batches
            case "dynamic_batching", {"max_queue_delay_microseconds": delay_us}:
                knobs["batching.timeout_us"] = delay_us
            case "dynamic_batching", {}:
                knobs["batching.timeout_us"] = 0
            case "instance_group", [*groups] if all(map(_is_counted, groups)):
                knobs["replica.count"] = sum(group.get("count", 1) for group in groups)
            case "response_cache", {"enable": False}:
                knobs["cache.capacity_mb"] = 0
            case "response_cache", {"enable": True}:
                pass  # its size is a setting of this server
            case _ if field not in _NOTHING_CHANGES:
                raise InvalidRequest(
                    f"parameter config: {field!r} = {value!r:.80} cannot be set; expected max_batch_size, "
                    f"dynamic_batching.max_queue_delay_microseconds, instance_group or response_cache.enable"
                )
    return knobs


def _is_counted(group: object) -> bool:
    return isinstance(group, dict) and isinstance(group.get("count", 1), int)
