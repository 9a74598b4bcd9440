"""The open loop: a real client process against real servers that are late, too few, or silent."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tuner.load_generator import payloads
from tuner.load_generator.phase import Phase
from tuner.load_generator.plan import PhasePlan, Warmup

pytestmark = pytest.mark.processes

COLD = Warmup(seconds=0.0, round_trips=0)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def load(generator, server, **changes):
    """One phase at a rate; constant arrivals and no warm-up unless said otherwise."""
    generator.set_payloads(
        payloads.raw([b"hello"], path="/x", method="POST", headers={}, description="test payload")
    )
    plan = {
        "concurrency": 4,
        "seconds": 0.5,
        "warmup": COLD,
        "timeout_s": 5.0,
        "spread": "constant",
        **changes,
    }
    result = generator.run(PhasePlan(host="127.0.0.1", port=server.port, **plan))
    records = result.records
    assert np.all(records.intended_s <= records.started_s)
    assert np.all(records.started_s <= records.finished_s)
    assert np.all(np.diff(records.finished_s) >= 0), "in order of completion"
    return result


@pytest.mark.parametrize("spread", ["constant", "poisson", "burst", "trace"])
def test_requests_are_sent_when_they_are_due(generator, serve, spread):
    """The schedule of the plan, number by number, whatever the answers do; half of them within 1 ms."""
    plan = {"rate_per_s": 200.0, "spread": spread, "seed": 7}
    if spread == "trace":
        plan["offsets_s"] = (0.0, 0.1, 0.3, 0.7)
    schedule = PhasePlan(host="h", port=1, concurrency=4, seconds=1.0, **plan).arrivals
    server = serve(lambda peer: peer.answer_all())
    late_s = []
    for _ in range(3):  # the best of them: a busy machine delays any one
        result = load(generator, server, seconds=0.4, **plan)
        due_s = np.sort(result.records.intended_s)
        assert due_s.tolist() == [schedule.due_s(number, 0, 0.0) for number in range(len(due_s))]
        assert len(due_s) == schedule.belonging(0, result.measured_end_s)
        late_s.append(np.median(result.records.started_s - result.records.intended_s))
        if late_s[-1] < 1e-3:
            break
    assert min(late_s) < 1e-3


def test_a_server_that_stalls_is_charged_from_when_requests_were_due(generator, serve):
    """A closed loop would see one slow answer; of 100 a second, 30 were kept waiting by a stall of 0.3 s."""

    def habit(peer):
        stalls_at_s = time.monotonic() + 0.1
        while peer.request() is not None:
            if time.monotonic() > stalls_at_s:
                time.sleep(0.3)
                stalls_at_s = float("inf")
            peer.socket.sendall(OK)

    result = load(generator, serve(habit), concurrency=1, rate_per_s=100.0, seconds=0.6)
    records = result.records
    took_s = np.sort(records.finished_s - records.intended_s)
    assert np.count_nonzero(took_s > 0.05) >= 20
    assert took_s[-1] >= 0.29
    slow = np.count_nonzero(records.finished_s - records.started_s > 0.05)
    assert 1 <= slow <= 3, "the stall, and what a busy machine may add"


def test_an_overloaded_phase_sends_all_that_was_due_and_then_ends(generator, serve):
    """Twice what one connection carries: what waits at the end of the phase is sent after it."""

    def habit(peer):
        while peer.request() is not None:
            time.sleep(0.01)
            peer.socket.sendall(OK)

    result = load(generator, serve(habit), concurrency=1, rate_per_s=200.0, seconds=0.3)
    records = result.records
    assert len(records) == 61
    assert records.status.tolist() == [200] * 61
    assert records.started_s[-1] > result.measured_end_s
    assert records.intended_s.max() <= result.measured_end_s


def test_a_phase_that_cuts_an_overload_ends_when_its_time_is_over(generator, serve):
    """What has no answer by then is lost, in flight or unsent, and each request that was due is on record once."""

    def habit(peer):
        while peer.request() is not None:
            time.sleep(0.02)
            peer.socket.sendall(OK)

    plan = {"concurrency": 2, "rate_per_s": 1000.0, "seconds": 0.5, "cuts_overload": True}
    result = load(generator, serve(habit), **plan)
    records = result.records
    assert len(records) == 501
    assert 0.8 < result.fell_behind < 1
    assert np.count_nonzero(records.connection == -1) > 400
    assert np.count_nonzero((records.status == 0) & (records.connection >= 0)) <= 2
    assert result.wall_s < 1.5
    assert result.last_loss == "the server fell behind"


def test_a_server_that_keeps_up_is_not_behind(generator, serve):
    """Of 100 a second, over enough connections for answers that take 50 ms."""

    def habit(peer):
        while peer.request() is not None:
            time.sleep(0.05)
            peer.socket.sendall(OK)

    plan = {"concurrency": 20, "rate_per_s": 100.0, "seconds": 0.6, "cuts_overload": True}
    result = load(generator, serve(habit), **plan)
    assert result.fell_behind == 0
    assert np.all(result.records.status == 200)


def test_what_no_connection_was_free_for_is_lost_unsent_after_the_timeout(generator, serve):
    """An overload does not go on for ever: status 0, no connection, and the reason."""
    seen = []

    def habit(peer):
        while peer.request() is not None:
            seen.append(1)
            time.sleep(0.1)
            peer.socket.sendall(OK)

    result = load(
        generator, serve(habit), concurrency=1, rate_per_s=100.0, seconds=0.4, timeout_s=0.15
    )
    records = result.records
    unsent = records.connection == -1
    assert np.all(records.status[unsent] == 0)
    assert len(records) == 41
    assert np.count_nonzero(~unsent) == len(seen) < 10
    assert np.all((records.finished_s - records.intended_s)[unsent] >= 0.15)
    assert result.wall_s < 1.5
    assert "no connection was free within 0.15 s" in result.last_loss


def test_a_phase_counts_by_what_was_due():
    """Three answers end the warm-up, however many connections; then so many requests count."""
    plan = PhasePlan(
        host="h", port=1, concurrency=50, requests=30, rate_per_s=10.0, spread="constant"
    )
    phase = Phase(plan)
    phase.advance(0.55, sent=6, finished=2, min_round_trips=0)
    assert phase.warmup_end_s is None
    phase.advance(0.65, sent=7, finished=3, min_round_trips=0)
    assert phase.warmup_end_s == 0.65
    assert phase.limit == 37, "due at 0, 0.1 ... 0.6, and 30 more"
