"""The Gaussian process: predicts, does not overfit, keeps quiet."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest

from tuner.sampling.baselines import gpy_model


def surface(points: np.ndarray) -> np.ndarray:
    """A smooth function of two of three axes, on a log scale."""
    return 2 + np.sin(3 * points[:, 0]) + points[:, 1] ** 2


def data(n: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n noisy observations of the surface."""
    rng = np.random.default_rng(seed)
    points = rng.random((n, 3))
    return points, surface(points) + noise * rng.normal(size=n)


def test_it_predicts_a_smooth_surface_through_noise() -> None:
    """Forty noisy points explain 95 % of the variance of fresh ones, and most intervals hold the truth."""
    points, targets = data(40, 0.05)
    fresh, _ = data(500, 0.0, seed=9)
    mean, sd = gpy_model.fit(points, targets, noise_sd=0.05).predict(fresh)
    errors = mean - surface(fresh)
    assert np.var(errors) < 0.05 * np.var(surface(fresh))
    assert np.mean(np.abs(errors) < 2 * sd) > 0.8


@pytest.mark.parametrize("noise", [0.03, 0.15])
def test_it_learns_the_noise_within_a_factor_of_two(noise: float) -> None:
    """Where many points say so, the noise is found on either side of its prior."""
    points, targets = data(60, noise)
    found = gpy_model.fit(points, targets, noise_sd=0.05).noise_sd
    assert noise / 2 < found < noise * 2


def test_few_points_do_not_make_short_length_scales() -> None:
    """Six points of pure noise: the model stays near their mean instead of running through them."""
    rng = np.random.default_rng(4)
    points, targets = rng.random((6, 5)), 0.05 * rng.normal(size=6)
    mean, _ = gpy_model.fit(points, targets, noise_sd=0.05).predict(points)
    assert np.std(mean) < 0.7 * np.std(targets)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_equal_targets_are_borne(n: int) -> None:
    """A flat history gives a flat, finite prediction."""
    points = np.random.default_rng(n).random((n, 2))
    mean, sd = gpy_model.fit(points, np.full(n, 3.0), noise_sd=0.05).predict(points)
    assert np.allclose(mean, 3.0, atol=0.05)
    assert (sd > 0).all()
    assert np.isfinite(sd).all()


def test_noise_never_falls_below_its_floor() -> None:
    """Exact data do not make a matrix that cannot be inverted."""
    points, targets = data(50, 0.0)
    repeated = np.vstack([points, points])
    process = gpy_model.fit(repeated, np.tile(targets, 2), noise_sd=0.05)
    assert process.noise_sd >= 0.99 * gpy_model.NOISE_FLOOR_SD


def test_pending_points_lose_their_uncertainty_and_keep_their_mean() -> None:
    """A trial under way makes its surroundings known, not better."""
    points, targets = data(15, 0.05)
    process = gpy_model.fit(points, targets, noise_sd=0.05)
    pending = np.array([[0.95, 0.95, 0.5]])
    before, after = process.predict(pending), process.expecting(pending).predict(pending)
    assert after[0] == pytest.approx(before[0], abs=0.02)
    assert after[1][0] < 0.9 * before[1][0]
    assert process.expecting(np.empty((0, 3))) is process


def test_a_start_of_another_space_is_ignored() -> None:
    """Hyper-parameters of a space with other knobs change nothing."""
    points, targets = data(12, 0.05)
    plain = gpy_model.fit(points, targets, noise_sd=0.05)
    other = gpy_model.fit(points, targets, noise_sd=0.05, start=(0.0, 1.0))
    assert plain.hyperparameters == other.hyperparameters
    again = gpy_model.fit(points, targets, noise_sd=0.05, start=plain.hyperparameters)
    assert np.allclose(again.predict(points)[0], plain.predict(points)[0], atol=0.02)


def test_an_absurd_start_does_no_harm() -> None:
    """A climb that cannot begin is dropped for the other one."""
    points, targets = data(12, 0.05)
    process = gpy_model.fit(points, targets, noise_sd=0.05, start=(300.0, 300.0, 0.0, 0.0, -300.0))
    assert np.isfinite(process.predict(points)[0]).all()


def test_the_vendor_keeps_quiet_and_leaves_the_filters_alone(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is printed or logged as a warning, and warnings are still what they were."""
    caplog.set_level(logging.WARNING)
    filters = list(warnings.filters)
    points, targets = data(10, 0.05)
    gpy_model.fit(points, targets, noise_sd=0.05).predict(points)
    assert warnings.filters == filters
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
