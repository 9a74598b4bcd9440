"""Latencies in buckets: counted whole, put together, and quantiles to half a per cent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tuner.measurement import percentiles
from tuner.values.histogram import WIDTH, LatencyHistogram

TOOK = arrays.arrays(float, st.integers(1, 200), elements=st.floats(0.001, 1e5, allow_nan=False))


@given(TOOK, st.floats(0.01, 1.0))
def test_quantiles_are_those_of_the_latencies_to_a_bucket(
    took: np.ndarray[tuple[int], np.dtype[np.float64]], share: float
) -> None:
    found = LatencyHistogram.of(took).quantile_ms(share)
    exact = percentiles.percentile(np.sort(took), share)
    assert abs(math.log(found / exact)) <= math.log(WIDTH) + 1e-9


@given(TOOK, TOOK)
def test_merged_is_what_all_together_give(
    first: np.ndarray[tuple[int], np.dtype[np.float64]],
    second: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> None:
    both = LatencyHistogram.merge([LatencyHistogram.of(first), LatencyHistogram.of(second)])
    assert both == LatencyHistogram.of(np.concatenate([first, second]))
    assert len(both) == len(first) + len(second)


@given(TOOK)
def test_text_is_read_back(took: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    found = LatencyHistogram.of(took)
    assert LatencyHistogram.parse(*found.text()) == found


def test_of_many_a_quantile_is_within_half_a_per_cent() -> None:
    took = np.exp(np.random.default_rng(0).normal(size=20_000))
    for share in (0.05, 0.5, 0.95, 0.99):
        assert LatencyHistogram.of(took).quantile_ms(share) == pytest.approx(
            np.quantile(took, share), rel=0.005
        )


def test_scaled_takes_longer_by_the_factor() -> None:
    took = np.random.default_rng(0).uniform(1, 2, 1_000)
    slower = LatencyHistogram.of(took).scale(1.5)
    assert slower.quantile_ms(0.5) == pytest.approx(1.5 * np.median(took), rel=0.01)


@pytest.mark.parametrize("counts", ["", "0 0", "1 -1", "a"])
def test_other_texts_are_refused(counts: str) -> None:
    with pytest.raises(ValueError, match=r"counts|invalid literal"):
        LatencyHistogram.parse("3", counts)


@given(TOOK, st.floats(0.001, 1e5))
def test_the_share_within_a_time_is_right_to_a_bucket(
    took: np.ndarray[tuple[int], np.dtype[np.float64]], limit_ms: float
) -> None:
    """Between the shares a bucket below and a bucket above."""
    share = LatencyHistogram.of(took).share_within(limit_ms)
    below, above = (float(np.mean(took <= limit_ms * end)) for end in (1 / 1.0101, 1.0101))
    assert below - 1e-9 <= share <= above + 1e-9
