"""Statistics of a model: what goes in comes out, in nanoseconds, summed as Triton sums it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.metrics.statistics import StatisticsCollector, Total
from serving.values import ModelId, StageTimes

MODEL = ModelId("m", "1")


def test_nothing_yet():
    """A model that was never asked has zeros and no batches."""
    found = StatisticsCollector(MODEL).snapshot(successes=0, answered_s=0.0)
    assert (found.inference_count, found.execution_count, found.last_inference_ms) == (0, 0, 0)
    assert found.success == found.queue == Total(0, 0)
    assert found.batches == ()


def test_one_batch():
    """Stages count every request with the whole batch; batches count it once."""
    collected = StatisticsCollector(MODEL)
    collected.batch(
        StageTimes(0.001, 0.002, 0.003, 0.004),
        items=7,
        parts=3,
        waited_s=0.5,
        wall_s=12.3456,
    )
    found = collected.snapshot(successes=2, answered_s=0.9)
    assert found.model == MODEL
    assert found.last_inference_ms == 12346
    assert (found.inference_count, found.execution_count) == (7, 1)
    assert found.success == Total(2, 900_000_000)
    assert found.queue == Total(3, 503_000_000)
    assert found.compute_input == Total(3, 6_000_000)
    assert found.compute_infer == Total(3, 9_000_000)
    assert found.compute_output == Total(3, 12_000_000)
    (batches,) = found.batches
    assert batches.batch_size == 7
    assert batches.compute_infer == Total(1, 3_000_000)


def test_failures_and_the_cache():
    """A hit is no inference; a success is what was answered and did not fail."""
    collected = StatisticsCollector(MODEL)
    collected.record_failure(0.25)
    collected.looked_up(0.5, is_hit=True)
    collected.looked_up(0.125, is_hit=False)
    found = collected.snapshot(successes=2, answered_s=1.0)
    assert found.fail == Total(1, 250_000_000)
    assert found.success == Total(2, 750_000_000)
    assert found.cache_hit == Total(1, 500_000_000)
    assert found.cache_miss == Total(1, 125_000_000)
    assert found.inference_count == 0


SECONDS = st.floats(0, 1)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), SECONDS), max_size=30))
def test_sums(batches):
    """Items, executions and durations are conserved, over all batches and over those of each size."""
    collected = StatisticsCollector(MODEL)
    for items, parts, seconds in batches:
        times = StageTimes(0.0, 0.0, seconds, 0.0)
        collected.batch(times, items=items, parts=parts, waited_s=0, wall_s=1)
    found = collected.snapshot(successes=0, answered_s=0.0)
    assert found.inference_count == sum(items for items, _, _ in batches)
    assert found.execution_count == len(batches)
    assert [b.batch_size for b in found.batches] == sorted({items for items, _, _ in batches})
    assert sum(b.compute_infer.count for b in found.batches) == len(batches)
    total_s = sum(seconds for _, _, seconds in batches)
    assert sum(b.compute_infer.ns for b in found.batches) == pytest.approx(total_s * 1e9, abs=20)
    weighted_s = sum(parts * seconds for _, parts, seconds in batches)
    assert found.compute_infer.ns == pytest.approx(weighted_s * 1e9, abs=20)
