"""Noise measurement: repeated evaluations of a few configurations in random order.

Evaluations are short and gapless, to separate drift from their spread. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Sequence

import numpy as np

from tuner.errors import TunerError, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.lab.noise_analysis import NoiseEvaluation, NoiseMeasurement, read
from tuner.measurement import blocks as block_means
from tuner.measurement import summary
from tuner.report import formatting
from tuner.sampling import candidates as cells_of
from tuner.settings.study import StudySettings
from tuner.study import targets
from tuner.study.interruption import resumable
from tuner.study.preparation import budget_of, make_evaluator, prepare
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Progress, Terminal
from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement
from tuner.values.request_records import RequestRecords

BLOCK_S = 0.2
MIN_BLOCKS = 3
LOOKED_AT = 2
"""Number of configurations tried per measured one; the slower half is dropped."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseMeasurementSpec:
    """Specification of a noise measurement."""

    settings: StudySettings
    configurations: int = 4
    evaluations: int = 75


def measure(order: NoiseMeasurementSpec, *, terminal: Terminal) -> NoiseMeasurement:
    """Run and analyse a noise measurement.

    Raises:
        UsageError: an input is invalid; nothing was measured.
        Interrupted: a signal arrived; nothing was saved.
    """
    settings = order.settings
    target = targets.find_target(settings.target)
    with resumable(None), make_evaluator(settings, target, terminal) as evaluator:
        inputs = prepare(evaluator, settings, target, terminal)
        piloting = _MeasurementRun(order, evaluator, inputs.problem, terminal)
        chosen, block_s = piloting.look()
        tried = piloting.evaluate_all(chosen, block_s)
        budget = budget_of(settings, evaluator)
    return read(
        budget,
        model=inputs.served.model,
        concurrency=settings.target.in_flight,
        default=inputs.problem.default,
        configurations=chosen,
        tried=tried,
        block_s=block_s,
    )


class _MeasurementRun:
    def __init__(
        self,
        order: NoiseMeasurementSpec,
        evaluator: Evaluator,
        problem: ProblemStatement,
        terminal: Terminal,
    ) -> None:
        self._order = order
        self._evaluator = evaluator
        self._problem = problem
        self._terminal = terminal
        self._rng = np.random.default_rng(order.settings.search.seed)
        self._progress = Progress(terminal.console, default=problem.default, objective="mean")

    def look(self) -> tuple[tuple[Configuration, ...], float]:
        """Choose the configurations to measure, default first, and the block length."""
        wanted = self._order.configurations
        spread = self._spread(LOOKED_AT * wanted)
        if len(spread) < 2:
            raise UsageError(
                "--noise: the search space has only one configuration on this machine; "
                "give another with --space"
            )
        self._progress.say(f"a look at {formatting.plural(len(spread), 'configuration')}")
        seen: dict[Configuration, Measurement] = {}
        reason = ""
        for cell in spread:
            evaluation = self._evaluate(cell)
            if evaluation.measurement is not None:
                seen[cell] = evaluation.measurement
            reason = reason or evaluation.outcome.reason
        if len(seen) < 2:
            raise TunerError(f"the noise cannot be measured: {reason}")
        return chosen_of(seen, wanted, default=self._problem.default)

    def evaluate_all(
        self, chosen: Sequence[Configuration], block_s: float
    ) -> tuple[NoiseEvaluation, ...]:
        """Run all evaluations in random order."""
        order = self._order
        settings = order.settings.measurement
        seconds = max(settings.measured_s, MIN_BLOCKS * block_s)
        self._evaluator.settings = dataclasses.replace(settings, seconds=seconds)
        places = self._rng.permutation(np.repeat(np.arange(len(chosen)), order.evaluations))
        self._progress.say(
            f"{formatting.plural(len(chosen), 'configuration')}, "
            f"{formatting.plural(order.evaluations, 'evaluation')} of each in a random order, "
            f"{seconds:g} s measured in each",
            style="bold",
        )
        tried: list[NoiseEvaluation] = []
        begun_s = time.monotonic()
        for place in places.tolist():
            before_s = time.monotonic()
            evaluation = self._evaluate(chosen[place])
            tried.append(
                self._make_evaluation(evaluation, place, time.monotonic() - before_s, block_s)
            )
            left_s = (time.monotonic() - begun_s) / len(tried) * (len(places) - len(tried))
            if len(tried) == 1:
                self._progress.print_duration(left_s, now=dt.datetime.now().astimezone())
            self._progress.say(
                f"{len(tried):3d}/{len(places)} "
                f"{self._progress.result(evaluation.outcome, evaluation.measurement)} | "
                f"{self._progress.differences(evaluation.configuration)} | "
                f"{formatting.duration(left_s)} left"
            )
        return tuple(tried)

    def _spread(self, most: int) -> list[Configuration]:
        candidates = self._problem.candidates
        found = [self._problem.default]
        for vector in cells_of.sobol(candidates.design_width, most - 1, self._rng):
            free = candidates.untried(found)
            if not len(free):
                break
            found.append(candidates.configurations[candidates.nearest(vector, free)])
        return found

    def _evaluate(self, candidate: Configuration) -> Evaluation:
        evaluation = self._evaluator.evaluate(candidate)
        self._terminal.check()
        return evaluation

    def _make_evaluation(
        self, evaluation: Evaluation, place: int, took_s: float, block_s: float
    ) -> NoiseEvaluation:
        measured, records = evaluation.measurement, evaluation.records
        tried = NoiseEvaluation(
            configuration=place,
            started_at=evaluation.started_at,
            took_s=took_s,
            outcome=evaluation.outcome,
            blocks_ms=(),
        )
        if measured is None or records is None:
            return tried
        foreign_s = measured.noise.neighbour_cpu_s
        # Over the last load, which counted.
        cores_s = self._problem.environment.machine.cores * (measured.warmup_s + measured.seconds)
        return dataclasses.replace(
            tried,
            started_at=evaluation.started_at + took_s - measured.seconds,
            blocks_ms=blocks_of(records, measured, block_s),
            foreign_share=None if foreign_s is None else foreign_s / cores_s,
            repeats=measured.repeats,
        )


def chosen_of(
    seen: dict[Configuration, Measurement], wanted: int, *, default: Configuration
) -> tuple[tuple[Configuration, ...], float]:
    """Return the default (if seen) with the fastest others, and a block length of two latencies."""
    ordered = sorted(seen, key=lambda cell: (cell != default, seen[cell].mean_ms))
    chosen = tuple(ordered[:wanted])
    slowest_s = max(seen[cell].mean_ms for cell in chosen) / 1e3
    return chosen, block_means.block_seconds(BLOCK_S, slowest_s)


def blocks_of(records: RequestRecords, measured: Measurement, block_s: float) -> tuple[float, ...]:
    """Return the mean latency of each whole block, in ms."""
    counted = summary.is_measured(records, warmup_s=measured.warmup_s, seconds=measured.seconds)
    counted &= summary.is_ok(records)
    in_turn = np.argsort(records.finished_s[counted], kind="stable")
    finished_s = records.finished_s[counted][in_turn]
    found = block_means.cut(
        finished_s,
        finished_s - records.intended_s[counted][in_turn],
        start_s=measured.warmup_s,
        seconds=measured.seconds,
        block_s=block_s,
    )
    return tuple(block.mean_ms for block in found)
