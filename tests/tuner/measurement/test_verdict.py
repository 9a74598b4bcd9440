"""The verdict that ships, by simulation: whole verifications, from pairs of launches to what is advised.

Each case draws verifications of at most 20 pairs of launches, ends them as a study does, and counts how
often the interval holds the truth and how often the best is called better though it is not. `RUNS` of each
here; `LUTHIER_VERDICT_RUNS=4000` draws a campaign, whose bounds are as much closer. Seeds are fixed; with others a
case fails by chance in about one of 5,000 (bounds are 3.7 standard errors from
what was counted in 600 to 1,500 runs).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes import studies
from tuner import advice
from tuner.measurement.comparison import Rule, compare, is_enough
from tuner.values import Measurement, Verdict

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Array]
RUNS = int(os.environ.get("LUTHIER_VERDICT_RUNS", "150"))
MOST = 20
"""Pairs, as in a study that nothing is said of."""
EACH_S = 3.4
"""From one fresh start to the next: its start, its warm-up, its measurement."""
PLAIN = studies.measurement(10.0, np.random.default_rng(0))
RECORD = studies.study(trials=20, has_records=False)


def launch(difference: float, second: float = 0.0) -> Measurement:
    """One whose mean is so far from 10 ms on the log scale, and its p50 from 9.5 ms."""
    return dataclasses.replace(
        PLAIN, mean_ms=10.0 * math.exp(difference), p50_ms=9.5 * math.exp(second)
    )


def verified(*drawn: Array, sd: float, time_for: int = MOST) -> Verdict:
    """A verification of pairs that differ so, in one objective or in two; time is up after some pairs."""
    names = ("mean", "p50")[: len(drawn)]
    rule = Rule(most=MOST, sd=sd, objectives=len(names))
    default, best = (
        [launch(0.0) for _ in range(MOST)],
        [launch(*row) for row in zip(*drawn, strict=True)],
    )
    count = 1
    while count < time_for and not is_enough(default[:count], best[:count], names, rule):
        count += 1
    second = "p50" if len(names) > 1 else None
    return compare(default[:count], best[:count], objective="mean", second=second, rule=rule)


@dataclasses.dataclass(frozen=True)
class Shares:
    """Of so many verifications."""

    covered: float
    better: float
    worse: float
    pairs: float


def shares(draw: Draw, truth: float, *, sd: float, time_for: int = MOST) -> Shares:
    """What comes of `RUNS` verifications."""
    rng = np.random.default_rng(0)
    found = [verified(draw(rng), sd=sd, time_for=time_for) for _ in range(RUNS)]
    return Shares(
        covered=float(np.mean([covers(one, truth) for one in found])),
        better=float(np.mean([one.outcome == "better" for one in found])),
        worse=float(np.mean([one.outcome == "worse" for one in found])),
        pairs=float(np.mean([len(one.best) for one in found])),
    )


def covers(verdict: Verdict, truth: float) -> bool:
    """Whether the interval holds a true difference."""
    low, high = verdict.interval.low, verdict.interval.high
    assert low is not None
    assert high is not None
    return low <= math.exp(truth) <= high


def by_chance(share: float) -> float:
    """How far a share that was counted once may be off."""
    return 3.7 * math.sqrt(share * (1 - share) / RUNS)


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


def drifting(mean: float, sd: float, correlation: float) -> Draw:
    """Pairs whose difference moves: a neighbour that hinders one of the two more than the other."""

    def draw(rng: np.random.Generator) -> Array:
        found = [sd * rng.normal()]
        for shock in rng.normal(size=MOST - 1):
            found.append(correlation * found[-1] + sd * math.sqrt(1 - correlation**2) * shock)
        return mean + np.array(found)

    return draw


SPEEDS = {
    "busy": (0.048, ((0.072, 6.2), (0.078, 57.0))),
    "restless": (0.065, ((0.076, 2.2), (0.100, 16.0))),
    "quiet": (0.028, ((0.030, 24.0), (0.019, 196.0))),
}
"""Of the machine on which surfaces were recorded: how launches and its speed differ on the log scale."""


@pytest.mark.parametrize("presumed", [0.2, 0.5, 1.0, 1.4])
@pytest.mark.parametrize("difference", [0.0, -0.5, -1.0, -1.6, -4.0])
def test_pairs_that_differ_by_chance(difference: float, presumed: float) -> None:
    """Differences in units of a pair's spread; the search has told that spread rightly or not."""
    sd = 0.05
    found = shares(normal(difference * sd, sd), difference * sd, sd=presumed * sd)
    covered, wrong = (0.94, 0.03) if presumed >= 1 else (0.925, 0.04)
    assert found.covered > covered - by_chance(covered)
    assert found.worse < wrong + by_chance(wrong)
    if not difference:
        assert found.better < wrong + by_chance(wrong)


def test_equal_configurations_end_as_no_difference_that_matters() -> None:
    """With little noise the 3 % end is reached before the last pair, and is right as often as it says."""
    rng, sd = np.random.default_rng(0), 0.02
    found = [verified(rng.normal(0.0, sd, MOST), sd=sd) for _ in range(RUNS)]
    small = [one for one in found if "shown to be under 3 %" in one.text]
    assert np.mean([len(one.best) for one in small]) < 0.7 * MOST
    assert len(small) > 0.9 * RUNS
    beyond = [verified(rng.normal(math.log(1.03), sd, MOST), sd=sd) for _ in range(RUNS)]
    wrong = np.mean(["shown to be under 3 %" in one.text for one in beyond])
    assert wrong < 0.05 + by_chance(0.05)


def test_a_verification_whose_time_is_up_claims_no_more() -> None:
    """After seven pairs, between two looks."""
    found = shares(normal(0.0, 0.05), 0.0, sd=0.05, time_for=7)
    assert found.pairs <= 7
    assert found.covered > 0.95 - by_chance(0.95)
    assert found.better < 0.025 + by_chance(0.025)


def test_one_slow_launch_does_not_end_a_verification() -> None:
    """A launch of the best that took three times as long, as was seen: 26.6 ms among launches of 8.4 ms."""
    rng = np.random.default_rng(0)
    pairs = np.log(8.4 / 16.4) + 0.02 * rng.normal(size=MOST)
    pairs[5] = np.log(26.6 / 16.4)
    found = verified(pairs, sd=0.05)
    assert len(found.best) > 6, "the pairs' own interval is wide, and there is time"
    assert found.outcome == "better"
    assert covers(found, float(np.log(8.4 / 16.4)))


@pytest.mark.parametrize("difference", [0.0, -0.3])
def test_slow_launches_of_either_side(difference: float) -> None:
    """One in ten takes up to three times as long: less is shown, and no more is claimed."""
    found = shares(doubled(difference, 0.03, both=True), difference, sd=0.05)
    assert found.covered > 0.94 - by_chance(0.94)
    assert found.worse < 0.025 + by_chance(0.025)


@pytest.mark.parametrize("name", SPEEDS)
@pytest.mark.parametrize("difference", [0.0, -0.1])
def test_a_machine_whose_speed_moves(name: str, difference: float) -> None:
    """What both launches of a pair meet falls out; what remains is noise that the interval knows."""
    own, parts = SPEEDS[name]
    sd = math.sqrt(2) * math.sqrt(own**2 + sum(one**2 for one, _ in parts))
    found = shares(moments(difference, own, parts), difference, sd=sd)
    assert found.covered > 0.94 - by_chance(0.94)
    assert found.worse < 0.025 + by_chance(0.025)


@pytest.mark.parametrize(
    ("correlation", "covered", "better"), [(0.3, 0.87, 0.06), (0.5, 0.81, 0.09)]
)
def test_a_difference_that_drifts(correlation: float, covered: float, better: float) -> None:
    """Less than is claimed, as docs/measurement.md says; without the widening 69 % and 15 % at 0.5."""
    found = shares(drifting(0.0, 0.05, correlation), 0.0, sd=0.05)
    assert found.covered > covered - by_chance(covered)
    assert found.better < better + by_chance(better)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_two_objectives_share_the_error(correlation: float) -> None:
    """Of two equal configurations the best is advised by chance in one study of forty, as with one objective."""
    rng, advised, held = np.random.default_rng(0), 0, 0
    for _ in range(2 * RUNS):
        first, other = 0.05 * rng.normal(size=(2, MOST))
        second = correlation * first + math.sqrt(1 - correlation**2) * other
        found = verified(first, second, sd=0.05)
        assert found.second is not None
        record = dataclasses.replace(RECORD, verdict=found)
        advised += advice.standing(record) in {"better", "traded"}
        held += found.outcome == found.second.outcome == "no difference shown"
    assert advised / RUNS / 2 < 0.025 + by_chance(0.025)
    assert held / RUNS / 2 > 0.95 - by_chance(0.95)
