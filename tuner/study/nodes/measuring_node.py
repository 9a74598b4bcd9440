"""Engine and load generator of one machine, driven from elsewhere.

It measures as a study on that machine alone would: both are there, beside each other, and nobody else.
Its calls come from one thread, the main one, as its processes end with the thread that started them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import rich.console

from serving import __version__
from serving.spawners.node.artefacts import ArtefactError, ManifestMaker
from tuner.engines.description import COPY, SCENARIO_COPY
from tuner.errors import UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.launching import machine
from tuner.launching.engine import EngineInfo, kind_of_limits
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.metrics import prices
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.event_log import EventLog
from tuner.study import preparation, targets, verification
from tuner.study.progress import Terminal
from tuner.study.target import Target
from tuner.values.configuration import Configuration


class MeasuringNode:
    """One machine that evaluates the configurations of a study."""

    def __init__(self, settings: Mapping[str, Any], kept: Mapping[str, str]) -> None:
        """Take the study's settings as plain data, and start nothing yet.

        Args:
            kept: texts of the files that the study keeps (`preparation.files_to_keep`).
        """
        self._settings = StudySettings.from_nested(settings, source="the study")
        terminal = Terminal(
            console=rich.console.Console(stderr=True), log=EventLog(), check=lambda: None
        )
        engine, text = kept.get(COPY) or kept.get(SCENARIO_COPY), kept.get(prices.COPY)
        paid = prices.DEFAULT if text is None else prices.parse(text, file=prices.COPY)
        self._target = targets.find_target(self._settings.target, kept=engine)
        self._evaluator = preparation.make_evaluator(
            self._settings, self._target, terminal, paid=paid
        )
        self._rounds = contextlib.ExitStack()
        self._source: verification.MeasuresRounds | None = None

    def open(self, first: Mapping[str, Any]) -> dict[str, Any]:
        """Start the engine with a configuration; return what must be the same on all machines.

        Raises:
            UsageError, LaunchFailed: the model does not start here.
        """
        served = preparation.start_target(self._evaluator, Configuration(first))
        payloads = self._target.payloads(
            self._settings.target, served, seed=self._settings.search.seed
        )
        self._evaluator.send(payloads)
        return facts_with_engine(self._settings.target, self._target, served, payloads)

    def evaluate(self, configuration: Mapping[str, Any], race: Race | None) -> Evaluation:
        """Evaluate a configuration (see `Evaluator.evaluate`)."""
        self._close_rounds()
        return self._evaluator.evaluate(Configuration(configuration), race)

    def evaluate_at(
        self, configuration: Mapping[str, Any], load: OpenLoopPlan, seconds: float
    ) -> Evaluation:
        """Evaluate a configuration on a new server (see `Evaluator.evaluate_at`)."""
        self._close_rounds()
        return self._evaluator.evaluate_at(Configuration(configuration), load, seconds=seconds)

    def open_rounds(self, arms: Mapping[str, Mapping[str, Any]], latency_s: float) -> list[str]:
        """Prepare rounds of these arms, which end with the next call; return what there is to say."""
        self._close_rounds()
        said: list[str] = []
        self._source = self._rounds.enter_context(
            verification.open_rounds(
                self._evaluator,
                {role: Configuration(one) for role, one in arms.items()},
                latency_s=latency_s,
                say=said.append,
            )
        )
        return said

    def round(self, arms: tuple[str, ...], stream: int) -> list[tuple[str, Evaluation]]:
        """Evaluate each arm once, in this order; `stream` is that of the arrivals."""
        assert self._source is not None, "rounds are open"
        self._evaluator.stream = stream
        return list(self._source.round(arms))

    def close(self) -> None:
        """End all processes."""
        self._close_rounds()
        self._evaluator.close()

    def _close_rounds(self) -> None:
        self._source = None
        self._evaluator.stream = 0
        self._rounds.close()


def facts_with_engine(
    settings: TargetSettings,
    target: Target,
    served: EngineInfo,
    payloads: Payloads | ScenarioRequests,
) -> dict[str, Any]:
    """Return the facts that need a started engine, too; raises as `facts` does."""
    return {
        "limits": kind_of_limits(served.limits),
        "payloads": payloads.description,
        **facts(settings, target),
    }


def facts(settings: TargetSettings, target: Target) -> dict[str, Any]:
    """Return the machine, versions and files that must be the same on all machines.

    Raises:
        UsageError: a file cannot be read.
    """
    here = machine.describe(machine.read())
    host = {name: here["host"][name] for name in ("architecture", "cpu", "cores", "memory_mb")}
    try:
        manifest = ManifestMaker().make([*target.files, *settings.files])
    except ArtefactError as error:
        raise UsageError(f"a file of the study cannot be read: {error}") from error
    files = {path: entry.digest for path, entry in manifest.items()}
    return {"luthier": __version__, "host": host, "versions": here["versions"], "files": files}
