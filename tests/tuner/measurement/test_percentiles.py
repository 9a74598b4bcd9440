"""Percentiles and their intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement import percentiles
from tuner.metrics import tail_latency

SHARES = (0.5, 0.95, 0.99)


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [(1, 0.99, 1), (2, 0.5, 1), (3, 0.5, 2), (100, 0.95, 95), (100, 0.99, 99), (101, 0.99, 100)],
)
def test_a_percentile_is_the_nearest_rank(count, share, rank):
    """The smallest value with at least that share at or below it: always one that occurred."""
    assert percentiles.percentile(np.arange(1.0, count + 1), share) == rank


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        (50, 48, None),
        (150, 146, None),
        (458, 450, None),
        (459, 450, 459),
        (1000, 983, 997),
        (3000, 2959, 2982),
        (10_000, 9880, 9920),
    ],
)
def test_p99_claims_what_its_sample_can_give(count, low, high):
    """Known ranks: under 459 values the upper end is open; with 1,000 it is p98.3 to p99.7."""
    found_low, found_high = tail_latency.interval_ranks(count, 0.99)
    assert found_low == pytest.approx(low, abs=1)
    assert (found_high is None) == (high is None)
    assert high is None or found_high == pytest.approx(high, abs=2)


@pytest.mark.parametrize(("share", "least"), [(0.5, 7), (0.95, 90), (0.99, 459)])
def test_an_upper_end_needs_enough_values(share, least):
    """It is given from exactly the number at which the maximum reaches the percentile in 99 of 100 samples."""
    assert tail_latency.interval_ranks(least - 1, share)[1] is None
    assert tail_latency.interval_ranks(least, share)[1] is not None


@given(count=st.integers(1, 20_000), share=st.sampled_from(SHARES))
def test_an_interval_encloses_its_percentile(count, share):
    """Ends are ranks of the sample, in order around the nearest rank."""
    low, high = tail_latency.interval_ranks(count, share)
    rank = percentiles.percentile(np.arange(1.0, count + 1), share)
    assert low is None or 1 <= low <= rank
    assert high is None or rank <= high <= count


@given(count=st.integers(459, 5_000), share=st.sampled_from(SHARES))
def test_more_values_never_widen_the_interval_by_rank_share(count, share):
    """Ten times the sample narrows the ends, as shares of the sample."""
    low, high = tail_latency.interval_ranks(count, share)
    more_low, more_high = tail_latency.interval_ranks(10 * count, share)
    assert (more_high - more_low) / (10 * count) < (high - low) / count


@pytest.mark.parametrize("share", SHARES)
def test_the_interval_covers_the_true_percentile(share):
    """In 2,000 samples of 600 the truth is outside at most 5 % of the time, plus 5 standard errors (1e-6)."""
    rng = np.random.default_rng(20_261)
    truth = -np.log(1 - share)
    missed = 0
    for _ in range(2000):
        interval = percentiles.interval(np.sort(rng.exponential(size=600)), share)
        missed += not interval.low <= truth <= interval.high
    assert missed / 2000 <= 0.05 + 5 * (0.05 * 0.95 / 2000) ** 0.5


def test_the_spread_holds_nine_in_ten_and_no_stall_moves_it():
    """p95 - p5; a few values far out leave it as it was."""
    values = np.arange(1.0, 1001.0)
    stalled = np.concatenate([values[:-20], np.full(20, 1e6)])
    assert percentiles.spread(values) == 900.0
    assert percentiles.spread(stalled) == 900.0
