"""The additive model: exact where the truth is additive, and never wilder than what it saw."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tuner.sampling.baselines import ridge


def grid(levels: int, width: int) -> np.ndarray:
    """All points of a grid in the unit cube."""
    axes = np.meshgrid(*[np.linspace(0, 1, levels)] * width, indexing="ij")
    return np.column_stack([axis.ravel() for axis in axes])


def test_it_learns_an_additive_surface_from_a_third_of_it() -> None:
    """A curve of any shape for each knob; what was not seen is predicted as well, but for unlucky thirds."""
    errors = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        points = grid(4, 3)
        effects = rng.normal(size=(3, 4))
        truth = sum(effects[k][np.rint(3 * points[:, k]).astype(int)] for k in range(3))
        seen = rng.permutation(len(points))[:24]
        model = ridge.fit(points[seen], truth[seen], ridge.knots_of(points))
        error = np.sqrt(np.mean((model.predict(points) - truth) ** 2))
        errors.append(error / np.std(truth))
    assert np.median(errors) < 0.01
    assert np.quantile(errors, 0.95) < 0.01


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_few_launches_make_no_wild_predictions(seed: int, count: int) -> None:
    """With hardly any data, predictions stay within a few spreads of it."""
    rng = np.random.default_rng(seed)
    points = grid(5, 3)
    seen = rng.permutation(len(points))[:count]
    targets = rng.normal(size=count)
    predicted = ridge.fit(points[seen], targets, ridge.knots_of(points)).predict(points)
    assert np.abs(predicted - targets.mean()).max() <= 4 * np.ptp(targets) + 1e-9


def test_equal_targets_are_predicted_everywhere() -> None:
    points = grid(3, 2)
    predicted = ridge.fit(points[:4], np.full(4, 2.5), ridge.knots_of(points)).predict(points)
    np.testing.assert_allclose(predicted, 2.5)


def test_a_knob_with_many_levels_has_few_knots_and_both_ends() -> None:
    points = np.linspace(0, 1, 50)[:, None]
    (knots,) = ridge.knots_of(points)
    assert len(knots) == ridge.KNOTS
    assert (knots[0], knots[-1]) == (0.0, 1.0)


@given(st.integers(1, 12), st.integers(0, 100))
def test_hats_add_up_to_one(levels: int, seed: int) -> None:
    """Between the knots as well as on them."""
    points = np.random.default_rng(seed).random((20, 1))
    knots = [np.linspace(0, 1, max(2, levels))]
    np.testing.assert_allclose(ridge.basis(points, knots)[:, 1:].sum(axis=1), 1.0)
