"""Evaluator that replays a benchmark table in time.

An evaluation at a moment of the replay is a recorded one of its candidate, as if it had taken place
at that moment: the candidate's true value times the machine's recorded course (`machine_course`).
Startups, warm-ups, time slices and pauses take their time. Perturbations:

    noise      every evaluation is slower by its own log-normal factor of median 1
    null       all candidates are the default
    walls      candidates beyond a plane through two knobs run out of memory
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.phase_runner import MAX_REPEATS
from tuner.evaluation.workload import RESPONSES
from tuner.lab.tables.machine_course import STEP_S, MachineCourse, Steps, chance_sd
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation
from tuner.load_generator.plan import Race, Warmup
from tuner.measurement.interference import InterferenceDetector
from tuner.measurement.time_slices import SWITCH_S, TimeSlices
from tuner.sampling.arrays import Array
from tuner.sampling.candidates import CandidateSet
from tuner.values.configuration import Configuration
from tuner.values.measurement import Block
from tuner.values.trial import Outcome

OOM_SHARE = 0.3
PLANES = 20
EPOCH_S = 1e9
"""Unix time at which replays begin."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Perturbations:
    """Perturbations of replayed evaluations."""

    noise_sd: float = 0.0
    is_null: bool = False
    injects_oom: bool = False
    node_sd: float = 0.0
    """Sd of the logarithm of machines' lasting speeds, if there are several."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTimes:
    """How long a replayed evaluation takes after its startup."""

    seconds: float
    """Measured seconds, unless latencies are long."""
    warmup_s: float
    compared_s: float
    """Measured seconds of interleaved evaluations; 0 if mean latency decides."""

    def of(self, latency_s: float) -> tuple[float, float]:
        """Return the warm-up and the measured seconds at a mean latency."""
        return (
            max(self.warmup_s, Warmup().round_trips * latency_s),
            max(self.seconds, RESPONSES * latency_s),
        )


@dataclasses.dataclass(slots=True, eq=False)
class TableEvaluator:
    """Evaluator of a table's candidates, on a machine that moves as it did when they were recorded."""

    table: BenchmarkTable
    course: MachineCourse
    templates: Mapping[Configuration, Sequence[RecordedEvaluation]]
    """Recorded evaluations that are replayed, by candidate."""
    corrections: Mapping[Configuration, float]
    """Logarithm of the truth over what the candidate's evaluations say."""
    times: EvaluationTimes
    rng: np.random.Generator
    own_tails: Mapping[int, float] | None = None
    """If a tail of the latency is the objective: logarithm of each evaluation's over its candidate's."""
    noise_sd: float = 0.0
    with_oom: frozenset[Configuration] = frozenset()
    stands_for_all: Configuration | None = None
    """Candidate whose evaluations every candidate has, so that all are equal."""
    node: str = ""
    slowness: float = 0.0
    """Logarithm of how much slower than others this machine is."""
    seconds: float = 0.0
    """Time since the replay began."""
    _offset_s: float = dataclasses.field(init=False)
    """Place of the replay's beginning in the course."""
    detector: InterferenceDetector = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._offset_s = float(self.rng.uniform(0, self.course.seconds))
        self.detector = InterferenceDetector(self.table.cores)

    def copy(self) -> TableEvaluator:
        """Return an evaluator that goes on from here on its own."""
        copied = copy.copy(self)
        copied.rng, copied.detector = copy.deepcopy((self.rng, self.detector))
        return copied

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """Evaluate a candidate now, up to the block that loses the race."""
        template, started_at = self.template(configuration), EPOCH_S + self.seconds
        self.wait(template.startup_s)
        if configuration in self.with_oom or template.histogram is None:
            outcome = template.outcome
            if configuration in self.with_oom:
                outcome = Outcome(
                    status="infeasible", cause="oom", reason="out of memory, by the wrapper"
                )
            else:
                self.wait(template.loaded_s)
            failed = _failed(configuration, outcome, template.startup_s, started_at)
            return dataclasses.replace(failed, node=self.node)
        played, repeats, begun_s = self._play(template, configuration, race), 0, self.seconds
        self.wait(played.loaded_s)
        while repeats < MAX_REPEATS and self._must_repeat(played):
            played, repeats = self._play(template, configuration, race), repeats + 1
            self.wait(played.loaded_s)
        measurement = self.table.measurement_of(played)
        if measurement is not None:
            asked_s = self.times.of(_mean_ms(template) / 1e3)[1]
            ended_early = measurement.seconds < asked_s - STEP_S
            measurement = dataclasses.replace(measurement, ended_early=ended_early, repeats=repeats)
        return Evaluation(
            configuration=configuration,
            outcome=played.outcome,
            measurement=measurement,
            records=None,
            startup_s=template.startup_s,
            loaded_s=self.seconds - begun_s,
            started_at=started_at,
            node=self.node,
        )

    def rounds(self, arms: Mapping[str, Configuration], *, latency_s: float) -> InterleavedReplay:
        """Return interleaved rounds of these arms; `latency_s` is the mean latency of the slowest."""
        startups_s = [self.template(one).startup_s for one in arms.values()]
        self.wait(sum(startups_s))
        slices = TimeSlices.of(
            latency_s=latency_s,
            startup_s=sum(startups_s) / len(startups_s),
            measured_s=self.times.compared_s,
            arms=len(arms),
        )
        return InterleavedReplay(self, arms, slices)

    def template(self, configuration: Configuration) -> RecordedEvaluation:
        """Draw one of the candidate's recorded evaluations."""
        every = self.templates[self.stands_for_all or configuration]
        return every[int(self.rng.integers(len(every)))]

    def _play(
        self, template: RecordedEvaluation, configuration: Configuration, race: Race | None
    ) -> RecordedEvaluation:
        warmup_s, seconds = self.times.of(_mean_ms(template) / 1e3)
        steps = self.steps(warmup_s, seconds)
        noise = float(self.rng.normal(0.0, self.noise_sd)) if self.noise_sd else 0.0
        whole = self.moved(template, configuration, steps, warmup_s=warmup_s, noise=noise)
        return whole if race is None else stop_by_race(whole, race)

    def _must_repeat(self, played: RecordedEvaluation) -> bool:
        is_disturbed = self.detector.is_disturbed(played.noise, loaded_s=played.loaded_s)
        return is_disturbed and self.detector.can_repeat(played.loaded_s)

    def steps(self, after_s: float, seconds: float) -> Steps:
        """Return the steps (k,) of the course for so many seconds, `after_s` from now."""
        return self.course.steps(self._offset_s + self.seconds + after_s, seconds)

    def moved(
        self,
        template: RecordedEvaluation,
        configuration: Configuration,
        steps: Steps,
        *,
        warmup_s: float,
        noise: float = 0.0,
    ) -> RecordedEvaluation:
        """Return a recorded evaluation as if it had been measured at these steps of the course."""
        course, was = self.course, self.course.by_evaluation[template.number]
        usual = noise + self.slowness
        usual += self.corrections.get(self.stands_for_all or configuration, 0.0)
        rate = _rate(template)
        chance = chance_sd(template) / math.sqrt(max(1.0, rate * STEP_S))
        mean = course.mean[steps] - was.mean + chance * self.rng.normal(size=len(steps))
        tail = course.tail[steps] - was.tail
        cpu = float(np.mean(course.cpu[steps])) - was.cpu + self.slowness
        blocks = _blocks(
            template,
            np.exp(mean + usual),
            np.exp(tail + usual),
            start_s=warmup_s,
            is_open=self.table.head.rate_per_s is not None,
        )
        requests = sum(block.requests for block in blocks)
        slower = sum(b.requests * b.mean_ms for b in blocks) / requests / _mean_ms(template)
        if self.own_tails is not None:
            now = float(np.mean(course.tail[steps]))
            slower = math.exp(now - self.own_tails.get(template.number, was.tail) + usual)
        # CPU seconds per request of the template, times its requests and the course of CPU time.
        seconds = sum(block.seconds for block in blocks)
        measured_s = sum(block.seconds for block in template.blocks)
        share = math.exp(cpu) * requests / sum(block.requests for block in template.blocks)
        with_warmup = share * (warmup_s + seconds) / seconds * measured_s / template.loaded_s
        taken_s = float(np.mean(course.taken[steps])) * self.table.cores * (warmup_s + seconds)
        noise_of = dataclasses.replace(
            template.noise,
            server_cpu_s=_part(template.noise.server_cpu_s, with_warmup),
            client_cpu_s=_part(template.noise.client_cpu_s, share),
            neighbour_cpu_s=taken_s,
            steal_s=0.0,
        )
        return dataclasses.replace(
            template,
            blocks=blocks,
            loaded_s=warmup_s + seconds,
            errors=0,
            noise=noise_of,
            histogram=None if template.histogram is None else template.histogram.scale(slower),
        )


class InterleavedReplay:
    """Interleaved rounds of a replay, as of `tuner.evaluation.interleaving`."""

    def __init__(
        self,
        evaluator: TableEvaluator,
        configurations: Mapping[str, Configuration],
        slices: TimeSlices,
    ) -> None:
        self._evaluator = evaluator
        self._configurations = configurations
        self.slices = slices

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return tuple(self._configurations)

    def round(self, arms: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        """Yield one evaluation per arm, measured in time slices whose order reverses every turn."""
        evaluator = self._evaluator
        templates = {arm: evaluator.template(self._configurations[arm]) for arm in arms}
        steps: dict[str, list[Steps]] = {arm: [] for arm in arms}
        evaluator.wait(sum(one.startup_s for one in templates.values()))
        started_at = EPOCH_S + evaluator.seconds
        for turn in range(2 * self.slices.quartets):
            for arm in arms if turn % 2 == 0 else tuple(reversed(arms)):
                if templates[arm].histogram is None:
                    continue
                steps[arm].append(evaluator.steps(self.slices.dropped_s, self.slices.seconds))
                evaluator.wait(self.slices.dropped_s + self.slices.seconds + SWITCH_S)
        for arm in arms:
            template, configuration = templates[arm], self._configurations[arm]
            if not steps[arm]:
                failed = _failed(configuration, template.outcome, template.startup_s, started_at)
                yield arm, dataclasses.replace(failed, node=evaluator.node)
                continue
            played = evaluator.moved(
                template,
                configuration,
                np.concatenate(steps[arm]),
                warmup_s=2 * self.slices.quartets * self.slices.dropped_s,
            )
            each = len(played.blocks) // len(steps[arm])
            found = Evaluation(
                configuration=configuration,
                outcome=played.outcome,
                measurement=evaluator.table.measurement_of(played),
                records=None,
                startup_s=template.startup_s,
                loaded_s=played.loaded_s,
                started_at=started_at,
                slices_ms=tuple(
                    _mean_of(played.blocks[first : first + each])
                    for first in range(0, len(played.blocks), each)
                ),
                node=evaluator.node,
            )
            yield arm, found


def _failed(
    configuration: Configuration, outcome: Outcome, startup_s: float, started_at: float
) -> Evaluation:
    return Evaluation(
        configuration=configuration,
        outcome=outcome,
        measurement=None,
        records=None,
        startup_s=startup_s,
        loaded_s=0.0,
        started_at=started_at,
    )


def _mean_of(blocks: Sequence[Block]) -> float:
    requests = sum(block.requests for block in blocks)
    return sum(block.requests * block.mean_ms for block in blocks) / requests


def _mean_ms(evaluation: RecordedEvaluation) -> float:
    return _mean_of(evaluation.blocks)


def _rate(evaluation: RecordedEvaluation) -> float:
    blocks = evaluation.blocks
    return sum(block.requests for block in blocks) / sum(block.seconds for block in blocks)


def _part(seconds: float | None, share: float) -> float | None:
    return None if seconds is None else seconds * share


def _blocks(
    template: RecordedEvaluation,
    slower: Array,
    tail: Array,
    *,
    start_s: float,
    is_open: bool,
) -> tuple[Block, ...]:
    """Return a block for each step, with the template's latencies times `slower` (k,) and `tail` (k,)."""
    usual_ms, rate = _mean_ms(template), _rate(template)
    p50_ms = float(np.median([block.p50_ms for block in template.blocks]))
    p99_ms = math.exp(float(np.mean(np.log([block.p99_ms for block in template.blocks]))))
    spread_ms = [one.spread_ms for one in template.blocks if one.spread_ms is not None]
    usual_spread_ms = float(np.median(spread_ms)) if spread_ms else None
    found = []
    for number, (factor, tail_factor) in enumerate(
        zip(slower.tolist(), tail.tolist(), strict=True)
    ):
        now = rate if is_open else rate / factor
        found.append(
            Block(
                start_s=start_s + number * STEP_S,
                seconds=STEP_S,
                requests=max(1, round(now * STEP_S)),
                mean_ms=usual_ms * factor,
                p50_ms=p50_ms * factor,
                p99_ms=p99_ms * tail_factor,
                throughput_per_s=now,
                spread_ms=None if usual_spread_ms is None else usual_spread_ms * factor,
            )
        )
    return tuple(found)


def stop_by_race(evaluation: RecordedEvaluation, race: Race) -> RecordedEvaluation:
    """Return the evaluation up to the first look at which its mean exceeds the limit."""
    for number, limit_ms in enumerate(race.limits_ms, start=1):
        count = math.ceil(number * race.look_s / evaluation.blocks[0].seconds - 1e-9)
        if count >= len(evaluation.blocks):
            break
        if _mean_of(evaluation.blocks[:count]) > limit_ms:
            return shorten(evaluation, count)
    return evaluation


def shorten(evaluation: RecordedEvaluation, blocks: int) -> RecordedEvaluation:
    """Return the evaluation with only its first `blocks` blocks, but the whole histogram."""
    left_s = sum(block.seconds for block in evaluation.blocks[blocks:])
    whole_s = sum(block.seconds for block in evaluation.blocks)
    noise = evaluation.noise
    spent = {
        "server_cpu_s": _part(noise.server_cpu_s, 1 - left_s / evaluation.loaded_s),
        "client_cpu_s": _part(noise.client_cpu_s, 1 - left_s / whole_s),  # none of the warm-up
    }
    return dataclasses.replace(
        evaluation,
        blocks=evaluation.blocks[:blocks],
        loaded_s=evaluation.loaded_s - left_s,
        noise=dataclasses.replace(noise, **spent),
    )


def with_oom(
    candidates: CandidateSet, kept: Sequence[Configuration], rng: np.random.Generator
) -> frozenset[Configuration]:
    """Choose the candidates that run out of memory: those beyond a plane through two axes.

    Of `PLANES` random planes that spare `kept`, it is the one that hits most candidates.
    """
    places = [place for cell in kept if (place := candidates.index_of(cell)) is not None]
    widest = np.zeros(len(candidates.configurations), dtype=bool)
    for _ in range(PLANES):
        width = candidates.design_width
        weights: NDArray[np.float64] = np.zeros(width)
        axes = rng.permutation(width)[:2]
        weights[axes] = rng.choice([-1.0, 1.0], len(axes)) * rng.uniform(0.5, 1.0, len(axes))
        heights = candidates.vectors[:, :width] @ weights
        limit = max(float(np.quantile(heights, 1 - OOM_SHARE)), *heights[places])
        behind = heights > limit
        if behind.sum() > widest.sum():
            widest = behind
    return frozenset(candidates.configurations[int(place)] for place in np.flatnonzero(widest))
