"""Memory as a quantity: a wall that is seen before anything was killed by it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.sampling.surrogates import headroom

NOTHING = np.empty((0, 2))


def shares(vectors: np.ndarray) -> np.ndarray:
    """Peak over limit, on the log scale: more with the first knob (a batch), less with the second (the limit)."""
    return 1.2 * vectors[:, 0] - 1.0 * vectors[:, 1] - 0.2


def test_the_wall_is_seen_from_launches_that_worked() -> None:
    """All of them had room, and yet what lies beyond is believed to run out."""
    rng = np.random.default_rng(0)
    vectors = rng.random((60, 2))
    vectors = vectors[shares(vectors) < -0.05][:12]
    found = headroom.fit(vectors, shares(vectors), NOTHING)
    assert found is not None
    beyond, within = np.array([[1.0, 0.1]]), np.array([[0.1, 0.9]])
    assert np.exp(found.log_probability(beyond))[0] < 0.2
    assert np.exp(found.log_probability(within))[0] > 0.95


@given(seed=st.integers(0, 2**32 - 1))
def test_what_was_killed_makes_its_surroundings_less_likely(seed: int) -> None:
    """And nothing more likely there."""
    rng = np.random.default_rng(seed)
    vectors = rng.random((8, 2))
    given_shares = np.full(8, -0.3) + 0.02 * rng.normal(size=8)
    killed = rng.random((1, 2))
    before = headroom.fit(vectors, given_shares, NOTHING)
    after = headroom.fit(vectors, given_shares, killed)
    assert before is not None
    assert after is not None
    assert after.log_probability(killed)[0] < before.log_probability(killed)[0]


@pytest.mark.parametrize("known", [0, headroom.MIN_KNOWN - 1])
def test_nothing_is_said_of_too_few(known: int) -> None:
    """Launches whose peak is not known do not count."""
    vectors = np.random.default_rng(0).random((6, 2))
    given_shares = np.where(np.arange(6) < known, -0.5, np.nan)
    assert headroom.fit(vectors, given_shares, NOTHING) is None
