"""Service behind Clipper's protocols: registered models, and the replicas that run them.

Clipper registers a version separately from its containers, so a registered current version becomes
the engine's current version once it runs. Call only from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from serving import zoo
from serving.api.clipper.inputs import input_types
from serving.engine import facts
from serving.engine.applications import Applications
from serving.engine.engine import Engine
from serving.errors import InvalidRequest, ModelLoadFailed, ServingError, UnknownModel
from serving.settings import ServingSettings
from serving.values import ModelId

DEFAULT_BATCH_SIZE = -1
"""Stands for a batch size that adapts while serving."""
_COMMANDED = ("replica.count", "batching.policy", "batching.max_size")


class RegisteredModel(NamedTuple):
    """One registered version of a model."""

    name: str
    version: str
    input_type: str
    labels: tuple[str, ...] = ()
    container_name: str = ""
    model_data_path: str = ""
    batch_size: int = DEFAULT_BATCH_SIZE
    is_valid: bool = True
    """False once the version is deleted; deleted versions stay listed."""


class Container(NamedTuple):
    """One replica of a version."""

    model_name: str
    model_version: str
    replica_id: int
    input_type: str


class ClipperService:
    """Registered models on an engine that shares `applications` with the gateway."""

    def __init__(
        self, engine: Engine, applications: Applications, given: ServingSettings | None = None
    ) -> None:
        """Start without registered models; stopped models return to the settings `given`."""
        self.applications = applications
        self._engine = engine
        self._given = given or engine.settings
        self._models: dict[ModelId, RegisteredModel] = {}
        self._current: dict[str, str] = {}

    def restore(self, models: Sequence[RegisteredModel], current: Mapping[str, str]) -> None:
        """Restore registered and current versions; the engine restores deployments."""
        self._models = {ModelId(model.name, model.version): model for model in models}
        self._current = dict(current)

    def current_versions(self) -> Mapping[str, str]:
        """Return the current version of every registered model."""
        return self._current

    # Models

    def model_versions(self, model: str) -> Sequence[str]:
        """Return the registered and served versions of a model."""
        registered = [id_.version for id_ in self._models if id_.name == model]
        return tuple(dict.fromkeys([*registered, *self.applications.model_versions(model)]))

    def model(self, name: str, version: str) -> RegisteredModel | None:
        """Return a registered version, or None."""
        return self._models.get(ModelId(name, version))

    def models(self) -> Sequence[RegisteredModel]:
        """Return all registered versions, deleted ones included."""
        return tuple(self._models.values())

    def served_input_types(self, name: str) -> Sequence[str] | None:
        """Return a model's input types, or None if it is not served."""
        try:
            entry = self._engine.catalogue.entry(name)
        except UnknownModel:
            return None
        return input_types(entry.versions[entry.current].signature)

    def add_model(self, model: RegisteredModel) -> None:
        """Register a version and make it current."""
        self._models[ModelId(model.name, model.version)] = model
        self.set_current_version(model.name, model.version)

    def set_current_version(self, name: str, version: str) -> None:
        """Set the current version; the engine follows once that version runs."""
        self._current[name] = version
        if self._runs(ModelId(name, version)):
            self._engine.catalogue.set_current(name, version)

    def delete_model(self, name: str, version: str) -> None:
        """Mark a version as invalid."""
        id_ = ModelId(name, version)
        self._models[id_] = self._models[id_]._replace(is_valid=False)

    # Replicas

    def containers(self) -> Sequence[Container]:
        """Return the ready replicas of registered versions."""
        found: list[Container] = []
        seen: dict[ModelId, int] = {}
        for replica in facts.replicas(self._engine)["replicas"]:
            if "model" not in replica:  # shared by many models
                continue
            id_ = ModelId(replica["model"], replica["version"])
            model = self._models.get(id_)
            if model is not None and replica["state"] == "ready":
                number = seen[id_] = seen.get(id_, -1) + 1
                found.append(Container(id_.name, id_.version, number, model.input_type))
        return found

    async def start(
        self, model: ModelId, *, container: str, replicas: int, batch_size: int
    ) -> None:
        """Load a version and wait for its replicas; an earlier version keeps serving.

        Raises:
            ServingError: the version is already running, or cannot be loaded.
        """
        async with self._engine.editing:
            if self._runs(model):
                raise InvalidRequest(f"model {model.name}:{model.version} is already running")
            try:
                # A slow disk must not block requests.
                spec = await asyncio.to_thread(zoo.find, container, name=model.name)
            except UnknownModel as error:
                raise ModelLoadFailed(container, str(error)) from error
            if not replicas:
                return
            await self._settings_of(model.name, replicas, batch_size)
            try:
                await self._engine.deploy(
                    dataclasses.replace(spec, version=model.version), current=False
                )
            except ServingError:
                await self._take_back_settings([model.name])
                raise
            if self._current.get(model.name, model.version) == model.version:
                self._engine.catalogue.set_current(model.name, model.version)

    async def resize(self, model: ModelId, replicas: int) -> None:
        """Set the number of replicas, and wait until they are ready; 0 stops them all.

        Raises:
            UnknownModel: the version is not running.
            ServingError: the replicas cannot start; the old ones stay.
        """
        async with self._engine.editing:
            if not self._runs(model):
                running = self.applications.model_versions(model.name)
                raise UnknownModel(model.name, running, model.version)
            if replicas:
                await self._settings_of(model.name, replicas, None)
                return
        await self.stop([model])

    async def stop(self, models: Sequence[ModelId]) -> None:
        """Drain and stop versions; ignore unknown versions."""
        endings = []
        async with self._engine.editing:
            for model in models:
                if not self._runs(model):
                    continue
                entry = self._engine.catalogue.entry(model.name)
                others = [version for version in entry.versions if version != model.version]
                if others and entry.current == model.version:
                    self._engine.catalogue.set_current(model.name, others[-1])
                endings.append(await self._engine.withdraw(model.name, model.version))
            await self._take_back_settings(dict.fromkeys(model.name for model in models))
        # Drain outside the lock.
        await asyncio.gather(*(asyncio.shield(ending) for ending in endings if ending is not None))

    def count(self, model: ModelId) -> int:
        """Return the number of ready replicas."""
        return sum(
            served.placement.ready_count
            for served in self._engine.deployments()
            if served.id == model
        )

    def _runs(self, model: ModelId) -> bool:
        return model in self._engine.models()

    async def _settings_of(self, name: str, replicas: int, batch_size: int | None) -> None:
        values: dict[str, Any] = {f"models.{name}.replica.count": replicas}
        if batch_size == DEFAULT_BATCH_SIZE:
            values[f"models.{name}.batching.policy"] = "aimd"
        elif batch_size is not None:
            values[f"models.{name}.batching.policy"] = "fixed"
            values[f"models.{name}.batching.max_size"] = batch_size
        settings = self._engine.settings.with_changes(values, source="the command")
        await self._engine.apply(settings, keep_learned=True)

    async def _take_back_settings(self, names: Iterable[str]) -> None:
        running = {id_.name for id_ in self._engine.models()}
        settings = self._engine.settings
        for name in names:
            if name not in running:
                settings = settings.with_overrides_of(name, self._given, _COMMANDED)
        if settings != self._engine.settings:
            await self._engine.apply(settings, keep_learned=True)
