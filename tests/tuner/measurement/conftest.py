"""Records and measurements for tests: a simulated closed loop, and plain values."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import pytest

from tuner.values.interval import Interval
from tuner.values.measurement import HostNoise, Measurement
from tuner.values.request_records import RequestRecords


def closed_loop(
    draw: Callable[[], float], *, concurrency: int, until_s: float, status: int = 200
) -> RequestRecords:
    """Clients that each send again at once; `draw` gives the next latency. The last ones finish after `until_s`."""
    rows = []
    clients = [(0.0, 0.0, client) for client in range(concurrency)]
    clients = [(draw(), started, client) for _, started, client in clients]
    heapq.heapify(clients)
    while clients:
        finished, started, client = heapq.heappop(clients)
        rows.append((started, finished, client))
        if finished < until_s:
            heapq.heappush(clients, (finished + draw(), finished, client))
    started_s = np.array([row[0] for row in rows])
    return RequestRecords(
        intended_s=started_s,
        started_s=started_s,
        finished_s=np.array([row[1] for row in rows]),
        status=np.full(len(rows), status, np.int16),
        connection=np.array([row[2] for row in rows], np.int32),
    )


@pytest.fixture
def simulate() -> Callable[..., RequestRecords]:
    """`closed_loop`."""
    return closed_loop


@pytest.fixture
def measured() -> Callable[..., Measurement]:
    """A measurement with some figures, the others plain."""

    def make(mean_ms: float = 10.0, **changes: object) -> Measurement:
        unknown = Interval(low=None, high=None)
        fields = {
            "requests": 1000,
            "errors": 0,
            "seconds": 2.0,
            "mean_ms": mean_ms,
            "mean_interval": unknown,
            "p50_ms": mean_ms,
            "p50_interval": unknown,
            "p95_ms": 1.5 * mean_ms,
            "p95_interval": unknown,
            "p99_ms": 2 * mean_ms,
            "p99_interval": unknown,
            "throughput_per_s": 20e3 / mean_ms,
            "little_error": 0.0,
            "warmup_s": 0.5,
            "blocks": (),
            "noise": HostNoise(),
        }
        return Measurement(**{**fields, **changes})

    return make


@pytest.fixture(scope="module")
def simulate_module() -> Callable[..., RequestRecords]:
    """`closed_loop`, for tests of many examples."""
    return closed_loop
