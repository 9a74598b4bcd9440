"""p99 of launches: refused below 459 effective requests, put together from all requests."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from tests.fakes import studies
from tuner.metrics import tail_latency
from tuner.values.histogram import LatencyHistogram
from tuner.values.measurement import MIN_FOR_P99, Measurement

RNG = np.random.default_rng(7)


def launch(took_ms: np.ndarray[tuple[int], np.dtype[np.float64]], effective: float) -> Measurement:
    """A launch with these latencies."""
    plain = studies.measurement(10.0, np.random.default_rng(0))
    return dataclasses.replace(
        plain,
        requests=len(took_ms),
        p99_ms=float(np.quantile(took_ms, 0.99)),
        p99_effective=effective,
        histogram=LatencyHistogram.of(took_ms),
    )


@given(count=st.integers(MIN_FOR_P99, 50_000), share=st.sampled_from((0.5, 0.95, 0.99)))
def test_order_statistics_cover_the_percentile(count: int, share: float) -> None:
    """The exact probability that the true percentile lies between the two ranks is 95 % and more."""
    low, high = tail_latency.interval_ranks(count, share)
    assert low is not None
    assert high is not None
    # As many values lie under the percentile as a binomial says: from `low` to `high` - 1 of them.
    covered = special.bdtr(high - 1, count, share) - special.bdtr(low - 1, count, share)
    assert covered >= 0.95


@given(
    count=st.integers(1, 20_000),
    share_effective=st.floats(0.01, 1.0),
    share=st.sampled_from((0.5, 0.95, 0.99)),
)
def test_fewer_effective_values_never_claim_more(
    count: int, share_effective: float, share: float
) -> None:
    """An end that is given lies in the sample, and no nearer to the percentile than that of independent values,
    but for the one value in the effective sample that ranks are rounded to."""
    worth = share_effective * count
    low, high = tail_latency.ranks_of(count, share, effective=worth)
    all_low, all_high = tail_latency.ranks_of(count, share)
    step = count / max(1.0, worth // 1)
    assert low is None or (all_low is not None and 1 <= low <= all_low + step)
    assert high is None or (all_high is not None and all_high - step <= high <= count)


def test_below_459_effective_requests_there_is_no_p99() -> None:
    """However many there were; the reason says how long a launch has to be."""
    took = RNG.exponential(10.0, 2_000)
    assert tail_latency.of_evaluation(launch(took, 459.0)).is_reportable
    refused = launch(took, 458.0)
    tail = tail_latency.of_evaluation(refused)
    assert not tail.is_reportable
    assert np.isnan(tail.value_ms)
    assert np.isnan(refused.reportable_p99_ms)
    assert tail.why_not == (
        "p99 rests on 458 effective requests (of 2,000), under 459: measure each evaluation for "
        "longer (--seconds 3)"
    )


def test_of_several_launches_it_is_that_of_their_requests_together() -> None:
    """A slow launch among nine quick ones decides the p99, whose mean over launches it hardly moves."""
    quick = [RNG.exponential(1.0, 1_000) for _ in range(9)]
    slow = RNG.exponential(20.0, 1_000)
    tail = tail_latency.pool_tails([launch(took, 300.0) for took in (*quick, slow)])
    together = np.concatenate([*quick, slow])
    assert tail.value_ms == pytest.approx(np.quantile(together, 0.99), rel=0.02)
    mean_of_p99s = np.mean([np.quantile(took, 0.99) for took in (*quick, slow)])
    assert tail.value_ms > 1.5 * mean_of_p99s
    assert tail.effective == 3_000
    assert tail.interval.low < tail.value_ms < tail.interval.high


def test_launches_that_are_too_short_alone_are_enough_together() -> None:
    """Effective requests add up over launches."""
    took = RNG.exponential(1.0, 300)
    assert not tail_latency.pool_tails([launch(took, 300.0)]).is_reportable
    assert tail_latency.pool_tails([launch(took, 300.0)] * 2).is_reportable
    assert not tail_latency.pool_tails([launch(took, 229.0)] * 2).is_reportable


def test_launches_without_a_histogram_cannot_be_put_together() -> None:
    """Those that an older version kept; one alone has its own figure."""
    old = dataclasses.replace(
        launch(RNG.exponential(1.0, 2_000), 2_000.0), histogram=None, p99_effective=None
    )
    assert "older version" in tail_latency.pool_tails([old, old]).why_not
    assert tail_latency.pool_tails([old]).value_ms == old.p99_ms
    assert tail_latency.pool_tails([]).why_not == "not measured"
