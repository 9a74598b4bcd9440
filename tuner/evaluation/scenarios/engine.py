"""Engine that serves all models of a scenario, as a study launches it.

Changing the batch size or page size requires a new server, on which models are profiled anew; any
other change gives the running server new, empty replicas. Settings that a configuration lacks come
from the scenario. Servers of one launcher share measured profiles. All calls block.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any

from serving.settings import SETTINGS
from tuner.errors import LaunchFailed
from tuner.evaluation.scenarios import served
from tuner.evaluation.scenarios.values import Scenario
from tuner.launching import pool_metrics
from tuner.launching.engine import EngineInfo
from tuner.launching.engine_process import LuthierProcess
from tuner.launching.replica_facts import ReplicaFacts
from tuner.values.configuration import Configuration

OF_PROFILES = frozenset({"batching.max_size"})
"""Live settings that affect a model's profile."""
KIND = "scenario"
ROUNDED_MB = 0.005


class ScenarioLauncher:
    """Launcher of servers for one scenario."""

    why_not_interleaved: str | None = "each holds all models of the scenario"
    is_restarted: bool = False

    def __init__(self, scenario: Scenario, spawner: str | None = None) -> None:
        """Prepare for a checked scenario; without a `spawner`, the environment determines it."""
        self.scenario = scenario
        self.spawner = spawner
        self.defaults = served.configuration_of(scenario)
        self._profiles: tempfile.TemporaryDirectory[str] | None = None

    @property
    def profiles(self) -> pathlib.Path:
        """Folder with the measured model profiles."""
        if self._profiles is None:
            self._profiles = tempfile.TemporaryDirectory(prefix="luthier-profiles-")
        return pathlib.Path(self._profiles.name)

    def start(self, configuration: Configuration | None) -> ScenarioServer:
        """Start a server, or raise UsageError or LaunchFailed if it or a model does not start."""
        server = ScenarioServer(self)
        server.apply(configuration or Configuration({}))
        return server

    def close(self) -> None:
        """Remove the folder of profiles, which is all that stopped servers leave behind."""
        if self._profiles is not None:
            self._profiles.cleanup()
            self._profiles = None


class ScenarioServer:
    """Server that gets one configuration after another."""

    def __init__(self, launcher: ScenarioLauncher) -> None:
        self._launcher = launcher
        self._process: LuthierProcess | None = None
        self._now = Configuration({})

    @property
    def host(self) -> str:
        """Host that accepts requests."""
        return self._running().host

    @property
    def port(self) -> int:
        """Port that accepts requests."""
        return self._running().port

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of the gateway; for the replicas, see `replica_facts`."""
        return () if self._process is None else self._process.pids

    def apply(self, configuration: Configuration) -> float:
        """Apply a configuration; return the seconds taken, or raise UsageError or LaunchFailed."""
        before_s = time.monotonic()
        launcher = self._launcher
        wanted = Configuration({**launcher.defaults, **configuration})
        if self._process is not None and self.is_running() and is_live(self._now, wanted):
            self._process.apply(wanted)
        else:
            self.stop()
            self._process = served.start_server(
                launcher.scenario, wanted, spawner=launcher.spawner, profiles=launcher.profiles
            )
        self._now = wanted
        return time.monotonic() - before_s

    def describe(self) -> EngineInfo:
        """Describe the engine under the scenario's name, or raise LaunchFailed if it is gone."""
        admin = self._running().admin
        answer = admin.settings()
        devices = {model.get("device") for model in answer["models"]}
        return EngineInfo(
            model=self._launcher.scenario.name,
            kind=KIND,
            signature=None,
            limits=str(answer["limits"]),
            device=devices.pop() if len(devices) == 1 else None,
            max_model_mb=_max_mb(admin.models()),
        )

    def replica_facts(self) -> ReplicaFacts:
        """Return replicas and rejections, or raise LaunchFailed if the engine is gone."""
        running = self._running()
        counted = pool_metrics.parse(running.admin.metrics())
        return dataclasses.replace(running.replica_facts(), refusals=counted.refusals)

    def is_running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.is_running()

    def last_words(self) -> str:
        """Return how the server ended, with its last line of output."""
        return "it was not started" if self._process is None else self._process.last_words()

    def stop(self) -> None:
        """End the server, if any."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def _running(self) -> LuthierProcess:
        if self._process is None:
            raise LaunchFailed("crash", "there is no server: the last one did not start")
        return self._process


def _max_mb(models: Iterable[Mapping[str, Any]]) -> float | None:
    versions = (version for model in models for version in model["versions"].values())
    told = (version["memory_mb"] + ROUNDED_MB for version in versions if "memory_mb" in version)
    return max(told, default=None)


def is_live(now: Configuration, wanted: Configuration) -> bool:
    """Whether applying a configuration to a running server has the effect of a new start."""
    return all(
        SETTINGS[name].live and name not in OF_PROFILES
        for name in {*now, *wanted}
        if now.get(name, SETTINGS[name].default) != wanted.get(name, SETTINGS[name].default)
    )
