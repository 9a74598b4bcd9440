"""Laws of looking at a growing sample."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from tuner.measurement import sequential
from tuner.measurement.sequential import (
    StoppingBoundaries,
    StoppingRule,
    alpha_spending,
    estimate,
    looks,
    read,
    robust_mean,
)

PLANS = [StoppingBoundaries.of(looks(most), sd=1.0) for most in (6, 8, 12, 20, 40)]


def stopped(plan: StoppingBoundaries, differences: np.ndarray) -> int:
    """Index of the look at which it stops."""
    for look in range(len(plan.looks)):
        if read(plan, differences, look).is_crossed:
            return look
    return len(plan.looks) - 1


@given(st.integers(2, 400))
def test_looks_ascend_to_the_most_pairs(most: int) -> None:
    at = looks(most)
    assert at[-1] == most
    assert all(b > a for a, b in itertools.pairwise(at))
    assert at[0] == min(most, sequential.MIN_PAIRS) or len(at) == 1


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.looks))
def test_boundaries_spend_the_error_as_planned(plan: StoppingBoundaries) -> None:
    """By counting sums of normal differences that are outside at some look."""
    rng = np.random.default_rng(0)
    sums = np.cumsum(rng.normal(size=(40_000, plan.looks[-1])), axis=1)
    outside = np.zeros(len(sums), dtype=bool)
    for count, boundary in zip(plan.looks, plan.boundaries, strict=True):
        outside |= np.abs(sums[:, count - 1]) > boundary * math.sqrt(count)
        assert outside.mean() == pytest.approx(alpha_spending(count / plan.looks[-1]), abs=4e-3)


def test_one_look_is_the_plain_test() -> None:
    """Of differences of which none lies far out, nor is like its neighbours."""
    plan = StoppingBoundaries.of([10], sd=0.3)
    assert plan.boundaries[0] == pytest.approx(-special.ndtri(0.025), rel=1e-6)
    differences = 0.3 + np.array([-1.0, 0.4, 0.9, -0.7, 1.4, -0.2, -1.2, 0.1, 0.6, -0.3])
    found = estimate(differences.tolist())
    reach = float(special.stdtrit(9, 0.975)) * differences.std(ddof=1) / math.sqrt(10)
    assert found.value == pytest.approx(differences.mean(), abs=1e-4)
    assert found.low == pytest.approx(differences.mean() - reach, abs=1e-4)
    assert found.high == pytest.approx(differences.mean() + reach, abs=1e-4)


def test_the_published_boundaries_of_five_equal_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lan and DeMets' approximation of O'Brien and Fleming's, two-sided 5 % (Reboussin et al., 2000)."""
    monkeypatch.setattr(sequential, "LATE", 1.0)
    boundaries = sequential._boundaries.__wrapped__((1000, 2000, 3000, 4000, 5000), 0.05)
    assert boundaries == pytest.approx((4.877, 3.357, 2.680, 2.290, 2.031), abs=2e-3)


def test_nearly_all_of_the_error_is_left_for_the_end() -> None:
    """At half of the pairs a mean lies nearly four standard errors out before it ends a comparison."""
    plan = StoppingBoundaries.of([1000, 2000, 3000, 4000, 5000], sd=1.0)
    assert plan.boundaries[1] > 5
    assert plan.boundaries[-1] == pytest.approx(1.98, abs=0.01)


@given(st.integers(0, 10_000), st.floats(-5, 5), st.floats(0.01, 10))
def test_the_middle_moves_with_the_differences(seed: int, shift: float, scale: float) -> None:
    """In other units, from another origin, and turned over, the same is known."""
    values = np.random.default_rng(seed).standard_t(2, 12)
    plain, moved = robust_mean(values.tolist()), robust_mean((shift + scale * values).tolist())
    assert moved.mean == pytest.approx(shift + scale * plain.mean, abs=1e-6 * scale + 1e-9)
    assert moved.sd == pytest.approx(scale * plain.sd, rel=1e-6)
    assert robust_mean((-values).tolist()).mean == pytest.approx(-plain.mean, abs=1e-6)
    assert moved.degrees == pytest.approx(plain.degrees)


def test_a_difference_far_out_counts_for_little() -> None:
    """However far it lies; and of a normal sample the middle is known nearly as well as the mean."""
    rng = np.random.default_rng(0)
    values = rng.normal(0.0, 1.0, 12)
    far, farther = (robust_mean([*values[:11], away]) for away in (20.0, 2000.0))
    assert far.mean == pytest.approx(farther.mean, abs=1e-6)
    assert abs(far.mean - robust_mean(values.tolist()).mean) < 0.5
    samples = rng.normal(size=(3000, 20))
    middles = np.array([robust_mean(sample.tolist()).mean for sample in samples])
    assert middles.std() < 1.03 * samples.mean(axis=1).std()


def test_differences_that_are_like_their_neighbours_count_for_fewer() -> None:
    """Their middle is known less well than their number says, and of fewer degrees of freedom."""
    drifting = np.sin(np.arange(20) / 3)
    mixed = drifting[np.random.default_rng(0).permutation(20)]
    slow, quick = robust_mean(drifting.tolist()), robust_mean(mixed.tolist())
    assert slow.sd > 1.5 * quick.sd
    assert slow.degrees < 0.5 * quick.degrees == 9.5


def in_turn(
    machines: int, correlation: float, count: int, rng: np.random.Generator
) -> tuple[list[float], list[str]]:
    """Differences without a mean that drift on machines of their own, each measured in its turn."""
    found = rng.normal(size=machines).tolist()
    for shock in rng.normal(size=count):
        found.append(correlation * found[-machines] + math.sqrt(1 - correlation**2) * shock)
    return found[:count], [str(place % machines) for place in range(count)]


@pytest.mark.parametrize("machines", [1, 2, 4])
def test_a_difference_that_drifts_on_several_machines_is_rarely_shown(machines: int) -> None:
    """As rarely as on one: with neighbours of different machines as neighbours, 18 to 20 % are."""
    rng = np.random.default_rng(1)
    found = [estimate(*in_turn(machines, 0.5, 24, rng)).is_shown for _ in range(300)]
    assert np.mean(found) < 0.1


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 4))
def test_machines_may_take_turns_in_any_way(seed: int, count: int, machines: int) -> None:
    """Only each machine's own order counts, and a single machine is as if it had no name."""
    rng = np.random.default_rng(seed)
    differences, nodes = in_turn(machines, 0.9, count, rng)
    by_node = sorted(range(count), key=lambda place: nodes[place])
    mixed = sorted(by_node, key=lambda place: (place // machines, rng.random()))
    one, other = (
        robust_mean([differences[place] for place in order], [nodes[place] for place in order])
        for order in (by_node, mixed)
    )
    assert one == pytest.approx(other)
    assert robust_mean(differences, ["a"] * count) == robust_mean(differences)


@pytest.mark.slow
@pytest.mark.parametrize("presumed", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("drift", [0.0, 0.6, 1.5, 2.5])
def test_the_interval_covers_and_the_estimate_is_in_the_middle(
    drift: float, presumed: float
) -> None:
    """Wherever the truth lies, and though the presumed spread is 40 % off.

    Of 300 samples of an exact interval, 0.915 to 0.98 cover in all but one of 100 runs of this test.
    """
    plan = StoppingBoundaries.of(looks(16), sd=presumed)
    rng, runs = np.random.default_rng(4), 300
    covered = above = 0
    for _ in range(runs):
        differences = rng.normal(drift, 1.0, 16)
        found = estimate(differences[: plan.looks[stopped(plan, differences)]].tolist())
        assert found.low <= found.value <= found.high
        covered += found.low <= drift <= found.high
        above += found.value > drift
    assert 0.91 <= covered / runs <= 0.985
    assert 0.41 <= above / runs <= 0.59


@given(st.integers(0, 10_000), st.floats(0.01, 100), st.sampled_from(PLANS[:3]))
def test_units_do_not_matter(seed: int, unit: float, plan: StoppingBoundaries) -> None:
    differences = np.random.default_rng(seed).normal(0.5, 1.0, plan.looks[-1])
    scaled = StoppingBoundaries.of(plan.looks, sd=unit)
    look = stopped(plan, differences)
    assert stopped(scaled, unit * differences) == look
    here, there = estimate(differences.tolist()), estimate((unit * differences).tolist())
    assert there.low == pytest.approx(unit * here.low, abs=1e-3 * unit)
    assert there.high == pytest.approx(unit * here.high, abs=1e-3 * unit)


def test_equal_differences_have_no_width() -> None:
    plan = StoppingBoundaries.of([6], sd=0.1)
    assert estimate([0.25] * 6) == sequential.Estimate(value=0.25, low=0.25, high=0.25)
    assert read(plan, [0.25] * 6, 0).is_crossed
    assert not read(plan, [0.0] * 6, 0).is_crossed


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="spread"):
        StoppingBoundaries.of([6], sd=0.0)


def test_a_clear_difference_with_a_wide_interval_needs_more_pairs() -> None:
    """Six pairs, one of them disturbed, show 38 % less within 9 points; without that one they are enough."""
    rule = StoppingRule(most=30, sd=0.03)
    calm = [-0.48, -0.47, -0.49, -0.48, -0.475, -0.485]
    disturbed = [-0.48, -0.37, -0.62, -0.48, -0.35, -0.58]
    assert rule.is_enough(calm)
    assert estimate(disturbed).is_shown
    assert not rule.is_enough(disturbed)
