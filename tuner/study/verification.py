"""Verification: arms in alternating rounds, and their difference with an interval.

Each round evaluates every arm, the next one in reverse order (A B B A), so that drift favours no
arm. Engines that run at once also alternate within a round (`tuner.evaluation.interleaving`). A
failure voids the pair of its round and counts against its arm (`tuner.advice`).

The order depends only on an evaluation's number, so an interrupted verification can resume. A round
that was cut short is repeated, since drift between commands would not cancel. Constraints are
judged over all evaluations of an arm. Statistics are in `tuner.measurement`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from tuner.errors import LaunchFailed
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.interleaving import Arm, CannotInterleave, InterleavedRounds
from tuner.measurement import comparison, sequential, variance_components
from tuner.measurement.outcome import EvaluationRequirements
from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.trial import Trial
from tuner.values.verdict import Verdict

Report = Callable[[Sequence[RoundEvaluation], Evaluation], None]
"""Function called after each evaluation with all results, newest last, and its own details."""

T = TypeVar("T")
IsEnough = Callable[["Rounds"], bool]


class MeasuresRounds(Protocol):
    """Source of rounds, interleaved or sequential."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms, in the order of the first round."""

    def round(self, arms: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        """Yield one evaluation per arm in the given order, including failed ones."""


class SequentialRounds(Generic[T]):
    """Sequential rounds, in which each arm is evaluated alone, on a new server."""

    def __init__(self, evaluate: Callable[[T], Evaluation], evaluated: Mapping[str, T]) -> None:
        self._evaluate = evaluate
        self._evaluated = evaluated

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return tuple(self._evaluated)

    def round(self, arms: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        """Yield one evaluation per arm in the given order."""
        for role in arms:
            yield role, self._evaluate(self._evaluated[role])


@contextlib.contextmanager
def open_rounds(
    evaluator: Evaluator,
    configurations: Mapping[str, Configuration],
    *,
    latency_s: float,
    say: Callable[[str], None],
) -> Iterator[MeasuresRounds]:
    """Yield interleaved rounds if possible, otherwise sequential ones on new servers.

    Args:
        latency_s: mean latency of the slowest arm, or 0.
    """
    why = evaluator.why_not_interleaved
    if why is None:
        contenders = {
            role: Arm(launcher=evaluator.launcher, configuration=configuration)
            for role, configuration in configurations.items()
        }
        try:
            residents = InterleavedRounds.open(evaluator, contenders, latency_s=latency_s)
        except (CannotInterleave, LaunchFailed) as error:
            why = str(error)
        else:
            with residents:
                yield residents
            return
    say(f"evaluated in turn with restarts, not side by side: {why}")
    yield SequentialRounds(evaluator.evaluate_on_new_server, configurations)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Round evaluations, and the measurements of complete rounds by arm."""

    evaluations: tuple[RoundEvaluation, ...]
    """All round evaluations, including failed ones."""
    measurements: Mapping[str, tuple[Measurement, ...]]
    nodes: tuple[str, ...] = ()
    """Machine of each complete round."""

    @property
    def complete_rounds(self) -> int:
        """Number of rounds in which no arm failed."""
        return min((len(found) for found in self.measurements.values()), default=0)


def alternate(
    source: MeasuresRounds,
    *,
    rounds: int,
    needs: EvaluationRequirements,
    report: Report,
    done: Sequence[RoundEvaluation] = (),
    is_enough: IsEnough | None = None,
) -> Rounds:
    """Evaluate all arms in every round.

    Args:
        rounds: total number of rounds.
        done: evaluations from an earlier command; whole rounds are reused.
        is_enough: whether to stop after a round; None to run all rounds.
    """
    roles = source.arms
    evaluations = list(whole(done, len(roles)))
    waiting = list(order(roles, rounds))
    while len(evaluations) < len(waiting):
        if evaluations and is_enough is not None and is_enough(count_rounds(evaluations, roles)):
            break
        for role, evaluation in source.round(
            waiting[len(evaluations) : len(evaluations) + len(roles)]
        ):
            evaluations.append(_judge(role, evaluation, needs))
            report(tuple(evaluations), evaluation)
    return count_rounds(evaluations, roles)


def slowest_latency_s(trials: Iterable[Trial], configurations: Iterable[Configuration]) -> float:
    """Return the highest mean latency of any of these configurations in the trials, or 0 if none."""
    wanted = set(configurations)
    means = [
        trial.measured.mean_ms
        for trial in trials
        if trial.configuration in wanted and trial.measured is not None
    ]
    return max(means, default=0.0) / 1e3


def whole(evaluations: Sequence[RoundEvaluation], size: int) -> Sequence[RoundEvaluation]:
    """Return the evaluations of whole rounds, without an interrupted round."""
    return evaluations[: len(evaluations) // size * size]


def _judge(arm: str, evaluation: Evaluation, needs: EvaluationRequirements) -> RoundEvaluation:
    outcome = evaluation.outcome
    if evaluation.measurement is not None:
        outcome = needs.outcome_of(evaluation.measurement)
    is_ok = outcome.status == "ok"
    return RoundEvaluation(
        role=arm,
        outcome=outcome,
        measurement=evaluation.measurement if is_ok else None,
        slices_ms=evaluation.slices_ms if is_ok else (),
        node=evaluation.node,
    )


def order(arms: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield the arm of each evaluation: A B B A A B ..."""
    for index in range(rounds):
        yield from arms if index % 2 == 0 else reversed(arms)


def among(evaluations: Sequence[RoundEvaluation], *arms: str) -> Rounds:
    """Return whole rounds of these arms; failures of other arms do not count."""
    return count_rounds([evaluation for evaluation in evaluations if evaluation.role in arms], arms)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Comparison of default and best in pairs, in studies and replays."""

    names: Sequence[str]
    """Objectives, which share the error rate."""
    most: int
    """Maximum number of pairs."""
    sd: float
    """Assumed standard deviation of the pairs' log ratios."""

    @property
    def rule(self) -> sequential.StoppingRule:
        """Stopping rule of the comparison."""
        return sequential.StoppingRule(most=self.most, sd=self.sd, objectives=len(self.names))

    def is_enough(self, rounds: Rounds) -> bool:
        """Whether the pairs so far are enough to end the comparison."""
        pairs = among(rounds.evaluations, "default", "best")
        both = pairs.measurements
        return comparison.is_enough(
            both["default"], both["best"], self.names, self.rule, pairs.nodes
        )

    def verdict(self, rounds: Rounds) -> Verdict | None:
        """Return the verdict, or None if there are too few pairs."""
        pairs = among(rounds.evaluations, "default", "best")
        if pairs.complete_rounds < comparison.MIN_PAIRS:
            return None
        found = comparison.compare(
            default=pairs.measurements["default"],
            best=pairs.measurements["best"],
            objective=self.names[0],
            second=self.names[1] if len(self.names) > 1 else None,
            rule=self.rule,
            nodes=pairs.nodes,
        )
        return dataclasses.replace(found, evaluation_sd=evaluation_sd(rounds.evaluations))


def evaluation_sd(
    evaluations: Sequence[RoundEvaluation], arms: Sequence[str] = ("default", "best")
) -> float | None:
    """Return the sd of two arms' log ratio between evaluations, beyond the sd within them.

    Args:
        evaluations: evaluations of whole rounds; rounds with a failure are skipped.

    Returns:
        0 if chance explains the spread; None if there are fewer than two rounds, or if no round has
        two quartets.
    """
    sides = [[evaluation for evaluation in evaluations if evaluation.role == role] for role in arms]
    found = variance_components.components(
        [
            [
                _ratios(first.slices_ms, second.slices_ms)
                for first, second in zip(*sides, strict=True)
                if first.slices_ms and len(first.slices_ms) == len(second.slices_ms)
            ]
        ]
    )
    return None if found is None else found.evaluation_sd


def _ratios(first_ms: Sequence[float], second_ms: Sequence[float]) -> list[float]:
    """Return the mean ratio of each quartet of slices (ABBA), skipping incomplete quartets."""
    ratios = [
        b / a if a > 0.0 and b > 0.0 and math.isfinite(a + b) else math.nan
        for a, b in zip(first_ms, second_ms, strict=True)
    ]
    pairs = zip(ratios[::2], ratios[1::2], strict=False)
    return [math.sqrt(one * other) for one, other in pairs if not math.isnan(one * other)]


def count_rounds(evaluations: Sequence[RoundEvaluation], arms: Sequence[str]) -> Rounds:
    """Return the measurements of complete rounds by arm."""
    found: dict[str, list[Measurement]] = {role: [] for role in arms}
    nodes: list[str] = []
    size = len(arms)
    for first in range(0, len(evaluations), size):
        seen = {
            evaluation.role: evaluation.measurement
            for evaluation in evaluations[first : first + size]
            if evaluation.measurement is not None
        }
        if len(seen) == size:
            nodes.append(evaluations[first].node)
            for role, measurement in seen.items():
                found[role].append(measurement)
    return Rounds(
        evaluations=tuple(evaluations),
        measurements={role: tuple(measurements) for role, measurements in found.items()},
        nodes=tuple(nodes),
    )
