"""A/B comparison under one workload, without a search.

    words -> two arms -> both engines running -> rounds -> verdict

An arm is a settings file, study, model, engine or running server. Nothing is written, and every
engine that was started is stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from tuner.errors import TunerError
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.interleaving import Arm, CannotInterleave, InterleavedRounds, evaluate_alone
from tuner.evaluation.open_loop import make_open_loop_plan
from tuner.evaluation.outcomes import count_failures
from tuner.measurement import comparison, sequential
from tuner.metrics import objective as objectives
from tuner.report import formatting
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import rate_in_words
from tuner.study import ab_arms, verification
from tuner.study.ab_arms import ARMS, AbArm
from tuner.study.interruption import resumable
from tuner.study.preparation import needs_of
from tuner.study.progress import Terminal
from tuner.values.round_evaluation import FailureCount, RoundEvaluation
from tuner.values.verdict import Verdict

ASSUMED_SD = 0.03
"""Standard deviation of log ratios before any data: 0.01 to 0.05 (benchmarks/verdict/slices.py)."""
MAX_ROUNDS = 1000
METRICS = (
    "mean",
    "p50",
    "p95",
    "p99",
    "throughput",
    "time-per-item",
    "consistency",
    "cpu",
    "memory",
)
"""Objectives that can be compared; others need a price file, a limit, or a device's energy."""
LOST_ROUNDS = 2
"""Number of consecutive failed rounds after which the comparison is given up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Limit on how much worse B may be."""

    objective: str
    share: float
    text: str

    @property
    def at(self) -> float:
        """Log ratio of B to A at the threshold."""
        is_minimised = objectives.find_objective(self.objective).is_minimised
        return math.log1p(self.share if is_minimised else -self.share)


def parse_threshold(text: str) -> Threshold:
    """Parse a threshold such as `p99 worse by 5 %`, or raise ValueError."""
    words = text.replace("%", " % ").split()
    if len(words) != 5 or words[1:3] != ["worse", "by"] or words[4] != "%":
        raise ValueError(f"{text!r} is not a threshold, expected for example 'p99 worse by 5 %'")
    try:
        share = float(words[3]) / 100
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if words[0] not in METRICS:
        raise ValueError(f"{text!r}: expected one of the metrics {', '.join(METRICS)}")
    most = 10 if objectives.find_objective(words[0]).is_minimised else 1
    if not 0 < share < most:
        raise ValueError(f"{text!r}: expected more than 0 % and less than {100 * most} %")
    return Threshold(objective=words[0], share=share, text=f"{words[0]} worse by {100 * share:g} %")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AbSpec:
    """Specification of a comparison."""

    words: tuple[str, str]
    settings: StudySettings
    """Workload, measurement, time, and default model (or `NO_MODEL`)."""
    limit: Threshold | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AbResult:
    """Result of a comparison."""

    words: tuple[str, str]
    told: tuple[str, str]
    models: tuple[str, str]
    load: str
    verdict: Verdict
    objective: str
    limit: Threshold | None
    decision: str
    """One of within, worse or undecided; without a threshold, the outcome of the verdict."""
    why_in_turn: str | None
    """Reason why the arms were not interleaved, or None."""
    runs: tuple[str, ...]
    """Arms whose servers were already running and were left unchanged."""
    seconds: float
    repeats: int
    """Number of slices or phases repeated or dropped because other processes disturbed them."""
    tallies: Mapping[str, FailureCount]
    """Evaluations and failures by arm; rounds with a failure are not compared."""


def compare(order: AbSpec, *, terminal: Terminal) -> AbResult:
    """Compare B with A.

    Raises:
        UsageError: an input is invalid; nothing was measured.
        TunerError: the comparison failed.
        Interrupted: a signal arrived; nothing was saved.
    """
    begun_s = time.monotonic()
    settings = order.settings
    sides = ab_arms.find_arms(order.words, order.settings, terminal)
    load = make_open_loop_plan(settings.target, seed=settings.search.seed, rate_per_s=None)
    with resumable(None), contextlib.ExitStack() as owned:
        evaluator = owned.enter_context(
            Evaluator(
                model=settings.target.model,
                concurrency=settings.target.in_flight,
                settings=settings.measurement,
                launcher=sides["A"].launcher,
                open_load=load,
            )
        )
        owned.callback(sides["B"].launcher.close)
        source, why = owned.enter_context(_measuring(evaluator, sides))
        if why is not None:
            terminal.say(f"evaluated in turn with restarts, not side by side: {why}")
        rounds = _rounds(order, evaluator, source, terminal, begun_s=begun_s)
    verdict = _verdict(order, rounds)
    return AbResult(
        words=order.words,
        told=(sides["A"].told, sides["B"].told),
        models=(sides["A"].model, sides["B"].model),
        load=_workload_in_words(settings.target),
        verdict=verdict,
        objective=_objective(order),
        limit=order.limit,
        decision=_decision(order, verdict, count_failures(rounds.evaluations)),
        why_in_turn=why,
        runs=tuple(role for role, side in sides.items() if side.is_running),
        seconds=time.monotonic() - begun_s,
        repeats=sum(one.measurement.repeats for one in rounds.evaluations if one.measurement),
        tallies=count_failures(rounds.evaluations),
    )


def _objective(order: AbSpec) -> str:
    return order.limit.objective if order.limit else order.settings.measurement.first


def _rounds(
    order: AbSpec,
    evaluator: Evaluator,
    source: verification.MeasuresRounds,
    terminal: Terminal,
    *,
    begun_s: float,
) -> verification.Rounds:
    settings = order.settings
    name = _objective(order)
    objective = objectives.find_objective(name)
    last_s = time.monotonic()
    rule: sequential.StoppingRule | None = None

    def report(evaluations: Sequence[RoundEvaluation], _evaluation: object) -> None:
        terminal.check()
        _check_arms(evaluations)
        evaluator.stream = 1 + len(evaluations) // len(ARMS)
        if len(evaluations) % 2:
            return
        number, pair = len(evaluations) // 2, {one.role: one for one in evaluations[-2:]}
        found = [pair[role].measurement for role in ARMS]
        if None in found:
            lost = [one for one in pair.values() if one.measurement is None]
            told = "; ".join(f"{one.role} failed: {one.outcome.reason}" for one in lost)
            terminal.say(f"{number:3d} {told}", style="yellow")
            return
        values = [objective.value(one) for one in found if one is not None]
        left_s = settings.search.max_time_s - (time.monotonic() - begun_s)
        terminal.say(
            f"{number:3d} A {formatting.quantity(values[0], objective.unit)}, "
            f"B {formatting.quantity(values[1], objective.unit)}: "
            f"x {values[1] / values[0]:.3f} | {formatting.duration(max(0.0, left_s))} left at most",
        )

    def is_enough(rounds: verification.Rounds) -> bool:
        nonlocal rule, last_s
        now_s = time.monotonic()
        round_s, last_s = now_s - last_s, now_s
        left_s = settings.search.max_time_s - (now_s - begun_s)
        if rounds.complete_rounds < comparison.MIN_PAIRS or left_s <= 0:
            return left_s <= 0 and len(rounds.evaluations) >= len(ARMS) * comparison.MIN_PAIRS
        if rule is None:  # from the last round's time, as servers settle in the first
            fits = rounds.complete_rounds + int(left_s / round_s)
            rule = _rule(order, max(sequential.MIN_PAIRS, min(MAX_ROUNDS, fits)))
        both = rounds.measurements
        return comparison.is_enough(both["A"], both["B"], [name], rule)

    evaluator.stream = 1
    return verification.alternate(
        source, rounds=MAX_ROUNDS, needs=needs_of(settings), report=report, is_enough=is_enough
    )


def _rule(order: AbSpec, most: int) -> sequential.StoppingRule:
    return sequential.StoppingRule(
        most=most, sd=ASSUMED_SD, at=0.0 if order.limit is None else order.limit.at
    )


def _check_arms(evaluations: Sequence[RoundEvaluation]) -> None:
    for role in ARMS:
        own = [one for one in evaluations if one.role == role][-LOST_ROUNDS:]
        if len(own) == LOST_ROUNDS and all(one.measurement is None for one in own):
            raise TunerError(f"{role} cannot be measured: {own[-1].outcome.reason}")


def _verdict(order: AbSpec, rounds: verification.Rounds) -> Verdict:
    if rounds.complete_rounds < comparison.MIN_PAIRS:
        reasons = [one.outcome.reason for one in rounds.evaluations if one.measurement is None]
        why = f": {reasons[-1]}" if reasons else "; use more time (--max-time)"
        raise TunerError(f"{rounds.complete_rounds} rounds worked, too few to compare{why}")
    found = comparison.compare(
        default=rounds.measurements["A"],
        best=rounds.measurements["B"],
        objective=_objective(order),
        rule=_rule(order, max(rounds.complete_rounds, comparison.MIN_PAIRS)),
        names=ARMS,
    )
    return dataclasses.replace(
        found, evaluation_sd=verification.evaluation_sd(rounds.evaluations, ARMS)
    )


def _decision(order: AbSpec, verdict: Verdict, tallies: Mapping[str, FailureCount]) -> str:
    """Apply the threshold to the interval; if B failed more often, it is never "within"."""
    if order.limit is None:
        return verdict.outcome
    low, high = verdict.interval.low, verdict.interval.high
    assert low is not None
    assert high is not None
    ends = [math.log(low) - order.limit.at, math.log(high) - order.limit.at]
    if not objectives.find_objective(order.limit.objective).is_minimised:
        ends = [-end for end in reversed(ends)]
    if ends[1] <= 0:
        return "undecided" if fails_more(tallies) else "within"
    return "worse" if ends[0] > 0 else "undecided"


def fails_more(tallies: Mapping[str, FailureCount]) -> bool:
    """Whether evaluations of B failed more often than those of A."""
    return tallies["B"].failed > tallies["A"].failed


@contextlib.contextmanager
def _measuring(
    evaluator: Evaluator, arms: Mapping[str, AbArm]
) -> Iterator[tuple[verification.MeasuresRounds, str | None]]:
    contenders = {
        role: Arm(
            launcher=side.launcher,
            configuration=side.configuration,
            payloads_of=side.payloads_of,
        )
        for role, side in arms.items()
    }
    try:
        residents = InterleavedRounds.open(evaluator, contenders, latency_s=0.0)
    except CannotInterleave as error:
        alone = functools.partial(evaluate_alone, evaluator)
        yield verification.SequentialRounds(alone, contenders), str(error)
        return
    with residents:
        yield residents, None


def _workload_in_words(target: TargetSettings) -> str:
    load = f"{target.concurrency:,} in flight" if target.concurrency else "a trace"
    load = load if target.rate is None else rate_in_words(target.rate)
    return load if target.client_batch == 1 else f"{load}, {target.client_batch} items each"
