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
from tuner.measurement.sequential import ALPHA, Ended, Plan, estimate, looks, read, spent

PLANS = [Plan.of(looks(most), sd=1.0) for most in (6, 8, 12, 20, 40)]


def stopped(plan: Plan, differences: np.ndarray) -> int:
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
    assert at[0] == min(most, sequential.LEAST_PAIRS) or len(at) == 1


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.looks))
def test_boundaries_spend_the_error_as_planned(plan: Plan) -> None:
    """By counting sums of normal differences that are outside at some look."""
    rng = np.random.default_rng(0)
    sums = np.cumsum(rng.normal(size=(40_000, plan.looks[-1])), axis=1)
    outside = np.zeros(len(sums), dtype=bool)
    for count, boundary in zip(plan.looks, plan.boundaries, strict=True):
        outside |= np.abs(sums[:, count - 1]) > boundary * math.sqrt(count)
        assert outside.mean() == pytest.approx(spent(count / plan.looks[-1]), abs=4e-3)


def test_one_look_is_the_plain_test() -> None:
    plan = Plan.of([10], sd=0.3)
    assert plan.boundaries[0] == pytest.approx(-special.ndtri(0.025), rel=1e-6)
    differences = np.random.default_rng(1).normal(0.3, 1.0, 10)
    found = estimate(plan, differences, 0)
    reach = float(special.stdtrit(9, 0.975)) * differences.std(ddof=1) / math.sqrt(10)
    assert found.value == pytest.approx(differences.mean(), abs=1e-4)
    assert found.low == pytest.approx(differences.mean() - reach, abs=1e-4)
    assert found.high == pytest.approx(differences.mean() + reach, abs=1e-4)


def test_the_published_boundaries_of_five_equal_looks() -> None:
    """Lan and DeMets' approximation of O'Brien and Fleming's, two-sided 5 % (Reboussin et al., 2000)."""
    plan = Plan.of([1000, 2000, 3000, 4000, 5000], sd=1.0)
    assert plan.boundaries == pytest.approx((4.877, 3.357, 2.680, 2.290, 2.031), abs=2e-3)


@pytest.mark.parametrize("presumed", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("drift", [0.0, 0.6, 1.5, 2.5])
def test_the_interval_covers_and_the_estimate_is_in_the_middle(
    drift: float, presumed: float
) -> None:
    """Wherever the truth lies, and though the presumed spread is 40 % off.

    Of 300 samples of an exact interval, 0.915 to 0.98 cover in all but one of 100 runs of this test. Whether one
    does is read off the tail at the truth; in every tenth sample the ends are sought as well, and agree.
    """
    plan = Plan.of(looks(16), sd=presumed)
    rng, runs = np.random.default_rng(4), 300
    covered = above = 0
    for number in range(runs):
        differences = rng.normal(drift, 1.0, 16)
        look = stopped(plan, differences)
        tail = Ended.of(plan, differences, look).tail(drift)
        is_held = ALPHA / 2 <= tail <= 1 - ALPHA / 2
        covered += is_held
        above += tail < 0.5
        if number % 10 == 0:
            found = estimate(plan, differences, look)
            assert (found.low <= drift <= found.high, found.value > drift) == (is_held, tail < 0.5)
    assert 0.91 <= covered / runs <= 0.985
    assert 0.41 <= above / runs <= 0.59


@given(st.integers(0, 10_000), st.floats(-2, 2), st.sampled_from(PLANS[1:4]))
def test_the_estimate_lies_in_its_interval(seed: int, drift: float, plan: Plan) -> None:
    differences = np.random.default_rng(seed).normal(drift, 1.0, plan.looks[-1])
    found = estimate(plan, differences, stopped(plan, differences))
    assert found.low <= found.value <= found.high


@given(st.integers(0, 10_000), st.floats(0.01, 100), st.sampled_from(PLANS[:3]))
def test_units_do_not_matter(seed: int, unit: float, plan: Plan) -> None:
    differences = np.random.default_rng(seed).normal(0.5, 1.0, plan.looks[-1])
    scaled = Plan.of(plan.looks, sd=unit)
    look = stopped(plan, differences)
    assert stopped(scaled, unit * differences) == look
    here, there = estimate(plan, differences, look), estimate(scaled, unit * differences, look)
    assert there.low == pytest.approx(unit * here.low, abs=1e-3 * unit)
    assert there.high == pytest.approx(unit * here.high, abs=1e-3 * unit)


def test_an_earlier_end_spends_what_is_left() -> None:
    planned = Plan.of(looks(20), sd=1.0)
    ended = Plan.of((*planned.looks[:2], 9), sd=1.0, most=20)
    assert ended.boundaries[:2] == planned.boundaries[:2]
    assert ended.boundaries[2] < planned.boundaries[2]


def test_equal_differences_have_no_width() -> None:
    plan = Plan.of([6], sd=0.1)
    assert estimate(plan, [0.25] * 6, 0) == sequential.Estimate(value=0.25, low=0.25, high=0.25)
    assert read(plan, [0.25] * 6, 0).is_crossed
    assert not read(plan, [0.0] * 6, 0).is_crossed


@pytest.mark.parametrize("at", [[], [1], [6, 6], [8, 6]])
def test_looks_that_do_not_ascend_are_refused(at: list[int]) -> None:
    with pytest.raises(ValueError, match="looks"):
        Plan.of(at, sd=1.0)


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="spread"):
        Plan.of([6], sd=0.0)
