"""Clipper's view of one gateway: applications, registered models, and the replicas that run them.

Clipper registers a model's version apart from its containers; here a registered version is a record, and
its replicas are a version that the engine serves. The current version of the record is the engine's
current one as soon as it runs; until then the version before it answers.

In: the commands of `protocol.clipper_management` and `protocol.clipper_containers`, the queries of
`protocol.clipper_routes`. Out: changes of the engine and of the applications. All methods belong to the event
loop's thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serving import zoo
from serving.applications import Applications, Asker, Feedback, Question
from serving.engine import RETIRE_S, Engine
from serving.errors import InvalidRequest, ModelLoadFailed, ServingError, UnknownModel
from serving.protocol.clipper_catalogue import DEFAULT_BATCH_SIZE, Container, Model
from serving.protocol.clipper_inputs import input_types
from serving.selection.application import Application
from serving.settings import ServingSettings
from serving.values import ModelId
from serving.waiter import Ticket

log = logging.getLogger(__name__)

_COMMANDED = ("replica.count", "batching.policy", "batching.max_size")
"""Settings that commands give a model."""


class ClipperHub:
    """Implements `Catalogue`, `Containers` and `Applications` of Clipper's protocols."""

    def __init__(
        self, engine: Engine, applications: Applications, given: ServingSettings | None = None
    ) -> None:
        """Nothing is registered yet.

        Args:
            engine: runs the models.
            applications: ask them.
            given: settings as the server's start gave them, which models have again that are stopped;
                None: those that are in force now.
        """
        self._engine = engine
        self._applications = applications
        self._given = given or engine.settings
        self._models: dict[ModelId, Model] = {}
        self._current: dict[str, str] = {}

    def restore(self, models: Sequence[Model], current: Mapping[str, str]) -> None:
        """Registered versions and the current ones as they were; what they run on is the engine's affair."""
        self._models = {ModelId(model.name, model.version): model for model in models}
        self._current = dict(current)

    def current_versions(self) -> Mapping[str, str]:
        """The current version of every registered model."""
        return self._current

    # Queries

    def application(self, name: str) -> Application | None:
        """The application of a name."""
        return self._applications.application(name)

    def model_versions(self, model: str) -> Sequence[str]:
        """The versions of a model that are registered or served."""
        registered = [id_.version for id_ in self._models if id_.name == model]
        return tuple(dict.fromkeys([*registered, *self._applications.model_versions(model)]))

    def ask(
        self, application: str, question: Question, asker: Asker, *, version: str | None, user: str
    ) -> Ticket:
        """Take a query; see `Applications.ask`."""
        return self._applications.ask(application, question, asker, version=version, user=user)

    def feedback(self, application: str, update: Feedback) -> bool:
        """Whether feedback was taken; see `Applications.feedback`."""
        return self._applications.feedback(application, update)

    # Applications

    def applications(self) -> Sequence[Application]:
        """All of them."""
        return self._applications.all()

    def add_application(
        self,
        name: str,
        *,
        input_type: str,
        default_output: str,
        latency_slo_s: float,
        selection: Mapping[str, Any],
    ) -> None:
        """A new one without links.

        Raises:
            InvalidSettings: what is said of the selection is wrong.
        """
        given = {
            "name": name,
            "input_type": input_type,
            "default_output": default_output,
            "latency_slo_s": latency_slo_s,
            **selection,
        }
        self._applications.add(Application.from_json(given))

    def delete_application(self, name: str) -> None:
        """Its queries are not answered any more."""
        self._applications.delete(name)

    def link(self, application: str, models: Sequence[str]) -> None:
        """Queries go to these models, too."""
        self._applications.link(application, models)

    def unlink(self, application: str, models: Sequence[str]) -> None:
        """Queries go to these models no more."""
        self._applications.unlink(application, models)

    def selection_state(self, application: str, user: str) -> str:
        """What an application's policy has learnt, as JSON."""
        return json.dumps(self._applications.state(application, user))

    # Models

    def models(self) -> Sequence[Model]:
        """All registered versions of all models, deleted ones among them."""
        return tuple(self._models.values())

    def current_version(self, name: str) -> str | None:
        """The version of a registered model that answers queries without one; None: no such model."""
        return self._current.get(name)

    def served_input_types(self, name: str) -> Sequence[str] | None:
        """Input types that a model takes which is served, registered or not; None: it is not served."""
        try:
            entry = self._engine.entry(name)
        except UnknownModel:
            return None
        return input_types(entry.versions[entry.current].signature)

    def add_model(self, model: Model) -> None:
        """A new version, which becomes the current one."""
        self._models[ModelId(model.name, model.version)] = model
        self.set_current_version(model.name, model.version)

    def set_current_version(self, name: str, version: str) -> None:
        """Another version answers from now on, or as soon as it runs."""
        self._current[name] = version
        if self._runs(ModelId(name, version)):
            self._engine.set_version(name, version)

    def delete_model(self, name: str, version: str) -> None:
        """Mark a version as invalid."""
        id_ = ModelId(name, version)
        self._models[id_] = self._models[id_]._replace(is_valid=False)

    # Replicas

    def containers(self) -> Sequence[Container]:
        """The replicas that run, of registered versions."""
        found: list[Container] = []
        seen: dict[ModelId, int] = {}
        for replica in self._engine.replicas()["replicas"]:
            if "model" not in replica:  # many models share it
                continue
            id_ = ModelId(replica["model"], replica["version"])
            model = self._models.get(id_)
            if model is not None and replica["state"] == "ready":
                number = seen[id_] = seen.get(id_, -1) + 1
                found.append(Container(id_.name, id_.version, number, model.input_type))
        return found

    async def start(
        self,
        model: ModelId,
        *,
        container: str,
        input_type: str,  # noqa: ARG002 - a model's own signature says what it takes
        replicas: int,
        batch_size: int,
    ) -> None:
        """Load a version; see `Containers.start`.

        Raises:
            ServingError: it runs already, or cannot be loaded; an earlier version goes on serving.
        """
        async with self._engine.editing:
            await self._start(model, container, replicas, batch_size)

    async def _start(self, model: ModelId, container: str, replicas: int, batch_size: int) -> None:
        if self._runs(model):
            raise InvalidRequest(f"model {model.name}:{model.version} runs already")
        try:
            # A slow disk holds up no request.
            card = await asyncio.to_thread(zoo.find, container, name=model.name)
        except UnknownModel as error:
            raise ModelLoadFailed(container, str(error)) from error
        if not replicas:
            return
        await self._settings_of(model.name, replicas, batch_size)
        try:
            await self._engine.deploy(
                dataclasses.replace(card, version=model.version), current=False
            )
        except ServingError:
            await self._take_back_settings([model.name])
            raise
        if self._current.get(model.name, model.version) == model.version:
            self._engine.set_version(model.name, model.version)

    async def resize(self, model: ModelId, replicas: int) -> None:
        """Return when so many replicas are ready; 0 stops them all.

        Raises:
            UnknownModel: the version does not run.
            ServingError: so many cannot be had; the old ones go on.
        """
        async with self._engine.editing:
            if not self._runs(model):
                running = self._applications.model_versions(model.name)
                raise UnknownModel(model.name, running, model.version)
            if replicas:
                await self._settings_of(model.name, replicas, None)
                return
        await self.stop([model])

    async def stop(self, models: Sequence[ModelId]) -> None:
        """End the replicas of these versions, after what they hold; unknown ones are none."""
        endings = []
        async with self._engine.editing:
            for model in models:
                if not self._runs(model):
                    continue
                entry = self._engine.entry(model.name)
                others = [version for version in entry.versions if version != model.version]
                if others and entry.current == model.version:
                    self._engine.set_version(model.name, others[-1])
                endings.append(
                    await self._engine.withdraw(model.name, model.version, within_s=RETIRE_S)
                )
            await self._take_back_settings(dict.fromkeys(model.name for model in models))
        # What they hold is answered while others change what they like.
        await asyncio.gather(*(asyncio.shield(ending) for ending in endings if ending is not None))

    def count(self, model: ModelId) -> int:
        """Replicas that are ready; 0 for an unknown version."""
        return sum(
            served.place.ready_count for served in self._engine.served() if served.id == model
        )

    def _runs(self, model: ModelId) -> bool:
        return model in self._engine.models()

    async def _settings_of(self, name: str, replicas: int, batch_size: int | None) -> None:
        """Settings of one model: its replicas, and its batch size where one is said."""
        values: dict[str, Any] = {f"models.{name}.replica.count": replicas}
        if batch_size == DEFAULT_BATCH_SIZE:
            values[f"models.{name}.batching.policy"] = "aimd"
        elif batch_size is not None:
            values[f"models.{name}.batching.policy"] = "fixed"
            values[f"models.{name}.batching.max_size"] = batch_size
        settings = self._engine.settings.changed(values, source="the command")
        await self._engine.apply(settings, keep_learnt=True)

    async def _take_back_settings(self, names: Iterable[str]) -> None:
        """Models of which no version runs any more have of the settings of commands what the start gave."""
        running = {id_.name for id_ in self._engine.models()}
        settings = self._engine.settings
        for name in names:
            if name not in running:
                settings = settings.taken_back(name, self._given, _COMMANDED)
        if settings != self._engine.settings:
            await self._engine.apply(settings, keep_learnt=True)
