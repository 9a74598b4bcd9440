"""Target of a study, and the interface that the study needs from it. Nothing is started."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Callable

from serving.model_spec import ModelSpec
from tuner.engines.description import SCENARIO_COPY
from tuner.evaluation.scenarios import served, tuning
from tuner.evaluation.scenarios.engine import ScenarioLauncher
from tuner.evaluation.scenarios.requests import ScenarioRequests, model_of
from tuner.evaluation.scenarios.values import Scenario
from tuner.launching.engine import EngineInfo, Launcher
from tuner.load_generator.payloads import Payloads
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.space import files
from tuner.space.files import SpaceFile
from tuner.space.space import SearchSpace
from tuner.study import problem
from tuner.values.configuration import Configuration
from tuner.values.study_record import SharedModels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target(abc.ABC):
    """Target of a study. The settings that its methods get contain absolute paths."""

    spec: ModelSpec
    """Spec of the model; if the engine is not Luthier, the spec may have any name."""

    @property
    def files(self) -> tuple[pathlib.Path, ...]:
        """Files and folders that serving and requests need, besides those of `TargetSettings.files`."""
        return self.spec.files

    @abc.abstractmethod
    def space(self, settings: TargetSettings, *, goes_on: bool = False) -> SpaceFile | None:
        """Return the given search space or the target's own, or None if one must be derived.

        Args:
            goes_on: whether the study has already searched the given space.

        Raises:
            InvalidSpace: the space is invalid.
            UsageError: a space must be given.
        """

    @abc.abstractmethod
    def launcher(self, settings: TargetSettings, *, say: Callable[[str], None]) -> Launcher:
        """Return the launcher that starts or configures the engine.

        Args:
            say: prints what the user must know at the end.

        Raises:
            UsageError: the payload is unreadable.
        """

    @abc.abstractmethod
    def payloads(
        self, settings: TargetSettings, told: EngineInfo, *, seed: int
    ) -> Payloads | ScenarioRequests:
        """Return the requests; raise UsageError if a file is missing, unreadable or unsuitable."""

    def check(self, measurement: MeasurementSettings) -> None:
        """Raise UsageError if evaluations with these settings cannot tune the target."""
        del measurement

    def first(self, default: Configuration) -> Configuration | None:
        """Return the configuration of the first start, or None for the engine's own defaults."""
        return default

    def completed(self, configuration: Configuration) -> Configuration:
        """Add the target's default resources, which count as reserved."""
        return configuration

    def with_room(self, space: SearchSpace, told: EngineInfo) -> tuple[SearchSpace, str | None]:
        """Leave out values too small for the largest of many models; return a note about them."""
        del told
        return space, None

    def file_copy(self) -> tuple[str, str] | None:
        """Return name and text of a file to keep in the study's folder, or None."""
        return None

    def shared(self) -> SharedModels | None:
        """Return a scenario's models and settings, or None for other targets."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LuthierTarget(Target):
    """Luthier with one model."""

    @classmethod
    def of(cls, settings: TargetSettings) -> LuthierTarget:
        """Return the settings' model as a target, or raise UsageError if unknown or unsuitable."""
        return cls(spec=problem.find_spec(settings.model, is_trusted=settings.trust))

    def space(self, settings: TargetSettings, *, goes_on: bool = False) -> SpaceFile | None:
        """Return the given or bundled search space."""
        del goes_on
        return problem.find_space(settings, self.spec)

    def first(self, default: Configuration) -> Configuration | None:
        """Return None, since trials change the running server."""
        del default
        return None

    def launcher(self, settings: TargetSettings, *, say: Callable[[str], None]) -> Launcher:
        """Return the launcher of Luthier's server."""
        del say
        return problem.launcher_of(settings)

    def payloads(self, settings: TargetSettings, told: EngineInfo, *, seed: int) -> Payloads:
        """Return requests that fit the model."""
        return problem.payloads_of(settings, self.spec, told, seed=seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScenarioTarget(Target):
    """Luthier with all models of a scenario on shared replicas."""

    scenario: Scenario
    text: str

    @property
    def files(self) -> tuple[pathlib.Path, ...]:
        """Files of all models and traces."""
        models = dict.fromkeys(map(model_of, self.scenario.groups))
        found = [file for model in models for file in problem.find_spec(model).files]
        return (*found, *(one.file for one in self.scenario.streams if one.file is not None))

    def check(self, measurement: MeasurementSettings) -> None:
        """Raise UsageError if the scenario cannot be tuned."""
        tuning.check(self.scenario, seconds=measurement.warmup_s + measurement.measured_s)

    def space(self, settings: TargetSettings, *, goes_on: bool = False) -> SpaceFile:
        """Return the search space, with the scenario's values as defaults unless a study goes on."""
        if settings.space is None:
            return problem.unwritten(tuning.default_space(self.scenario), self.spec)
        found = files.read(settings.space)
        if goes_on:
            return found
        space = tuning.with_baseline(found.space, self.scenario)
        return SpaceFile(space=space, text=files.dump(space))

    def with_room(self, space: SearchSpace, told: EngineInfo) -> tuple[SearchSpace, str | None]:
        """Leave out memory budgets that are too small."""
        if told.max_model_mb is None:
            return space, None
        return tuning.with_room(space, self.scenario, max_model_mb=told.max_model_mb)

    def launcher(self, settings: TargetSettings, *, say: Callable[[str], None]) -> Launcher:
        """Return the launcher of servers with all models."""
        del say
        return ScenarioLauncher(self.scenario, settings.spawner)

    def payloads(
        self, settings: TargetSettings, told: EngineInfo, *, seed: int
    ) -> ScenarioRequests:
        """Return the scenario's requests."""
        del settings, told, seed
        return ScenarioRequests(self.scenario)

    def file_copy(self) -> tuple[str, str]:
        """Return name and text of the scenario file."""
        return SCENARIO_COPY, self.text

    def shared(self) -> SharedModels:
        """Return the models by group, and the server's settings."""
        deadline_s = self.scenario.streams[0].deadline.first_s
        return SharedModels(
            groups={group.name: (model_of(group), group.copies) for group in self.scenario.groups},
            # Requests carry deadlines, but the policy rejects none without one of its own.
            settings={
                "scheduling.default_deadline_s": deadline_s,
                **served.configuration_of(self.scenario),
            },
        )
