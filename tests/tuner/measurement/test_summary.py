"""From records to a measurement."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import LoadGeneratorFailed
from tuner.measurement.outcome import measure_outcome
from tuner.measurement.summary import summarise
from tuner.values.measurement import HostNoise, Measurement
from tuner.values.request_records import RequestRecords

NOISE = HostNoise(steal_s=0.25, client_cpu_s=0.5)


def records_of(rows):
    """Records from (started_s, finished_s, status), in order of completion."""
    rows = sorted(rows, key=lambda row: row[1])
    started_s = np.array([row[0] for row in rows], float)
    return RequestRecords(
        intended_s=started_s,
        started_s=started_s,
        finished_s=np.array([row[1] for row in rows], float),
        status=np.array([row[2] for row in rows], np.int16),
        connection=np.zeros(len(rows), np.int32),
    )


def measure(records, **changes):
    plan = {"concurrency": 4, "warmup_s": 1.0, "seconds": 2.0, "noise": NOISE, **changes}
    return summarise(records, **plan)


def test_a_steady_load_gives_its_figures():
    """Four clients with latencies of 10 ms: known mean, percentiles, throughput, blocks and no Little error."""
    rows = [(0.01 * turn, 0.01 * (turn + 1), 200) for turn in range(400) for _ in range(4)]
    found = measure(records_of(rows))
    assert found.requests == 800
    assert found.errors == 0
    assert found.mean_ms == pytest.approx(10)
    assert found.p50_ms == pytest.approx(10)
    assert found.p99_ms == pytest.approx(10)
    assert found.throughput_per_s == pytest.approx(400)
    assert found.little_error == pytest.approx(0, abs=1e-9)
    assert [block.requests for block in found.blocks] == [200] * 4
    assert found.blocks[0].start_s == 1.0
    assert found.warmup_s == 1.0
    assert found.noise == NOISE


def test_requests_of_several_items_have_a_rate_and_a_time_per_item():
    """800 requests of 4 items in 2 s: 400 requests/s, 1,600 items/s, 0.625 ms per item; Little's law as ever."""
    rows = [(0.01 * turn, 0.01 * (turn + 1), 200) for turn in range(400) for _ in range(4)]
    found = measure(records_of(rows), client_batch=4)
    assert found.throughput_per_s == pytest.approx(400)
    assert found.items_per_s == pytest.approx(1600)
    assert found.time_per_item_ms == pytest.approx(1e3 * found.seconds / (found.requests * 4))
    assert found.little_error == pytest.approx(0, abs=1e-9)


def test_two_clusters_of_latencies_show_in_the_spread():
    """Clients of 10 ms and of 30 ms: nine in ten latencies lie within 20 ms of one another."""
    rows = [(0.01 * turn, 0.01 * (turn + 1), 200) for turn in range(400)]
    rows += [(0.03 * turn, 0.03 * (turn + 1), 200) for turn in range(133)]
    found = measure(records_of(rows), concurrency=2)
    assert found.spread_ms == pytest.approx(20)
    assert found.spread_interval.low < 20.001
    assert found.spread_interval.high > 19.999


def test_a_measurement_of_an_older_version_is_read():
    """Its spread is not known; all else is."""
    rows = [(0.01 * turn, 0.01 * (turn + 1), 200) for turn in range(400)]
    kept = measure(records_of(rows), concurrency=1).as_json()
    for name in ("client_batch", "spread_ms", "spread_interval"):
        del kept[name]
    found = Measurement.from_json(kept)
    assert found.spread_ms == 0
    assert found.client_batch == 1


def test_a_measurement_survives_its_stored_form(simulate):
    """What the store keeps is what was measured."""
    rng = np.random.default_rng(0)
    records = simulate(lambda: rng.uniform(0.005, 0.02), concurrency=4, until_s=3.0)
    found = measure(records)
    assert Measurement.from_json(found.as_json()) == found


def test_the_warmup_and_what_ends_late_are_in_no_figure():
    """Slow first requests and those still in flight at the end change nothing."""
    steady = [(1.0 + 0.01 * turn, 1.01 + 0.01 * turn, 200) for turn in range(200) for _ in range(4)]
    slow_start = [(0.0, 0.9, 200), (0.0, 1.0, 500)]
    slow_end = [(2.9, 9.0, 200), (2.9, 9.5, 0)]
    assert measure(records_of(slow_start + steady + slow_end)) == measure(records_of(steady))


def test_the_last_request_of_a_counted_phase_counts():
    """It finishes exactly at the end, whatever the rounding of start plus length."""
    end_s = 0.1 + 0.2
    records = records_of([(0.15, 0.2, 200), (0.2, 0.3, 200), (0.2, end_s, 200)])
    assert measure(records, warmup_s=0.1, seconds=end_s - 0.1).requests == 3


def test_errors_are_counted_apart():
    """Latency and throughput are of answers with 2xx; Little's law of all."""
    rows = [
        (0.01 * turn, 0.01 * (turn + 1), status)
        for turn in range(400)
        for status in (200, 201, 503, 0)
    ]
    found = measure(records_of(rows))
    assert (found.requests, found.errors) == (400, 400)
    assert found.throughput_per_s == pytest.approx(200)
    assert found.little_error == pytest.approx(0, abs=1e-9)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    concurrency=st.integers(1, 40),
    spread=st.floats(0.01, 1.5),  # nearer to none, latencies end on the edges themselves
)
def test_littles_law_is_off_by_what_crosses_the_edges(simulate_module, seed, concurrency, spread):
    """In a closed loop, by the latencies begun before the window less those that outlast it, and nothing else."""
    rng = np.random.default_rng(seed)
    records = simulate_module(
        lambda: 0.02 * np.exp(spread * rng.standard_normal() - spread**2 / 2),
        concurrency=concurrency,
        until_s=6.0,
    )
    found = measure(records, concurrency=concurrency, seconds=4.0)
    edges_s = ages_s(records, 1.0) - ages_s(records, 5.0)
    assert found.little_error == pytest.approx(abs(edges_s) / (4.0 * concurrency), abs=1e-9)


def ages_s(records, at_s):
    """Since when the requests in flight at a time have been in flight, together."""
    is_there = (records.started_s <= at_s) & (records.finished_s > at_s)
    return float((at_s - records.started_s[is_there]).sum())


def test_a_load_that_was_not_kept_up_shows_in_littles_law():
    """Clients that pause as long as they wait have half the concurrency."""
    rows = [(0.02 * turn, 0.02 * turn + 0.01, 200) for turn in range(200) for _ in range(4)]
    assert measure(records_of(rows)).little_error == pytest.approx(0.5, abs=0.02)


def test_a_server_that_stalls_at_the_end_shows_in_littles_law():
    """Its slow requests are not among those that finished, but the missing ones are missed."""
    rows = [(0.01 * turn, 0.01 * (turn + 1), 200) for turn in range(200) for _ in range(4)]
    rows += [(2.0, 8.0, 200)] * 4
    assert measure(records_of(rows)).little_error == pytest.approx(0.5, abs=0.01)


def test_a_server_slower_than_a_block_is_measured_with_what_there_is():
    """Latencies of 0.8 s in 2 s: a mean without an interval, percentiles with open ends."""
    rows = [(0.8 * turn, 0.8 * (turn + 1), 200) for turn in range(5) for _ in range(4)]
    found = measure(records_of(rows), seconds=2.0)
    assert found.requests == 8
    assert found.mean_ms == pytest.approx(800)
    assert found.mean_interval.low is None
    assert found.p99_interval.high is None
    assert len(found.blocks) <= 1


def test_few_fast_requests_need_no_block():
    """A counted phase may be over before the first block."""
    rows = [(0.001 * turn, 0.001 * (turn + 1), 200) for turn in range(20)]
    found = measure(records_of(rows), warmup_s=0.0, seconds=0.02, concurrency=1)
    assert found.requests == 20
    assert found.blocks == ()


def test_an_open_loop_is_judged_by_when_requests_were_due():
    """A stall of the last second: all that was due counts, with the wait from then; the rate is of answers."""
    due_s = 0.01 * np.arange(400)
    finished_s = np.where(due_s < 2.0, due_s + 0.005, 3.5 + 0.005 * np.arange(400))
    order = np.argsort(finished_s)
    records = RequestRecords(
        intended_s=due_s[order],
        started_s=np.where(due_s < 2.0, due_s, finished_s - 0.005)[order],
        finished_s=finished_s[order],
        status=np.full(400, 200, np.int16),
        connection=np.zeros(400, np.int32),
    )
    found = measure(records, concurrency=None)
    assert found.requests == 200, "due in (1, 3], answered or not by then"
    assert found.p50_ms > 1000
    assert found.throughput_per_s == pytest.approx(50, abs=1), "the stalled second had no answer"
    assert found.little_error is None
    assert Measurement.from_json(found.as_json()) == found


FAILURES = {
    "all errors": (
        [(1.0, 1.5, 503)] * 9 + [(1.0, 1.6, 0)],
        "errors",
        "9 x status 503, 1 x no response",
    ),
    "nothing sent": ([], "timeout", "no request was sent"),
    "nothing in time": ([(0.0, 0.9, 200), (0.9, 7.5, 200)], "timeout", "latency was 6.6 s"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_phase_without_an_answer_has_a_reason_and_no_figure(case):
    """Neither NaN nor zero: an exception from the summary, a failed outcome from the judge."""
    rows, cause, reason = FAILURES[case]
    with pytest.raises(LoadGeneratorFailed, match=reason):
        measure(records_of(rows))
    outcome, measurement = measure_outcome(
        records_of(rows), concurrency=4, warmup_s=1.0, seconds=2.0, noise=NOISE
    )
    assert (outcome.status, outcome.cause, measurement) == ("failed", cause, None)
    assert reason in outcome.reason


@pytest.mark.parametrize(("errors", "status"), [(0, "ok"), (1, "ok"), (10, "ok"), (11, "failed")])
def test_one_error_in_a_hundred_is_borne(errors, status):
    """Up to there the measurement stands and tells its errors; above it the trial has failed."""
    rows = [(1.0, 1.1 + number / 1000, 500 if number < errors else 200) for number in range(1000)]
    outcome, measurement = measure_outcome(
        records_of(rows), concurrency=4, warmup_s=1.0, seconds=2.0, noise=NOISE
    )
    assert outcome.status == status
    if status == "ok":
        assert measurement.errors == errors
    else:
        assert measurement is None
        assert outcome.reason == "11 of 1000 requests (1.1 %) failed: 11 x status 500"


def test_good_answers_are_those_within_the_deadline():
    """Clients of 10 ms and of 30 ms: by 20 ms, 100 answers a second in each of four blocks."""
    rows = [(0.01 * turn, 0.01 * (turn + 1), 200) for turn in range(400)]
    rows += [(0.03 * turn, 0.03 * (turn + 1), 200) for turn in range(133)]
    found = measure(records_of(rows), concurrency=2, deadline_ms=20.0)
    assert found.goodput_per_s == pytest.approx(100)
    assert found.goodput_interval.low == pytest.approx(100, rel=0.05)
    assert found.goodput_interval.high == pytest.approx(100, rel=0.05)
    assert measure(records_of(rows), concurrency=2, deadline_ms=1e6).goodput_per_s == (
        pytest.approx(found.throughput_per_s)
    )
    assert measure(records_of(rows), concurrency=2, deadline_ms=1.0).goodput_per_s == 0
    assert measure(records_of(rows), concurrency=2).goodput is None
    assert Measurement.from_json(found.as_json()) == found


def test_an_answer_that_comes_late_is_no_good_one_in_an_open_loop():
    """Late against when it was due."""
    due_s = 0.01 * np.arange(400)
    records = RequestRecords(
        intended_s=due_s,
        started_s=due_s + 0.05,
        finished_s=due_s + 0.055,
        status=np.full(400, 200, np.int16),
        connection=np.zeros(400, np.int32),
    )
    assert measure(records, concurrency=None, deadline_ms=20.0).goodput == 0
    assert measure(records, concurrency=None, deadline_ms=60.0).goodput == pytest.approx(100, abs=1)
