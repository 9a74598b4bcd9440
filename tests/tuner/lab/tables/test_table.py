"""A recorded launch as the measurement that a study would have had."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import benches, recorded
from tuner.lab.tables.table import BenchmarkTable, outcome_of, status_of
from tuner.values.configuration import Configuration


def test_a_measurement_is_that_of_the_launch() -> None:
    rng = np.random.default_rng(0)
    launch = recorded.launch(benches.arena().default, 0, rng)
    found = BenchmarkTable(head=recorded.head(client_batch=2), evaluations=()).measurement_of(
        launch
    )
    assert found is not None
    assert found.requests == 4 * recorded.REQUESTS
    assert found.mean_ms == pytest.approx(np.mean([block.mean_ms for block in launch.blocks]))
    assert found.p50_ms < found.p95_ms < found.p99_ms
    assert found.p99_interval.low is not None
    assert found.mean_interval.low is not None
    assert found.mean_interval.low < found.mean_ms
    assert found.throughput_per_s == pytest.approx(1_000)
    assert found.time_per_item_ms == pytest.approx(0.5)
    assert found.noise.peak_memory_mb == 20.5


def test_a_launch_that_failed_has_none() -> None:
    lost = Configuration(
        {**benches.arena().default, "replica.memory_mb": 128, "replica.threads": 4}
    )
    launch = recorded.launch(lost, 0, np.random.default_rng(0))
    assert BenchmarkTable(head=recorded.head(), evaluations=()).measurement_of(launch) is None
    assert status_of(launch.outcome) == "oom"
    assert outcome_of("oom", launch.outcome.reason) == launch.outcome


def test_launches_of_a_cell_come_in_their_order() -> None:
    table = recorded.table()
    for launches in table.by_cell.values():
        assert [launch.sweep for launch in launches] == [0, 1, 2]
