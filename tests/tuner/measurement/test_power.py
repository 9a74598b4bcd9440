"""What pairs of launches can show."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement import power
from tuner.measurement.comparison import ratio_interval


@pytest.mark.parametrize(("pairs", "sd"), [(3, 0.05), (6, 0.1), (20, 0.05)])
def test_the_smallest_gain_is_found_in_eight_of_ten_comparisons(pairs, sd):
    """In 2,000 simulated comparisons the interval leaves out 1 in 80 %, within 5 standard errors."""
    rng = np.random.default_rng(9)
    gain = power.smallest_gain(sd, pairs)
    found = 0
    for _ in range(2000):
        default = np.exp(sd * rng.standard_normal(pairs))
        best = (1 - gain) * np.exp(sd * rng.standard_normal(pairs))
        found += ratio_interval(best, default)[1].high < 1
    assert found / 2000 == pytest.approx(0.8, abs=5 * (0.8 * 0.2 / 2000) ** 0.5)


@given(sd=st.floats(0.001, 0.5), pairs=st.integers(2, 60))
def test_more_pairs_and_less_noise_show_smaller_gains(sd, pairs):
    """And a gain stays a share under 1."""
    gain = power.smallest_gain(sd, pairs)
    assert 0 < gain <= 1
    assert power.smallest_gain(sd, pairs + 1) < gain
    assert power.smallest_gain(sd / 2, pairs) < gain


def test_one_pair_shows_nothing():
    """Its spread is not known."""
    assert power.smallest_gain(0.05, 1) is None


def test_pairs_fit_into_a_time():
    """Two launches each, with their start."""
    assert power.pairs_within(60.0, start_s=2.0, measured_s=3.0) == 6
    assert power.pairs_within(9.9, start_s=2.0, measured_s=3.0) == 0
