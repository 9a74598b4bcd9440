"""Noise measurement: a few configurations evaluated repeatedly in random order.

    inputs -> engine started once -> look at configurations -> shuffled evaluations -> drift

Separates machine drift from the variation of evaluations and blocks, and finds the smallest
detectable gains. Writes nothing. Replicas are new, the gateway lives on. Evaluations are short and
gapless, so that slower drift can be separated from their own variation.
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
from tuner.measurement import blocks as block_means
from tuner.measurement import drift_model, power, summary
from tuner.measurement.drift_model import Blocks, DriftModel
from tuner.measurement.time_slices import TimeSlices
from tuner.report import formatting
from tuner.sampling import candidates as cells_of
from tuner.settings import StudySettings
from tuner.study import problem, targets
from tuner.study.budget import Budget
from tuner.study.interruption import resumable
from tuner.study.preparation import budget_of, make_evaluator, prepare
from tuner.study.progress import Progress, Terminal
from tuner.values.values import Configuration, Measurement, Outcome, RequestRecords

BLOCK_S = 0.2
"""Shortest block."""
MIN_BLOCKS = 3
"""Per evaluation."""
LOOKED_AT = 2
"""Looked at per configuration measured.

The slower half is dropped: searches rarely measure there, and its blocks would take minutes.
"""
SPENT_S = (30.0, 60.0, 120.0)
"""Durations of reported gains."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseMeasurementSpec:
    """Specification of a noise measurement."""

    settings: StudySettings
    """Settings of the study; seed of the orders."""
    configurations: int = 4
    launches: int = 75
    """Per configuration."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseEvaluation:
    """One evaluation, even failed."""

    configuration: int
    started_at: float
    """Unix time when the measured phase, or a failed evaluation, began."""
    took_s: float
    """Until the next evaluation."""
    outcome: Outcome
    blocks_ms: tuple[float, ...]
    """Mean latency per block; empty unless ok."""
    foreign_share: float | None = None
    """Neighbours' share of the machine's CPU time; None if unknown."""
    repeats: int = 0
    """Earlier, disturbed measurements."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DetectableGain:
    """Smallest gain detectable with 80 % probability; 0.04 means 4 % less."""

    spent_s: float
    comparison: float | None
    """Between two configurations, server starts included; None: too short."""
    study: float | None
    """By a study's verdict."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseMeasurement:
    """Result of a noise measurement."""

    model: str
    concurrency: int
    default: Configuration
    configurations: tuple[Configuration, ...]
    means_ms: tuple[float, ...]
    """Geometric mean of blocks; NaN if it never worked."""
    tried: tuple[NoiseEvaluation, ...]
    block_s: float
    course: DriftModel
    gains: tuple[DetectableGain, ...]

    @property
    def failed(self) -> int:
        """Failed evaluations."""
        return sum(one.outcome.status != "ok" for one in self.tried)

    @property
    def repeated(self) -> int:
        """Repeated evaluations."""
        return sum(one.repeats > 0 for one in self.tried)

    @property
    def foreign_shares(self) -> tuple[float, ...]:
        """All known shares."""
        return tuple(one.foreign_share for one in self.tried if one.foreign_share is not None)


def measure(order: NoiseMeasurementSpec, *, terminal: Terminal) -> NoiseMeasurement:
    """Run and analyse a noise measurement.

    Raises:
        WrongUse: an input is invalid; nothing was measured.
        TunerError: it failed.
        Interrupted: a signal came; nothing was saved.
    """
    settings = order.settings
    target = targets.find_target(settings.target)
    with resumable(None), make_evaluator(settings, target, terminal) as bench:
        inputs = prepare(bench, settings, target, terminal)
        arena, served = inputs.arena, inputs.served
        piloting = _MeasurementRun(order, bench, arena, terminal)
        chosen, block_s = piloting.look()
        tried = piloting.launches(chosen, block_s)
        budget = budget_of(settings, bench)
    return read(
        budget,
        model=served.model,
        concurrency=settings.target.in_flight,
        default=arena.default,
        configurations=chosen,
        tried=tried,
        block_s=block_s,
    )


def read(
    budget: Budget,
    *,
    model: str,
    concurrency: int,
    default: Configuration,
    configurations: Sequence[Configuration],
    tried: Sequence[NoiseEvaluation],
    block_s: float,
) -> NoiseMeasurement:
    """Analyse the evaluations.

    Raises:
        TunerError: too few worked.
    """
    worked = [(number, one) for number, one in enumerate(tried) if one.blocks_ms]
    logs = [np.log(one.blocks_ms) for _, one in worked]
    found = None
    if worked:
        found = drift_model.fit(
            Blocks(
                at_s=np.concatenate(
                    [
                        one.started_at
                        - worked[0][1].started_at
                        + block_s * (np.arange(len(log)) + 0.5)
                        for (_, one), log in zip(worked, logs, strict=True)
                    ]
                ),
                logs=np.concatenate(logs),
                launch=np.repeat([number for number, _ in worked], list(map(len, logs))),
                configuration=np.repeat(
                    [one.configuration for _, one in worked], list(map(len, logs))
                ),
            )
        )
    if found is None:
        reason = next((one.outcome.reason for one in tried if one.outcome.reason), "")
        text = f"too few launches worked to tell their noise ({len(worked)} of {len(tried)})"
        raise TunerError(f"{text}: {reason}" if reason else text)
    means: list[list[float]] = [[] for _ in configurations]
    for (_, one), log in zip(worked, logs, strict=True):
        means[one.configuration] += log.tolist()
    means_ms = tuple(float(np.exp(np.mean(one))) if one else float("nan") for one in means)
    budget = budget.answered(1e-3 * float(np.nanmax(means_ms)))
    return NoiseMeasurement(
        model=model,
        concurrency=concurrency,
        default=default,
        configurations=tuple(configurations),
        means_ms=means_ms,
        tried=tuple(tried),
        block_s=block_s,
        course=found,
        gains=tuple(
            detectable_gain(found, budget, block_s=block_s, spent_s=spent_s) for spent_s in SPENT_S
        ),
    )


def detectable_gain(
    course: DriftModel, budget: Budget, *, block_s: float, spent_s: float
) -> DetectableGain:
    """Return the smallest gain detectable in a time.

    Args:
        budget: gives the cost of a comparison.
        block_s: of the drift model.
    """

    def smallest(pairs: int) -> float | None:
        slices = budget.slices
        rounds = power.RoundLayout(
            number=pairs,
            slices=slices or TimeSlices.whole(budget.load_s),
            launch_s=budget.compared_s - (slices.loaded_s if slices else budget.load_s),
            is_side_by_side=slices is not None,
        )
        return power.smallest_gain_of(course, rounds, block_s=block_s)

    return DetectableGain(
        spent_s=spent_s,
        comparison=smallest(budget.pairs_alone(spent_s)),
        study=smallest(budget.pairs_of_study(spent_s)),
    )


class _MeasurementRun:
    """A noise measurement in progress."""

    def __init__(
        self,
        order: NoiseMeasurementSpec,
        bench: Evaluator,
        arena: problem.ProblemStatement,
        terminal: Terminal,
    ) -> None:
        self._order = order
        self._bench = bench
        self._arena = arena
        self._terminal = terminal
        self._rng = np.random.default_rng(order.settings.search.seed)
        self._progress = Progress(terminal.console, default=arena.default, objective="mean")

    def look(self) -> tuple[tuple[Configuration, ...], float]:
        """Return the configurations to measure, default first, and their block length.

        Raises:
            WrongUse: the space has one configuration.
            TunerError: too few work.
        """
        wanted = self._order.configurations
        spread = self._spread(LOOKED_AT * wanted)
        if len(spread) < 2:
            raise UsageError(
                "--noise: the search space has one configuration only on this machine; "
                "name another with --space"
            )
        self._progress.say(f"a look at {formatting.plural(len(spread), 'configuration')}")
        seen: dict[Configuration, Measurement] = {}
        reason = ""
        for cell in spread:
            launch = self._launch(cell)
            if launch.measurement is not None:
                seen[cell] = launch.measurement
            reason = reason or launch.outcome.reason
        if len(seen) < 2:
            raise TunerError(f"the noise cannot be measured: {reason}")
        return chosen_of(seen, wanted, default=self._arena.default)

    def launches(
        self, chosen: Sequence[Configuration], block_s: float
    ) -> tuple[NoiseEvaluation, ...]:
        """Run all evaluations shuffled."""
        order = self._order
        settings = order.settings.measurement
        seconds = max(settings.measured_s, MIN_BLOCKS * block_s)
        self._bench.settings = dataclasses.replace(settings, seconds=seconds)
        places = self._rng.permutation(np.repeat(np.arange(len(chosen)), order.launches))
        self._progress.say(
            f"{formatting.plural(len(chosen), 'configuration')}, {formatting.plural(order.launches, 'launch')} "
            f"of each in a random order, {seconds:g} s measured in each",
            style="bold",
        )
        tried: list[NoiseEvaluation] = []
        begun_s = time.monotonic()
        for place in places.tolist():
            before_s = time.monotonic()
            launch = self._launch(chosen[place])
            tried.append(self._tried(launch, place, time.monotonic() - before_s, block_s))
            left_s = (time.monotonic() - begun_s) / len(tried) * (len(places) - len(tried))
            if len(tried) == 1:
                self._progress.expected(left_s, now=dt.datetime.now().astimezone())
            self._progress.say(
                f"{len(tried):3d}/{len(places)} "
                f"{self._progress.result(launch.outcome, launch.measurement)} | "
                f"{self._progress.differences(launch.configuration)} | "
                f"{formatting.duration(left_s)} left"
            )
        return tuple(tried)

    def _spread(self, most: int) -> list[Configuration]:
        """Return the default and others spread over the space."""
        candidates = self._arena.candidates
        found = [self._arena.default]
        for vector in cells_of.sobol(candidates.design_width, most - 1, self._rng):
            free = candidates.unseen(found)
            if not len(free):
                break
            found.append(candidates.cells[candidates.nearest(vector, free)])
        return found

    def _launch(self, cell: Configuration) -> Evaluation:
        launch = self._bench.launch(cell)
        self._terminal.check()
        return launch

    def _tried(
        self, launch: Evaluation, place: int, took_s: float, block_s: float
    ) -> NoiseEvaluation:
        measured, records = launch.measurement, launch.records
        tried = NoiseEvaluation(
            configuration=place,
            started_at=launch.started_at,
            took_s=took_s,
            outcome=launch.outcome,
            blocks_ms=(),
        )
        if measured is None or records is None:
            return tried
        cores = self._arena.environment.machine.cores
        foreign_s = measured.noise.foreign_cpu_s
        last_s = measured.warmup_s + measured.seconds  # of the last load, which counted
        return dataclasses.replace(
            tried,
            started_at=launch.started_at + took_s - measured.seconds,
            blocks_ms=blocks_of(records, measured, block_s),
            foreign_share=None if foreign_s is None else foreign_s / (cores * last_s),
            repeats=measured.repeats,
        )


def chosen_of(
    seen: dict[Configuration, Measurement], wanted: int, *, default: Configuration
) -> tuple[tuple[Configuration, ...], float]:
    """Return the default and the fastest others, and a block length of two latencies.

    Args:
        seen: successful; the default may be missing.
    """
    ordered = sorted(seen, key=lambda cell: (cell != default, seen[cell].mean_ms))
    chosen = tuple(ordered[:wanted])
    slowest_s = max(seen[cell].mean_ms for cell in chosen) / 1e3
    return chosen, block_means.block_seconds(BLOCK_S, slowest_s)


def blocks_of(records: RequestRecords, measured: Measurement, block_s: float) -> tuple[float, ...]:
    """Return the means of whole blocks, in ms."""
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
