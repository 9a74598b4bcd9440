"""How many independent requests a phase is worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tuner.measurement import blocks, percentiles
from tuner.metrics import tail_latency


def in_batches(
    rng: np.random.Generator, count: int, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Latencies of which `size` at a time are the same, and when they ended: 1,000 a second."""
    took = np.repeat(rng.exponential(size=-(-count // size)), size)[:count]
    return took, np.arange(1, count + 1) / 1000


def worth(took: NDArray[np.float64], at_s: NDArray[np.float64], share: float) -> float:
    """Effective requests of a phase."""
    parts = blocks.part_of(at_s, start_s=0.0, seconds=float(at_s[-1]), mean_s=0.01)
    value = percentiles.percentile(np.sort(took), share)
    return len(took) / blocks.design_effect(took > value, parts)


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 3_000),
    size=st.integers(1, 50),
    share=st.sampled_from((0.5, 0.95, 0.99)),
)
def test_a_phase_is_worth_at_most_its_requests_and_at_least_one(
    seed: int, count: int, size: int, share: float
) -> None:
    """Whatever the latencies."""
    took, at_s = in_batches(np.random.default_rng(seed), count, size)
    assert 1 - 1e-9 <= worth(took, at_s, share) <= count


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(20, 3_000))
def test_every_request_twice_is_worth_half(seed: int, count: int) -> None:
    """The same latencies at the same times, each twice: the design effect doubles, unless it was cut at 1."""
    rng = np.random.default_rng(seed)
    above = rng.random(count) < 0.3
    parts = np.sort(rng.integers(0, 20, count))
    once = blocks.design_effect(above, parts)
    twice = blocks.design_effect(np.repeat(above, 2), np.repeat(parts, 2))
    if once > 1:
        assert twice == pytest.approx(min(2 * count, 2 * once))
    else:
        assert twice <= 2 + 1e-9


@pytest.mark.parametrize("size", [1, 8])
def test_batches_count_about_as_one_each(size: int) -> None:
    """Medians of 200 phases of 4,000 requests: independent ones count, of a batch of 8 an eighth does."""
    rng = np.random.default_rng(20_262)
    found = [worth(*in_batches(rng, 4_000, size), 0.95) for _ in range(200)]
    assert 0.7 * 4_000 / size <= np.median(found) <= 1.3 * 4_000 / size


def test_the_interval_at_the_effective_number_covers_where_that_of_all_requests_does_not() -> None:
    """1,000 phases in batches of 8: p95 within the interval in at least 90 %, and in under 60 % of the naive ones.

    The design effect itself is estimated, from 20 parts, hence 90 and not 95. At a true 93 % the first
    fails once in 5,000 runs; the seed is fixed.
    """
    rng = np.random.default_rng(20_263)
    truth = -np.log(1 - 0.95)
    honest = naive = 0
    for _ in range(1_000):
        took, at_s = in_batches(rng, 4_000, 8)
        ordered = np.sort(took)
        ends = percentiles.interval(ordered, 0.95, effective=worth(took, at_s, 0.95))
        all_of_them = percentiles.interval(ordered, 0.95)
        honest += ends.low <= truth <= ends.high
        naive += all_of_them.low <= truth <= all_of_them.high
    assert honest / 1_000 >= 0.90
    assert naive / 1_000 < 0.60


@pytest.mark.parametrize(
    ("seconds", "mean_s", "parts"),
    [(2.0, 0.02, 20), (2.0, 0.2, 5), (10.0, 0.02, 20), (0.4, 0.5, 1)],
)
def test_parts_are_whole_quota_periods_of_two_latencies(
    seconds: float, mean_s: float, parts: int
) -> None:
    """At most 20, fewer where latencies are long; what remains at the end belongs to the last."""
    at_s = 3.0 + np.linspace(1e-6, seconds, 5_000)
    found = blocks.part_of(at_s, start_s=3.0, seconds=seconds, mean_s=mean_s)
    assert sorted(set(found.tolist())) == list(range(parts))


def test_where_latencies_are_long_a_part_counts_as_one() -> None:
    """Four parts of 500 requests tell nothing of how alike these are."""
    parts = np.repeat(np.arange(4), 500)
    assert blocks.design_effect(np.arange(2_000) % 7 == 0, parts) == 500


@pytest.mark.parametrize(("effective_n", "seconds"), [(459, 3.0), (100, 13.0), (10_000, 0.2)])
def test_the_length_that_is_asked_for_gives_a_third_more_than_enough(
    effective_n: float, seconds: float
) -> None:
    """In seconds that can be typed."""
    found = tail_latency.seconds_for(459, effective=effective_n, seconds=2.0)
    assert found == pytest.approx(seconds)
    assert effective_n * found / 2.0 >= 4 / 3 * 459 - 1e-6
