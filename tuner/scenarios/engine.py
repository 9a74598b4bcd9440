"""The serving core with all models of a scenario, as a study launches it: one configuration after the other.

    another size of batches or pages: a new server, whose models are profiled anew
    anything else: the running one, on new replicas with nothing in memory, by what its profiles tell

In: a scenario, configurations. Out: an `Engine`. What a configuration leaves out is as the scenario has it.
What one server has measured of a model, the next one of the same launcher takes over, as one that is deployed with a
folder of its state does: it measures what another size of batches or other limits ask for. Blocking.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any

from serving.settings import KNOBS
from tuner.errors import LaunchFailed
from tuner.launching import pool_metrics
from tuner.launching.engine import Served
from tuner.launching.engine_process import EngineProcess
from tuner.launching.replica_facts import ReplicaFacts
from tuner.scenarios import served
from tuner.scenarios.values import Scenario
from tuner.values import Configuration

OF_PROFILES = frozenset({"batching.max_size"})
"""Live settings that a model is profiled for when it is deployed."""
KIND = "scenario"
ROUNDED_MB = 0.005


class ScenarioLauncher:
    """Starts servers of one scenario."""

    why_alone: str | None = "each holds all models of the scenario"
    """Why two of them are not up at once; None: they can be."""
    is_restarted: bool = False
    """Whether each configuration is served by a process that was started for it, and has to settle."""

    def __init__(self, scenario: Scenario, home: str | None = None) -> None:
        """Nothing is started yet.

        Args:
            scenario: what is served; it was checked.
            home: where replicas live; None: as the environment says.
        """
        self.scenario = scenario
        self.home = home
        self.defaults = served.configuration_of(scenario)
        self._profiles: tempfile.TemporaryDirectory[str] | None = None

    @property
    def profiles(self) -> pathlib.Path:
        """Folder of what its servers have measured of the models."""
        if self._profiles is None:
            self._profiles = tempfile.TemporaryDirectory(prefix="luthier-profiles-")
        return pathlib.Path(self._profiles.name)

    def start(self, configuration: Configuration | None) -> ScenarioServer:
        """Start a server.

        Raises:
            WrongUse, LaunchFailed: it does not start, or cannot load a model.
        """
        server = ScenarioServer(self)
        server.apply(configuration or Configuration({}))
        return server

    def close(self) -> None:
        """Remove what its servers have measured: nothing else is left of those that were stopped."""
        if self._profiles is not None:
            self._profiles.cleanup()
            self._profiles = None


class ScenarioServer:
    """The server of one configuration after the other."""

    def __init__(self, launcher: ScenarioLauncher) -> None:
        self._launcher = launcher
        self._process: EngineProcess | None = None
        self._now = Configuration({})
        """What the process was given last."""

    @property
    def host(self) -> str:
        """Host that answers requests."""
        return self._running().host

    @property
    def port(self) -> int:
        """Port that answers requests."""
        return self._running().port

    @property
    def pids(self) -> tuple[int, ...]:
        """The gateway; the replicas tell of themselves."""
        return () if self._process is None else self._process.pids

    def apply(self, configuration: Configuration) -> float:
        """Launch a configuration; returns the seconds until it was ready.

        Raises:
            WrongUse, LaunchFailed: it could not be launched; `is_running` says whether anything still serves.
        """
        before_s = time.monotonic()
        launcher = self._launcher
        wanted = Configuration({**launcher.defaults, **configuration})
        if self._process is not None and self.is_running() and is_live(self._now, wanted):
            self._process.apply(wanted)
        else:
            self.stop()
            self._process = served.started(
                launcher.scenario, wanted, home=launcher.home, profiles=launcher.profiles
            )
        self._now = wanted
        return time.monotonic() - before_s

    def served(self) -> Served:
        """What it serves: many models, which the study calls by the scenario's name.

        Raises:
            LaunchFailed: the engine is gone (cause `crash`).
        """
        admin = self._running().admin
        answer = admin.settings()
        devices = {model.get("device") for model in answer["models"]}
        return Served(
            model=self._launcher.scenario.name,
            version="",
            kind=KIND,
            signature=None,
            limits=str(answer["limits"]),
            device=devices.pop() if len(devices) == 1 else None,
            largest_mb=_largest_mb(admin.models()),
        )

    def replica_facts(self) -> ReplicaFacts:
        """What the replicas report now.

        Raises:
            LaunchFailed: the engine is gone (cause `crash`).
        """
        running = self._running()
        counted = pool_metrics.parsed(running.admin.metrics())
        return dataclasses.replace(running.replica_facts(), refusals=counted.refusals)

    def is_running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.is_running()

    def last_words(self) -> str:
        """How the server ended, and the last line that it wrote."""
        return "it was not started" if self._process is None else self._process.last_words()

    def stop(self) -> None:
        """End the server; harmless when it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def _running(self) -> EngineProcess:
        if self._process is None:
            raise LaunchFailed("crash", "there is no server: the last one did not start")
        return self._process


def _largest_mb(models: Iterable[Mapping[str, Any]]) -> float | None:
    """Of the models, at most: what the server tells is rounded."""
    versions = (version for model in models for version in model["versions"].values())
    told = (version["memory_mb"] + ROUNDED_MB for version in versions if "memory_mb" in version)
    return max(told, default=None)


def is_live(now: Configuration, wanted: Configuration) -> bool:
    """Whether a running server can be given a configuration and be as one that was started with it."""
    return all(
        KNOBS[name].limits.live and name not in OF_PROFILES
        for name in {*now, *wanted}
        if now.get(name, KNOBS[name].default) != wanted.get(name, KNOBS[name].default)
    )
