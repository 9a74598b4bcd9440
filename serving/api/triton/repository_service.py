"""Service behind Triton's extensions: statistics, configuration and control of models.

Models can be loaded by name, never by path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from serving import zoo
from serving.api.triton.extensions import ModelConfig, RepositoryIndexEntry, State
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.errors import InvalidRequest, ServingError, UnknownModel
from serving.metrics.statistics import ModelStatistics
from serving.model_spec import ModelSpec
from serving.values import ModelId

_STATES: Mapping[str, State] = {"ready": "READY", "loading": "LOADING"}

_NOTHING_CHANGES = {
    *("name", "platform", "backend", "input", "output", "version_policy", "parameters"),
}
"""Configuration fields accepted without effect."""


class ModelControlDisabled(InvalidRequest):
    """Model control is off on this port."""

    status = 403

    def __init__(self) -> None:
        super().__init__(
            "loading and unloading models is not allowed here; start the server with "
            "server.model_control=explicit to allow it"
        )


class StatisticsDisabled(InvalidRequest):
    """Statistics are off on this port."""

    status = 403

    def __init__(self) -> None:
        super().__init__(
            "statistics are not available here, metrics only on the admin port; set "
            "server.metrics=inference to enable them"
        )


class RepositoryService:
    """Implements `extensions.ModelHub` over one engine."""

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
        """Keep the arguments.

        `specs` are loadable besides the repository's models; `keep` saves changes.
        """
        self._engine = engine
        self._repository = repository
        self._specs = {spec.name: spec for spec in specs}
        self._is_controlled = is_controlled
        self._shows_statistics = shows_statistics
        self._keep = keep

    def statistics(self, name: str | None, version: str | None) -> Iterable[ModelStatistics]:
        """See `ModelHub`.

        Raises:
            StatisticsDisabled: statistics are off.
            UnknownModel: no such model.
        """
        if not self._shows_statistics:
            raise StatisticsDisabled
        if name is None:
            return [served.statistics() for served in self._engine.deployments()]
        entry = self._engine.catalogue.entry(name)
        versions = entry.versions if version is None else [entry.resolve_version(version)]
        return [entry.versions[one].statistics() for one in versions]

    def model_config(self, name: str, version: str | None) -> ModelConfig:
        """See `ModelHub`."""
        target = self._engine.resolve(name, version)
        return ModelConfig(target.id, target.signature, self._engine.settings.of(name))

    def index(self) -> Iterator[RepositoryIndexEntry]:
        """See `ModelHub`."""
        states = self._engine.states()
        for (name, version), (state, why) in states.items():
            reason = why or ("no replica is ready" if state == "unavailable" else "")
            yield RepositoryIndexEntry(name, version, _STATES.get(state, "UNAVAILABLE"), reason)
        could = [] if self._repository is None else list(self._repository.list_versions())
        for id_ in dict.fromkeys([*could, *(spec.id for spec in self._specs.values())]):
            if id_ not in states:
                yield RepositoryIndexEntry(*id_, "UNAVAILABLE", "")

    async def load(self, name: str, config: Mapping[str, Any] | None) -> None:
        """See `ModelHub`.

        Raises:
            ModelControlDisabled: model control is off.
            InvalidRequest: unsupported configuration.
            UnknownModel: no such model.
            ServingError: loading failed; the old state stays.
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
        served = {id_.name for id_ in self._engine.models()}
        if name in served:
            return
        if name not in self._specs:
            raise UnknownModel(name, tuple(self._could_be_loaded()))
        spec = self._specs[name]
        if spec.path is None and spec in zoo.bundled_specs():  # its weights may have to be built
            spec = await asyncio.to_thread(zoo.find, name)
        await self._engine.deploy(spec)

    def _could_be_loaded(self) -> dict[str, None]:
        listed: Iterable[ModelId] = self._repository.list_versions() if self._repository else ()
        return dict.fromkeys([*(id_.name for id_ in listed), *self._specs])

    async def unload(self, name: str) -> None:
        """See `ModelHub`.

        Raises:
            ModelControlDisabled: model control is off.
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
            raise ModelControlDisabled


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for a Triton configuration.

    Raises:
        InvalidRequest: a field is unsupported.
    """
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
