"""Blocks and the interval of the mean."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement import blocks, percentiles
from tuner.values.interval import UNKNOWN
from tuner.values.measurement import Block
from tuner.values.request_records import CpuTimeSeries


def make(means, counts=None, spreads=None):
    """Blocks with these means and spreads in ms."""
    counts = counts or [100] * len(means)
    return tuple(
        Block(
            start_s=0.5 * number,
            seconds=0.5,
            requests=count,
            mean_ms=mean,
            p50_ms=mean,
            p99_ms=mean,
            throughput_per_s=2.0 * count,
            spread_ms=None if spreads is None else spreads[number],
        )
        for number, (mean, count) in enumerate(zip(means, counts, strict=True))
    )


@pytest.mark.parametrize(
    ("block_s", "mean_s", "expected", "why"),
    [
        (0.5, 0.01, 0.5, "as wished"),
        (0.53, 0.01, 0.5, "whole quota periods"),
        (0.01, 0.01, 0.1, "at least one period"),
        (0.5, 0.25, 0.5, "exactly two latencies"),
        (0.5, 0.3, 1.0, "lengthened to hold two latencies"),
        (0.5, 3.0, 6.0, "a slow server"),
    ],
)
def test_a_block_is_whole_periods_and_two_latencies(block_s, mean_s, expected, why):
    """Quotas work in periods of 0.1 s, and a block must be long against a latency."""
    assert blocks.block_seconds(block_s, mean_s) == pytest.approx(expected), why


@given(
    finished=st.lists(st.floats(0, 3), max_size=200),
    start_s=st.floats(0, 1),
    seconds=st.floats(0.1, 2),
    block_s=st.sampled_from([0.1, 0.2, 0.5]),
)
def test_every_request_of_the_whole_blocks_is_in_exactly_one(finished, start_s, seconds, block_s):
    """None is counted twice or lost between two blocks, and none from outside is taken."""
    finished_s = np.sort(np.array(finished))
    parts = blocks.cut(
        finished_s, np.ones(len(finished_s)), start_s=start_s, seconds=seconds, block_s=block_s
    )
    count = int(seconds / block_s + 1e-6)
    end_s = start_s + block_s * count
    inside = np.count_nonzero((finished_s > start_s) & (finished_s <= end_s))
    assert sum(part.requests for part in parts) == inside
    assert len(parts) <= count
    for part in parts:
        assert part.requests > 0
        assert part.throughput_per_s == pytest.approx(part.requests / block_s)
    for before, after in itertools.pairwise(parts):
        assert after.start_s >= before.start_s + block_s - 1e-9


def test_a_block_has_the_clients_cpu_time_of_its_seconds():
    """Readings that lie apart are joined by straight lines."""
    finished_s = np.arange(0.01, 1.0, 0.01)
    cpu = CpuTimeSeries(at_s=np.array([0.0, 0.5, 1.0]), used_s=np.array([3.0, 3.1, 3.4]))
    parts = blocks.cut(
        finished_s, np.ones(99), start_s=0.0, seconds=1.0, block_s=0.25, client_cpu=cpu
    )
    assert [part.client_cpu_s for part in parts] == pytest.approx([0.05, 0.05, 0.15, 0.15])


def test_few_blocks_give_no_interval():
    """Three means say too little about their own spread."""
    assert blocks.mean_interval(make([1.0, 2.0, 3.0]), 2.0) == blocks.UNKNOWN


def test_equal_blocks_give_a_point():
    """Without spread the interval is the mean."""
    interval = blocks.mean_interval(make([5.0] * 4), 5.0)
    assert (interval.low, interval.high) == pytest.approx((5.0, 5.0))


@given(
    means=st.lists(st.floats(0.1, 1000), min_size=4, max_size=60),
    factor=st.floats(0.01, 100),
)
def test_the_interval_scales_with_the_unit(means, factor):
    """It encloses the mean, stays positive, and does not depend on the unit of time."""
    centre = float(np.mean(means))
    interval = blocks.mean_interval(make(means), centre)
    assert 0 < interval.low <= centre <= interval.high
    other = blocks.mean_interval(make([factor * mean for mean in means]), factor * centre)
    assert other.low == pytest.approx(factor * interval.low)
    assert other.high == pytest.approx(factor * interval.high)


def autocorrelated(rng, count, memory):
    """Log latencies with a long memory (AR(1)), as queues have; unit variance, mean 0."""
    steps = rng.standard_normal(count) * np.sqrt(1 - memory**2)
    values = np.empty(count)
    value = rng.standard_normal()
    for number, step in enumerate(steps):
        value = memory * value + step
        values[number] = value
    return values


def test_the_interval_of_the_mean_knows_that_requests_are_alike():
    """With memory over dozens of requests it covers in 95 % of 600 launches; independence would claim far less.

    The bound is 5 standard errors under 95 %, and 1 % for the curvature of few blocks.
    """
    rng = np.random.default_rng(7)
    covered = naive_covered = 0
    for _ in range(600):
        took_s = 0.01 * np.exp(0.3 * autocorrelated(rng, 2000, 0.95))
        truth = 0.01 * np.exp(0.3**2 / 2)
        finished_s = np.linspace(0.001, 4.0, 2000)
        parts = blocks.cut(finished_s, took_s, start_s=0.0, seconds=4.0, block_s=0.5)
        interval = blocks.mean_interval(parts, 1e3 * took_s.mean())
        covered += interval.low <= 1e3 * truth <= interval.high
        reach = 1.96 * took_s.std() / np.sqrt(2000)
        naive_covered += abs(took_s.mean() - truth) <= reach
    assert covered / 600 >= 0.94 - 5 * (0.05 * 0.95 / 600) ** 0.5
    assert naive_covered / 600 < 0.6


def test_long_phases_put_blocks_together():
    """Forty blocks that come in equal runs of two say no more than twenty."""
    rng = np.random.default_rng(3)
    means = rng.uniform(9, 11, 20)
    doubled = blocks.mean_interval(make(np.repeat(means, 2).tolist()), 10.0)
    single = blocks.mean_interval(make(means.tolist()), 10.0)
    assert (doubled.low, doubled.high) == pytest.approx((single.low, single.high))


def test_the_interval_of_the_spread_comes_from_the_spreads_of_blocks():
    """Around the whole phase's, and as wide as blocks differ."""
    same, other = ([4.0] * 4, [2.0, 4.0, 8.0, 4.0])
    narrow = blocks.spread_interval(make([10.0] * 4, spreads=same), 5.0)
    wide = blocks.spread_interval(make([10.0] * 4, spreads=other), 5.0)
    assert (narrow.low, narrow.high) == (5.0, 5.0)
    assert wide.low < 5.0 < wide.high
    assert wide.low * wide.high == pytest.approx(25.0)


@pytest.mark.parametrize("spreads", [[4.0] * 3, [4.0, 4.0, 4.0, None, 4.0]])
def test_too_few_blocks_or_requests_give_no_interval_of_the_spread(spreads):
    """Three blocks, or a block with fewer than 20 requests."""
    assert blocks.spread_interval(make([10.0] * len(spreads), spreads=spreads), 5.0) == UNKNOWN


def test_the_interval_of_the_spread_covers_what_another_launch_of_the_same_kind_has():
    """Of 200 phases, about 95 in 100 intervals hold the true spread; 6 sigma of the binomial is 9 %."""
    rng = np.random.default_rng(1)
    truth = 0.9 * 10.0  # of a uniform distribution over 10 ms
    hits = 0
    for _ in range(200):
        took_s = rng.uniform(0.005, 0.015, 4000)
        at_s = np.linspace(0.001, 2.0, 4000)
        parts = blocks.cut(at_s, took_s, start_s=0.0, seconds=2.0, block_s=0.5)
        whole = 1e3 * percentiles.spread(np.sort(took_s))
        ends = blocks.spread_interval(parts, whole)
        hits += ends.low <= truth <= ends.high
    assert 172 <= hits <= 200
