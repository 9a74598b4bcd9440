"""Who wins the final selection: the belief, the launches, and preference among those that cannot be told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement.best_arm import Posterior, choose

NOISE = 0.05


def belief(*means: float, sd: float = 0.1) -> Posterior:
    return Posterior(
        mean=np.array(means), covariance=sd**2 * np.eye(len(means)), evaluation_sd=NOISE
    )


def launches(*means: float, rounds: int = 4, seed: int = 0, shared: float = 0.0) -> np.ndarray:
    """Objectives of launches, with a shift that all launches of a round share."""
    rng = np.random.default_rng(seed)
    noise = NOISE * rng.normal(size=(rounds, len(means))) + shared * rng.normal(size=(rounds, 1))
    return np.exp(np.array(means) + noise)


def test_without_launches_the_belief_decides() -> None:
    found = choose(belief(2.0, 1.0, 3.0), np.empty((0, 3)), [0, 0, 0])
    assert found.chosen == 1
    assert found.tied == (False, True, False)
    assert all(type(one) is bool for one in found.tied), "what is kept as JSON is no NumPy value"
    assert found.intervals[0].low is None


def test_launches_overrule_a_weak_belief() -> None:
    found = choose(belief(1.0, 1.02), launches(1.3, 1.0), [0, 0])
    assert found.chosen == 1
    assert found.ratios[0] == pytest.approx(math.exp(0.3), rel=0.15)
    assert found.intervals[0].low > 1
    assert not found.tied[0]


def test_of_tied_ones_the_preferred_is_chosen() -> None:
    values = launches(1.0, 1.01)
    assert choose(belief(1.0, 1.01), values, [(2,), (1,)]).chosen == 1
    assert choose(belief(1.0, 1.01), values, [(1,), (2,)]).chosen == 0


def test_a_cheap_one_that_is_far_behind_is_not_chosen() -> None:
    """Though two rounds could not tell them apart, the belief does."""
    found = choose(belief(1.0, 1.2, sd=0.02), launches(1.0, 1.12, rounds=2), [(9,), (0,)])
    assert found.chosen == 0
    assert found.tied == (True, False)


@given(st.integers(0, 1000), st.floats(-0.5, 0.5))
def test_a_shift_that_all_share_changes_nothing(seed: int, shift: float) -> None:
    values = launches(1.0, 1.1, 0.95, seed=seed)
    here = choose(belief(1.0, 1.1, 0.95), values, [0, 1, 2])
    there = choose(belief(1.0, 1.1, 0.95), values * math.exp(shift), [0, 1, 2])
    assert here.ratios == pytest.approx(there.ratios)
    assert here.tied == there.tied


def test_the_intervals_hold_together() -> None:
    """All of them cover in 95 of 100 final selections, although the ratios share one denominator."""
    means, runs, held = (1.0, 1.05, 0.98), 600, 0
    for seed in range(runs):
        values = launches(*means, seed=seed, shared=0.2)
        found = choose(belief(1.0, 1.05, 0.98), values, [0, 0, 0])
        true = [math.exp(mean - means[found.chosen]) for mean in means]
        held += all(
            one.low <= ratio <= one.high for one, ratio in zip(found.intervals, true, strict=True)
        )
    assert held / runs >= 0.93
