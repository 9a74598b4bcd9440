"""CPU time of the server for a request, also where it answers few while it settles."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.evaluation import phase_runner
from tuner.load_generator.phase_result import PhaseResult
from tuner.values.request_records import CpuTimeSeries, RequestRecords


def load(finished_s: np.ndarray[tuple[int], np.dtype[np.float64]], warmup_s: float) -> PhaseResult:
    """A phase of 3 s and its requests."""
    count = len(finished_s)
    none = np.empty(0)
    return PhaseResult(
        records=RequestRecords(
            intended_s=finished_s - 0.1,
            started_s=finished_s - 0.1,
            finished_s=finished_s,
            status=np.full(count, 200, dtype=np.int16),
            connection=np.zeros(count, dtype=np.int32),
        ),
        origin_s=0.0,
        warmup_end_s=warmup_s,
        measured_end_s=3.0,
        client_cpu_s=0.1,
        client_cpu=CpuTimeSeries(at_s=none, used_s=none),
        wall_s=3.0,
        reconnects=0,
        last_loss="",
        fell_behind=0.0,
        first_error="",
    )


@pytest.mark.parametrize("settling", [1.0, 0.2])
def test_the_time_of_a_request_is_that_of_all_requests(settling: float) -> None:
    """The warm-up's share follows from its requests, not from its seconds."""
    warmup = np.arange(0.0, 2.0, 0.01 / settling)
    phase = load(np.concatenate([warmup + 0.001, np.arange(2.0, 3.0, 0.01) + 0.001]), 2.0)
    used_s = 0.004 * len(phase.records.finished_s)
    told_s = used_s * phase_runner._server_share(phase)
    rate = 100.0
    assert told_s / (rate * 3.0) == pytest.approx(0.004, rel=0.02)


def test_a_phase_without_requests_keeps_its_time() -> None:
    assert phase_runner._server_share(load(np.empty(0), 2.0)) == 1.0
