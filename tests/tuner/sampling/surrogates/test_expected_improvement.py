"""Expected improvement: right where it can be integrated, ordered where it cannot."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy import integrate, stats

from tuner.sampling.surrogates.expected_improvement import gain_ratio, log_expected_improvement


@pytest.mark.parametrize("z", [-30.0, -8.0, -3.0, -1.0, -0.999, 0.0, 2.0, 9.0])
def test_the_logarithm_agrees_with_integration(z: float) -> None:
    """log E[max(0, incumbent - target)], integrated relative to its largest term."""
    sd, incumbent = 0.3, 1.0
    mean = incumbent - z * sd
    top = stats.norm.logpdf(min(z, 0.0))

    def integrand(u: float) -> float:  # u: improvement in standard deviations
        return u * float(np.exp(stats.norm.logpdf(z - u) - top))

    area, _ = integrate.quad(integrand, 0, max(z, 0) + 12, points=[max(z, 0.0)], limit=200)
    expected = np.log(sd * area) + top
    found = log_expected_improvement(np.array([mean]), np.array([sd]), incumbent)[0]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.floats(-1e8, 1e3), st.floats(1e-9, 10.0))
def test_it_is_finite_and_grows_with_hope(z: float, more: float) -> None:
    """Cells far from the incumbent are still ranked: a larger z never scores less."""
    pair = log_expected_improvement(np.array([-z, -(z + more)]), np.ones(2), 0.0)
    assert np.isfinite(pair).all()
    assert pair[1] >= pair[0] - 1e-6 * abs(pair[0])


@pytest.mark.parametrize("border", [-1.0, -1e4])
def test_the_branches_meet(border: float) -> None:
    """Left and right of a border the value is the same."""
    z = np.array([border * (1 - 1e-10), border * (1 + 1e-10)])
    left, right = log_expected_improvement(-z, np.ones(2), 0.0)
    assert left == pytest.approx(right, rel=1e-7)


@pytest.mark.parametrize(("mean", "sd"), [(3.0, 0.2), (2.5, 0.05), (3.6, 0.5), (2.0, 1.0)])
def test_the_gain_is_a_share_of_the_incumbents_latency(mean: float, sd: float) -> None:
    """For log targets it agrees with a million draws of the latency, within five standard errors."""
    incumbent = 3.0
    draws = np.exp(np.random.default_rng(0).normal(mean, sd, 1_000_000))
    gains = np.maximum(0.0, 1 - draws / np.exp(incumbent))
    found = gain_ratio(np.array([mean]), np.array([sd]), incumbent, is_log=True)[0]
    assert abs(found - gains.mean()) < 5 * gains.std() / 1000 + 1e-12


def test_the_gain_on_a_raw_scale() -> None:
    """Targets that are no logarithms: the expected improvement over the incumbent's size."""
    mean, sd = np.array([-2.0]), np.array([1e-6])
    assert gain_ratio(mean, sd, -1.0, is_log=False)[0] == pytest.approx(1.0)
    assert np.isinf(gain_ratio(mean, sd, 0.0, is_log=False)[0])


@given(st.floats(-50, 50), st.floats(1e-4, 50))
def test_the_gain_is_a_share(mean: float, sd: float) -> None:
    """Latency cannot fall by more than all of it, whatever the model believes."""
    found = gain_ratio(np.array([mean]), np.array([sd]), 1.0, is_log=True)[0]
    assert 0 <= found <= 1
