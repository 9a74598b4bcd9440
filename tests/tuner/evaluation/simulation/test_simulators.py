"""Both simulators keep to what no engine can beat, and agree where the answer is known."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.evaluation.simulation import closed_form, discrete
from tuner.evaluation.simulation.closed_form import Workload
from tuner.evaluation.simulation.profile import BatchCost, CostProfile
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.slow

ITEM_S, FIXED_S = 1e-3, 4e-3
GATEWAY_S, CLIENT_S = 1e-4, 5e-5
SIMULATORS = [closed_form.mean_ms, discrete.mean_ms]


def batch_s(size: float) -> float:
    """A batch of a model that gains from batching: 4 ms, and 1 ms for each item."""
    return FIXED_S + ITEM_S * size


def cost(size: int, threads: int = 1) -> BatchCost:
    """Of one thread, all of whose time is computing."""
    return BatchCost(
        threads=threads,
        size=size,
        service_s=batch_s(size),
        cpu_s=batch_s(size),
        gateway_s=GATEWAY_S,
        client_s=CLIENT_S,
    )


PROFILE = CostProfile(
    batches=tuple(cost(size) for size in (1, 4, 16, 64)), client_batch=1, seconds=3.0
)


def cell(**knobs: float) -> Configuration:
    """A configuration by the last words of its knobs."""
    rooms = {"max_size": "batching", "timeout_us": "batching"}
    return Configuration({f"{rooms.get(name, 'replica')}.{name}": v for name, v in knobs.items()})


def load(concurrency: int, cores: int = 8) -> Workload:
    """Of single items."""
    return Workload(concurrency=concurrency, client_batch=1, cores=cores)


@pytest.mark.parametrize("mean_ms", SIMULATORS)
def test_one_client_meets_an_idle_server(mean_ms) -> None:
    """Its latency is one item's service and what a request costs on its way."""
    expected = 1e3 * (batch_s(1) + GATEWAY_S + CLIENT_S)
    found = mean_ms(PROFILE, load(1), cell(count=1, max_size=8, timeout_us=0))
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("mean_ms", SIMULATORS)
def test_a_saturated_replica_works_off_full_batches(mean_ms) -> None:
    """Twenty clients of one replica without batching wait for twenty services."""
    found = mean_ms(PROFILE, load(20), cell(count=1, max_size=1, timeout_us=0))
    assert found == pytest.approx(20e3 * batch_s(1), rel=0.1)
    batched = mean_ms(PROFILE, load(64), cell(count=1, max_size=16, timeout_us=0))
    assert batched == pytest.approx(64e3 * batch_s(16) / 16, rel=0.15)


@pytest.mark.parametrize("mean_ms", SIMULATORS)
def test_half_a_core_takes_twice_as_long(mean_ms) -> None:
    """A replica that is never idle is slowed by its quota in full."""
    whole = mean_ms(PROFILE, load(20), cell(count=1, max_size=4, cpu=1.0))
    half = mean_ms(PROFILE, load(20), cell(count=1, max_size=4, cpu=0.5))
    assert half == pytest.approx(2 * whole, rel=0.15)


@pytest.mark.parametrize("mean_ms", SIMULATORS)
def test_replicas_share_the_cores_there_are(mean_ms) -> None:
    """Four replicas on two cores are no faster than two."""
    two = mean_ms(PROFILE, load(32, cores=2), cell(count=2, max_size=1))
    four = mean_ms(PROFILE, load(32, cores=2), cell(count=4, max_size=1))
    assert four == pytest.approx(two, rel=0.15)
    assert two > 1e3 * 32 * batch_s(1) / 2


@pytest.mark.parametrize("mean_ms", SIMULATORS)
def test_waiting_for_company_that_cannot_come_costs_the_whole_wait(mean_ms) -> None:
    """Two clients never fill a batch of eight."""
    found = mean_ms(PROFILE, load(2), cell(count=1, max_size=8, timeout_us=20_000))
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
    simulated_s = 4.0
    counted_s = (1 - discrete.WARMUP) * simulated_s
    for mean_ms in SIMULATORS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(discrete, "MIN_S", simulated_s)
            found_s = mean_ms(PROFILE, load(concurrency, cores), cell) / 1e3
        rate = concurrency / found_s
        largest = int(cell["batching.max_size"])
        item_s = batch_s(largest) / largest
        quota = int(cell["replica.count"]) * float(cell["replica.cpu"])
        # The quotas of the first and the last period may lie in part outside.
        of_edges = 1 + discrete.PERIOD_S / counted_s
        assert rate * item_s < of_edges * min(quota, cores)
        assert found_s > 0.95 * (batch_s(1) + GATEWAY_S + CLIENT_S)


@settings(max_examples=10, deadline=None)
@given(cell=cells)
def test_a_simulation_is_the_same_twice(cell: Configuration) -> None:
    """Nothing is drawn."""
    first, second = (discrete.mean_ms(PROFILE, load(20, 2), cell) for _ in range(2))
    assert first == second


def test_requests_that_wait_for_a_timeout_keep_the_gateway_busy_together() -> None:
    """With a batch that cannot fill, a slower gateway costs its time for most of twenty, and not for one."""
    waiting = cell(max_size=64, timeout_us=5000)
    slower = CostProfile(
        batches=tuple(dataclasses.replace(one, gateway_s=2 * GATEWAY_S) for one in PROFILE.batches),
        client_batch=1,
        seconds=3.0,
    )
    before, after = (closed_form.mean_ms(each, load(20), waiting) for each in (PROFILE, slower))
    assert 10 * 1e3 * GATEWAY_S < after - before < 20 * 1e3 * GATEWAY_S
    alone = [closed_form.mean_ms(each, load(1), cell(max_size=1)) for each in (PROFILE, slower)]
    assert 0 < alone[1] - alone[0] < 1.01e3 * GATEWAY_S
