"""The closed form keeps to what no engine can beat, and is right where the answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.evaluation.simulation import closed_form
from tuner.evaluation.simulation.closed_form import REQUEST_S, Workload
from tuner.evaluation.simulation.model_costs import ModelCosts
from tuner.values.configuration import Configuration

COSTS = ModelCosts(item_s=5e-3)


def batch_s(size: float) -> float:
    """Time of a batch with one thread, all of which is computing."""
    return COSTS.service_s(size, 1)


def cell(**knobs: float) -> Configuration:
    """A configuration by the last words of its knobs."""
    rooms = {"max_size": "batching", "timeout_us": "batching"}
    return Configuration({f"{rooms.get(name, 'replica')}.{name}": v for name, v in knobs.items()})


def load(concurrency: int, cores: int = 8) -> Workload:
    """Of single items."""
    return Workload(concurrency=concurrency, client_batch=1, cores=cores)


def test_one_client_meets_an_idle_server() -> None:
    """Its latency is one item's service and what a request costs on its way."""
    expected = 1e3 * (batch_s(1) + 2 * REQUEST_S)
    found = closed_form.mean_ms(COSTS, load(1), cell(count=1, max_size=8, timeout_us=0))
    assert found == pytest.approx(expected, rel=0.1)


def test_a_saturated_replica_works_off_full_batches() -> None:
    """Twenty clients of one replica without batching wait for twenty services."""
    found = closed_form.mean_ms(COSTS, load(20), cell(count=1, max_size=1, timeout_us=0))
    assert found == pytest.approx(20e3 * batch_s(1), rel=0.1)
    batched = closed_form.mean_ms(COSTS, load(64), cell(count=1, max_size=16, timeout_us=0))
    assert batched == pytest.approx(64e3 * batch_s(16) / 16, rel=0.15)


def test_half_a_core_takes_twice_as_long() -> None:
    """A replica that is never idle is slowed by its quota in full."""
    whole = closed_form.mean_ms(COSTS, load(20), cell(count=1, max_size=4, cpu=1.0))
    half = closed_form.mean_ms(COSTS, load(20), cell(count=1, max_size=4, cpu=0.5))
    assert half == pytest.approx(2 * whole, rel=0.15)


def test_replicas_share_the_cores_there_are() -> None:
    """Four replicas on two cores are no faster than two."""
    two = closed_form.mean_ms(COSTS, load(32, cores=2), cell(count=2, max_size=1))
    four = closed_form.mean_ms(COSTS, load(32, cores=2), cell(count=4, max_size=1))
    assert four == pytest.approx(two, rel=0.15)
    assert two > 1e3 * 32 * batch_s(1) / 2


def test_waiting_for_company_that_cannot_come_costs_the_whole_wait() -> None:
    """Two clients never fill a batch of eight."""
    found = closed_form.mean_ms(COSTS, load(2), cell(count=1, max_size=8, timeout_us=20_000))
    assert found == pytest.approx(20 + 1e3 * batch_s(2), rel=0.1)


cells = st.builds(
    cell,
    count=st.integers(1, 4),
    max_size=st.sampled_from([1, 2, 4, 8, 16]),
    timeout_us=st.sampled_from([0, 1000, 5000]),
    cpu=st.sampled_from([0.3, 0.5, 1.0]),
)


@settings(max_examples=25, deadline=None)
@given(cell=cells, concurrency=st.sampled_from([1, 5, 20]), cores=st.sampled_from([1, 2, 8]))
def test_no_bound_is_beaten(cell: Configuration, concurrency: int, cores: int) -> None:
    """Throughput stays within what the quotas and the cores allow; no latency is shorter than an idle one."""
    found_s = closed_form.mean_ms(COSTS, load(concurrency, cores), cell) / 1e3
    rate = concurrency / found_s
    largest = int(cell["batching.max_size"])
    quota = int(cell["replica.count"]) * float(cell["replica.cpu"])
    assert rate * batch_s(largest) / largest < min(quota, cores)
    assert found_s > 0.95 * (batch_s(1) + 2 * REQUEST_S)


def test_requests_that_wait_for_a_timeout_keep_the_gateway_busy_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a batch that cannot fill, a slower gateway costs its time for most of twenty, and not for one."""
    waiting = COSTS, load(20), cell(max_size=64, timeout_us=5000)
    alone = COSTS, load(1), cell(max_size=1)
    before = [closed_form.mean_ms(*each) for each in (waiting, alone)]
    monkeypatch.setattr(closed_form, "REQUEST_S", 2 * REQUEST_S)
    after = [closed_form.mean_ms(*each) for each in (waiting, alone)]
    assert 10 * 1e3 * REQUEST_S < after[0] - before[0] < 21 * 1e3 * REQUEST_S
    assert 0 < after[1] - before[1] < 2.01e3 * REQUEST_S


def test_threads_save_time_and_cost_cpu_time() -> None:
    one, four = (COSTS.service_s(8, threads) for threads in (1, 4))
    assert one / 4 < four < one
    assert COSTS.cpu_s(8, 4) == pytest.approx(4 * four)
