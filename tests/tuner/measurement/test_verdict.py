"""The verdict that ships, by simulation: comparisons from their pairs of launches to what is claimed.

Each case draws comparisons of at most 30 pairs, as the logarithms of their ratios, ends them by the shipped
`StoppingRule`, and reads `sequential.estimate`. `compare` is held to the same in single comparisons. `RUNS` of each
here; `LUTHIER_VERDICT_RUNS=4000` draws a campaign, whose bounds are as much closer.

The shares that are asserted were counted in 4,000 comparisons each, and a bound lies 1.3 standard errors of
`RUNS` comparisons beyond them. The seed is fixed: with another one a bound fails by chance in one case of
ten. Wider bounds would not tell the method from one that lacks a part of it (the last test here).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from tests.fakes import studies
from tuner import advice
from tuner.measurement import sequential
from tuner.measurement.comparison import compare, is_enough
from tuner.measurement.sequential import (
    ALPHA,
    EQUIVALENCE_MARGIN,
    Estimate,
    StoppingBoundaries,
    StoppingRule,
    estimate,
    looks,
)
from tuner.values.measurement import Measurement
from tuner.values.verdict import Verdict

pytestmark = pytest.mark.slow

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]
Draw = Callable[[np.random.Generator], Array]
RUNS = int(os.environ.get("LUTHIER_VERDICT_RUNS", "400"))
SEED = 4
MOST = 30
"""Pairs, as in a study that nothing is said of."""
EACH_S = 3.4
"""From one round evaluation to the next: its start, its warm-up, its measurement."""
PLAIN = studies.measurement(10.0, np.random.default_rng(0))
RECORD = studies.study(trials=20, has_records=False)


def launch(difference: float, second: float = 0.0) -> Measurement:
    """One whose mean is so far from 10 ms on the log scale, and its p50 from 9.5 ms."""
    return dataclasses.replace(
        PLAIN, mean_ms=10.0 * math.exp(difference), p50_ms=9.5 * math.exp(second)
    )


def verified(*drawn: Array, sd: float) -> Verdict:
    """A verification of pairs that differ so, in one objective or in two."""
    names = ("mean", "p50")[: len(drawn)]
    rule = StoppingRule(most=MOST, sd=sd, objectives=len(names))
    default, best = (
        [launch(0.0) for _ in range(MOST)],
        [launch(*row) for row in zip(*drawn, strict=True)],
    )
    count = 1
    while count < MOST and not is_enough(default[:count], best[:count], names, rule):
        count += 1
    second = "p50" if len(names) > 1 else None
    return compare(default[:count], best[:count], objective="mean", second=second, rule=rule)


def covers(verdict: Verdict, truth: float) -> bool:
    """Whether the interval holds a true difference."""
    low, high = verdict.interval.low, verdict.interval.high
    assert low is not None
    assert high is not None
    return low <= math.exp(truth) <= high


def ended_at(rule: StoppingRule, differences: Array, nodes: Sequence[str] = ()) -> int:
    """Pairs at which a comparison of these ends: at a look, or with the last."""
    values = differences.tolist()
    plan = StoppingBoundaries.of(looks(rule.most), sd=rule.sd, alpha=rule.alpha)
    for look, count in enumerate(plan.looks):
        if count < len(values) and rule._is_told(plan, values[:count], look, nodes[:count]):
            return count
    return len(values)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Claims:
    """What so many comparisons of one objective say."""

    truth: float
    found: tuple[Estimate, ...]
    pairs: Array  # (runs,) at the end

    @classmethod
    def of(
        cls, rule: StoppingRule, drawn: Sequence[Array], truth: float, nodes: Sequence[str] = ()
    ) -> Self:
        """Of the differences of each comparison's pairs, and the true one."""
        pairs = [ended_at(rule, differences, nodes) for differences in drawn]
        found = (
            estimate(differences[:count].tolist(), nodes[:count], alpha=rule.alpha)
            for differences, count in zip(drawn, pairs, strict=True)
        )
        return cls(truth=truth, found=tuple(found), pairs=np.array(pairs))

    @property
    def covered(self) -> float:
        """Share of intervals that hold the truth."""
        return float(np.mean([one.low <= self.truth <= one.high for one in self.found]))

    @property
    def above(self) -> float:
        """Share of estimates that lie above the truth."""
        return float(np.mean([one.value > self.truth for one in self.found]))

    @property
    def better(self) -> Marks:  # (runs,)
        """Which are called better: a difference below 0, of what is made small."""
        return np.array([one.high < 0 for one in self.found])

    @property
    def worse(self) -> Marks:  # (runs,)
        """Which are called worse."""
        return np.array([one.low > 0 for one in self.found])

    def none_is_false(self, better: float, *, truth: float) -> None:
        """No more than this share claims the wrong direction, or any direction of equal ones."""
        assert self.worse.mean() < better + by_chance(better)
        if not truth:
            assert self.better.mean() < better + by_chance(better)


def claims(
    draw: Draw, truth: float, *, sd: float, time_for: int = MOST, nodes: Sequence[str] = ()
) -> Claims:
    """What comes of `RUNS` comparisons."""
    rng = np.random.default_rng(SEED)
    rule = StoppingRule(most=MOST, sd=sd)
    return Claims.of(rule, [draw(rng)[:time_for] for _ in range(RUNS)], truth, nodes)


def by_chance(share: float) -> float:
    """How far a share that is counted in `RUNS` comparisons may be off."""
    return 1.3 * math.sqrt(share * (1 - share) / RUNS)


def normal(mean: float, sd: float) -> Draw:
    """Pairs that differ by chance alone."""
    return lambda rng: rng.normal(mean, sd, MOST)


def doubled(mean: float, sd: float, *, both: bool) -> Draw:
    """One launch in ten takes about twice as long, of the best alone or of either side."""

    def draw(rng: np.random.Generator) -> Array:
        slow = (rng.random((2, MOST)) < 0.1) * rng.uniform(0.3, 1.1, (2, MOST))
        return np.asarray(rng.normal(mean, sd, MOST) + slow[0] - both * slow[1])

    return draw


def moments(mean: float, own: float, parts: Sequence[tuple[float, float]]) -> Draw:
    """Launches in the order of a verification (A B, B A, ...) on a machine whose speed moves.

    Args:
        mean: difference of the two configurations.
        own: standard deviation of a launch about the machine's moment.
        parts: of the speed, each a standard deviation and the seconds after which it has forgotten itself.
    """

    def draw(rng: np.random.Generator) -> Array:
        launches = own * rng.normal(size=2 * MOST)
        for spread, forgets_s in parts:
            kept = math.exp(-EACH_S / forgets_s)
            at = spread * rng.normal()
            for number, shock in enumerate(rng.normal(size=2 * MOST)):
                launches[number] += at
                at = kept * at + spread * math.sqrt(1 - kept**2) * shock
        first, then = launches[::2], launches[1::2]
        return mean + np.where(np.arange(MOST) % 2, first - then, then - first)

    return draw


def drifting(mean: float, sd: float, correlation: float, machines: int = 1) -> Draw:
    """Pairs whose difference moves: a neighbour that hinders one of the two more than the other."""

    def draw(rng: np.random.Generator) -> Array:
        found = list(sd * rng.normal(size=machines))  # which measure in turn
        for shock in rng.normal(size=MOST - machines):
            found.append(
                correlation * found[-machines] + sd * math.sqrt(1 - correlation**2) * shock
            )
        return mean + np.array(found)

    return draw


SPEEDS = {
    "busy": (0.048, ((0.072, 6.2), (0.078, 57.0))),
    "restless": (0.065, ((0.076, 2.2), (0.100, 16.0))),
    "quiet": (0.028, ((0.030, 24.0), (0.019, 196.0))),
}
"""Of the machine on which tables were recorded: how launches and its speed differ on the log scale."""


@pytest.mark.parametrize("presumed", [0.2, 0.5, 1.0, 1.4])
@pytest.mark.parametrize("difference", [0.0, -0.5, -1.0, -1.6, -4.0])
def test_pairs_that_differ_by_chance(difference: float, presumed: float) -> None:
    """Differences in units of a pair's spread; the search has told that spread rightly or not."""
    sd = 0.05
    found = claims(normal(difference * sd, sd), difference * sd, sd=presumed * sd)
    # Where a look waits for a narrow interval, half the spread assumed costs a hundredth.
    covered = 0.938 if (difference, presumed) == (-4.0, 0.5) else 0.945
    assert found.covered > covered - by_chance(covered)
    found.none_is_false(0.026, truth=difference)
    farther = 1 - found.above
    assert farther < 0.54 + by_chance(0.54), "stopping early adds little"


def test_equal_configurations_end_as_no_difference_that_matters() -> None:
    """With little noise the 3 % end is reached before the last pair, and is right as often as it says."""
    rng, sd = np.random.default_rng(SEED), 0.02

    def small(truth: float) -> list[int]:
        """Pairs of those that are shown to be under 3 %."""
        rule = StoppingRule(most=MOST, sd=sd)
        drawn = [rng.normal(truth, sd, MOST) for _ in range(RUNS)]
        counts = [ended_at(rule, one) for one in drawn]
        found = [estimate(one[:count].tolist()) for one, count in zip(drawn, counts, strict=True)]
        return [
            count
            for count, one in zip(counts, found, strict=True)
            if one.low >= -EQUIVALENCE_MARGIN and one.high <= EQUIVALENCE_MARGIN
        ]

    right = small(0.0)
    assert len(right) > 0.99 * RUNS
    assert np.mean(right) < 0.8 * MOST
    assert len(small(EQUIVALENCE_MARGIN)) / RUNS < 0.025 + by_chance(0.025)


def test_a_verification_whose_time_is_up_claims_no_more() -> None:
    """After seven pairs, between two looks."""
    found = claims(normal(0.0, 0.05), 0.0, sd=0.05, time_for=7)
    assert found.pairs.max() == 7
    assert found.covered > 0.95 - by_chance(0.95)
    found.none_is_false(0.025, truth=0.0)


def test_one_slow_launch_counts_for_little() -> None:
    """A launch of the best that took three times as long, as was seen: 26.6 ms among launches of 8.4 ms."""
    rng = np.random.default_rng(0)
    pairs = np.log(8.4 / 16.4) + 0.02 * rng.normal(size=MOST)
    pairs[5] = np.log(26.6 / 16.4)
    found = verified(pairs, sd=0.05)
    assert found.outcome == "better"
    assert covers(found, float(np.log(8.4 / 16.4)))
    assert found.interval.high < 1.1 * found.interval.low, "and does not widen its interval by much"


@pytest.mark.parametrize("difference", [0.0, -0.3])
def test_slow_launches_of_either_side(difference: float) -> None:
    """One in ten takes up to three times as long: less is shown, and no more is claimed."""
    found = claims(doubled(difference, 0.03, both=True), difference, sd=0.05)
    assert found.covered > 0.975 - by_chance(0.975)
    found.none_is_false(0.012, truth=difference)


def test_slow_launches_of_the_best_alone() -> None:
    """One in ten takes about twice as long: what is told is the usual launch, a little too surely."""
    found = claims(doubled(-0.3, 0.03, both=False), -0.3, sd=0.05)
    assert found.covered > 0.915 - by_chance(0.915)
    equal = claims(doubled(0.0, 0.03, both=False), 0.0, sd=0.05)
    assert equal.covered > 0.88 - by_chance(0.88)
    assert equal.better.mean() < 0.005 + by_chance(0.005)


@pytest.mark.parametrize("name", SPEEDS)
@pytest.mark.parametrize("difference", [0.0, -0.1])
def test_a_machine_whose_speed_moves(name: str, difference: float) -> None:
    """What both launches of a pair meet falls out; what remains is noise that the interval knows."""
    own, parts = SPEEDS[name]
    sd = math.sqrt(2) * math.sqrt(own**2 + sum(one**2 for one, _ in parts))
    found = claims(moments(difference, own, parts), difference, sd=sd)
    assert found.covered > 0.945 - by_chance(0.945)
    found.none_is_false(0.026, truth=difference)


@pytest.mark.parametrize("machines", [1, 2, 4])
@pytest.mark.parametrize(
    ("correlation", "covered", "better"), [(0.3, 0.93, 0.036), (0.5, 0.925, 0.038)]
)
def test_a_difference_that_drifts(
    correlation: float, covered: float, better: float, machines: int
) -> None:
    """Somewhat less than is claimed, as docs/measurement.md says; without the widening 68 % and 16 % at 0.5."""
    nodes = [str(place % machines) for place in range(MOST)]
    draw = drifting(0.0, 0.05, correlation, machines)
    found = claims(draw, 0.0, sd=0.05, nodes=nodes)
    assert found.covered > covered - by_chance(covered)
    found.none_is_false(better, truth=0.0)


def two_objectives(rng: np.random.Generator, correlation: float) -> tuple[Array, Array]:
    """Differences of the same pairs in both, of two equal configurations."""
    first, other = 0.05 * rng.normal(size=(2, MOST))
    return first, correlation * first + math.sqrt(1 - correlation**2) * other


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_two_objectives_share_the_error(correlation: float) -> None:
    """Of two equal configurations the best is better in either by chance in one comparison of forty, as with
    one objective."""
    rng = np.random.default_rng(SEED)
    drawn = [two_objectives(rng, correlation) for _ in range(RUNS)]
    rule = StoppingRule(most=MOST, sd=0.05, objectives=2)
    first, second = (Claims.of(rule, side, 0.0) for side in zip(*drawn, strict=True))
    better = first.better | second.better
    assert better.mean() < 0.025 + by_chance(0.025)
    assert 1 - (better | first.worse | second.worse).mean() > 0.95 - by_chance(0.95)


def test_each_of_two_objectives_has_half_of_the_error() -> None:
    """It takes more to stop, and what the same pairs tell at the same look is less, at both ends."""
    alone, shared = StoppingRule(most=MOST, sd=0.05), StoppingRule(most=MOST, sd=0.05, objectives=2)
    assert shared.alpha == alone.alpha / 2 == ALPHA / 2
    rng = np.random.default_rng(0)
    for mean in (0.0, -0.2):
        differences = rng.normal(mean, 0.05, MOST)
        near, far = (
            StoppingBoundaries.of(looks(MOST), sd=0.05, alpha=rule.alpha).boundaries
            for rule in (alone, shared)
        )
        assert all(a <= b for a, b in zip(near, far, strict=True))
        assert near[-1] < far[-1]
        assert ended_at(alone, differences) <= ended_at(shared, differences)
        default, best = [launch(0.0)] * MOST, [launch(one) for one in differences]
        narrow, wide = (
            compare(default, best, objective="mean", rule=rule).interval for rule in (alone, shared)
        )
        assert wide.low is not None
        assert wide.high is not None
        assert narrow.low is not None
        assert narrow.high is not None
        assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mean", [0.0, -0.04, -0.1])
def test_what_is_told_is_what_these_laws_are_of(mean: float, seed: int) -> None:
    """Pairs added one by one and compared end when both objectives have ended, with the same intervals."""
    sd = 0.05
    sides = [mean + side for side in two_objectives(np.random.default_rng(seed), 0.5)]
    for drawn in (sides[:1], sides):
        rule = StoppingRule(most=MOST, sd=sd, objectives=len(drawn))
        found = verified(*drawn, sd=sd)
        count = max(ended_at(rule, one) for one in drawn)
        assert len(found.best) == count
        told = [(found.outcome, found.interval)]
        if found.second is not None:
            told.append((found.second.outcome, found.second.interval))
        for differences, (outcome, interval) in zip(drawn, told, strict=True):
            expected = estimate(differences[:count].tolist(), alpha=rule.alpha)
            assert interval.low == pytest.approx(math.exp(expected.low))
            assert interval.high == pytest.approx(math.exp(expected.high))
            assert (outcome == "better") == (expected.high < 0)
            assert (outcome == "worse") == (expected.low > 0)
        record = dataclasses.replace(RECORD, verdict=found)
        is_better = any(outcome == "better" for outcome, _ in told)
        assert (advice.best_status(record) in {"better", "traded"}) == is_better


def plainly_known(differences: Sequence[float], nodes: Sequence[str] = ()) -> sequential.RobustMean:
    """As if nothing were common to neighbours, and nothing lay far out."""
    del nodes
    values = np.asarray(differences, dtype=float)
    return sequential.RobustMean(float(values.mean()), float(values.std(ddof=1)), len(values) - 1)


def plain_boundaries(at: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """Those of a single look."""
    return (-float(special.ndtri(alpha / 2)),) * len(at)


WITHOUT: dict[str, tuple[tuple[object, str, object], ...]] = {
    "the error shared by objectives": ((StoppingRule, "alpha", property(lambda _: ALPHA)),),
    "the error shared by looks": ((sequential, "_boundaries", plain_boundaries),),
    "an interval that is wider where the difference drifts": (
        (sequential, "robust_mean", plainly_known),
    ),
}
"""What makes up the method, and what stands in its place in one that lacks it."""


@pytest.mark.parametrize(
    ("lacking", "law"),
    [
        (
            "the error shared by objectives",
            functools.partial(test_two_objectives_share_the_error, 0.0),
        ),
        (
            "the error shared by objectives",
            functools.partial(test_each_of_two_objectives_has_half_of_the_error),
        ),
        (
            "the error shared by looks",
            functools.partial(test_pairs_that_differ_by_chance, 0.0, 0.5),
        ),
        (
            "the error shared by looks",
            functools.partial(test_pairs_that_differ_by_chance, 0.0, 1.0),
        ),
        (
            "an interval that is wider where the difference drifts",
            functools.partial(test_a_difference_that_drifts, 0.3, 0.93, 0.036, 1),
        ),
        (
            "an interval that is wider where the difference drifts",
            functools.partial(test_a_difference_that_drifts, 0.5, 0.925, 0.038, 1),
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else one.func.__name__,
)
def test_a_method_that_lacks_something_breaks_these_laws(
    lacking: str, law: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the laws above are worth their time."""
    for owner, name, instead in WITHOUT[lacking]:
        monkeypatch.setattr(owner, name, instead)
    with pytest.raises(AssertionError):
        law()
