"""Slices of a load as one load."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load_generator.phase_result import PhaseResult, concatenate
from tuner.measurement import summary
from tuner.values.measurement import HostNoise
from tuner.values.request_records import CpuTimeSeries, RequestRecords


def part(rng, *, seconds, warmup_s, rate=200.0, cpu_rate=0.1, **changes):
    """A load of one connection that answers at random times."""
    whole_s = warmup_s + seconds + 0.05
    finished_s = np.sort(rng.uniform(0, whole_s, int(rate * whole_s)))
    started_s = finished_s - rng.uniform(0.001, 0.02, len(finished_s))
    at_s = np.arange(0, whole_s + 0.02, 0.02)
    plain = {
        "origin_s": 0.0,
        "client_cpu_s": cpu_rate * seconds,
        "wall_s": whole_s,
        "reconnects": 1,
        "last_loss": "",
        "fell_behind": 0.0,
        "first_error": "",
    }
    return PhaseResult(
        records=RequestRecords(
            intended_s=started_s,
            started_s=started_s,
            finished_s=finished_s,
            status=np.full(len(finished_s), 200, dtype=np.int16),
            connection=np.zeros(len(finished_s), dtype=np.int32),
        ),
        warmup_end_s=warmup_s,
        measured_end_s=warmup_s + seconds,
        client_cpu=CpuTimeSeries(at_s=at_s, used_s=5.0 + cpu_rate * at_s),
        **{**plain, **changes},
    )


def summarised(load):
    return summary.summarise(
        load.records,
        concurrency=1,
        warmup_s=load.warmup_end_s,
        seconds=load.measured_s,
        block_s=0.1,
        noise=HostNoise(),
        client_cpu=load.client_cpu,
    )


@given(st.lists(st.floats(0.2, 1.0), min_size=1, max_size=5), st.integers(0, 99))
def test_a_joined_load_has_the_measured_requests_of_its_parts(lengths, seed):
    """As many, as long, and with the mean of all; nothing of the warm-ups."""
    rng = np.random.default_rng(seed)
    parts = [part(rng, seconds=length, warmup_s=0.1) for length in lengths]
    whole = concatenate(parts)
    alone = [summarised(one) for one in parts]
    together = summarised(whole)
    assert whole.measured_s == pytest.approx(sum(lengths))
    assert together.requests == sum(one.requests for one in alone)
    expected = sum(one.mean_ms * one.requests for one in alone) / together.requests
    assert together.mean_ms == pytest.approx(expected)
    assert whole.client_cpu_s == pytest.approx(0.1 * sum(lengths))


def test_blocks_of_a_joined_load_are_those_of_its_parts():
    """Requests and CPU time of each tenth of a second stay where they were."""
    rng = np.random.default_rng(0)
    parts = [part(rng, seconds=0.3, warmup_s=0.1, cpu_rate=rate) for rate in (0.1, 0.4)]
    found = summarised(concatenate(parts)).blocks
    alone = [block for one in parts for block in summarised(one).blocks]
    assert [block.requests for block in found] == [block.requests for block in alone]
    assert [block.mean_ms for block in found] == pytest.approx([one.mean_ms for one in alone])
    assert [block.client_cpu_s for block in found] == pytest.approx([0.01] * 3 + [0.04] * 3)


def test_what_went_wrong_in_any_part_is_kept():
    """The first error, the last loss; replaced connections together."""
    rng = np.random.default_rng(0)
    parts = [
        part(rng, seconds=0.2, warmup_s=0.1),
        part(rng, seconds=0.2, warmup_s=0.1, first_error="no", last_loss="reset"),
        part(rng, seconds=0.2, warmup_s=0.1, first_error="never"),
    ]
    whole = concatenate(parts)
    assert (whole.first_error, whole.last_loss) == ("no", "reset")
    assert whole.reconnects == 3
