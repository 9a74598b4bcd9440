"""Several client processes against real servers on loopback."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from tests.tuner.load_generator.conftest import OK
from tuner.errors import LoadGeneratorFailed, LoadGeneratorLost
from tuner.load_generator import payloads
from tuner.load_generator.client_group import LoadGeneratorGroup, make_load_generator
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.plan import PhasePlan, Warmup

BRIEF = Warmup(seconds=0.05, round_trips=1)
BODIES = [b"%d" % number for number in range(7)]


@pytest.fixture(name="group", scope="module")
def _group():
    with LoadGeneratorGroup(3) as group:
        group.set_payloads(
            payloads.raw(BODIES, path="/x", method="POST", headers={}, description="numbers")
        )
        yield group


def plan_for(server, **changes):
    plan = {"concurrency": 7, "seconds": 0.4, "warmup": BRIEF, "timeout_s": 5.0, **changes}
    return PhasePlan(host="127.0.0.1", port=server.port, **plan)


def test_a_closed_loop_keeps_all_its_connections_busy(group, serve):
    """Each connection is one client's; all measure the same part."""
    server = serve(lambda peer: peer.answer_all())
    result = group.run(plan_for(server))
    records = result.records
    assert set(records.connection.tolist()) == set(range(7))
    assert np.all(records.status == 200)
    assert np.all(np.diff(records.finished_s) >= 0)
    assert result.measured_s == pytest.approx(0.4, abs=0.02)
    busy = [
        np.sum((records.started_s <= at) & (records.finished_s > at))
        for at in np.linspace(result.warmup_end_s, result.measured_end_s, 50)
    ]
    assert 4 <= np.mean(busy) <= 7


def test_all_clients_go_on_until_each_has_its_answers(group, serve):
    """The connections of the quick ones stay busy until the slow ones have enough."""
    peers = []

    def habit(peer):
        peers.append(peer)
        while peer.request() is not None:
            time.sleep(0.3 if peer is peers[0] else 0.01)
            peer.socket.sendall(OK)

    server = serve(habit)
    result = group.run(plan_for(server, concurrency=3, answers=9))
    at_s, end_s = result.records.finished_s, result.measured_end_s
    counted = (at_s > result.warmup_end_s) & (at_s <= end_s)
    assert result.measured_s == pytest.approx(1.0, abs=0.15)
    for connection in range(3):
        own = at_s[counted & (result.records.connection == connection)]
        assert len(own) >= 3
        assert own.max() > end_s - 0.35


def test_requests_are_counted_over_all_clients(group, serve):
    """As many as were asked for in all, and what was answered until each saw that it had begun."""

    def habit(peer):
        while peer.request() is not None:
            time.sleep(0.005)
            peer.socket.sendall(OK)

    server = serve(habit)
    result = group.run(plan_for(server, seconds=None, requests=200))
    records = result.records
    assert 200 <= np.sum(records.finished_s > result.warmup_end_s) < 400
    assert result.measured_end_s == records.finished_s[-1]


def test_arrivals_are_the_schedule_of_one_client(group, serve):
    """Each is sent once at its time, and each body in its turn, as by one client."""
    sent = []

    def habit(peer):
        while (request := peer.request()) is not None:
            sent.append(request[1])
            peer.socket.sendall(OK)

    server = serve(habit)
    plan = plan_for(server, rate_per_s=300.0, spread="poisson", seed=5, concurrency=9)
    records = group.run(plan).records
    whole = plan.arrivals
    intended = np.sort(records.intended_s)
    assert intended == pytest.approx(
        [whole.due_s(n, 0, 0.0) for n in range(len(intended))], abs=1e-3
    )
    numbers = {body: sent.count(body) for body in BODIES}
    assert max(numbers.values()) - min(numbers.values()) <= 1, "each body in its turn"


def test_a_client_that_dies_is_told_and_replaced(group, serve):
    """The phase is lost, no client is left in it, and the next phase has all of them."""
    server = serve(lambda peer: peer.answer_all())
    group.run(plan_for(server))
    first = group.pids
    timer = threading.Timer(0.3, os.kill, (first[1], signal.SIGKILL))
    timer.start()
    begun_s = time.monotonic()
    with pytest.raises(LoadGeneratorLost, match="ended"):
        group.run(plan_for(server, seconds=1.0))
    timer.join()
    assert time.monotonic() - begun_s < 10
    assert group.pids == []
    assert len(group.run(plan_for(server)).records) > 0
    assert not set(first) & set(group.pids)


def test_a_server_that_is_gone_is_told_once(group, serve):
    """By the first client that says so; the group works on with another server."""
    server = serve(lambda peer: peer.answer_all())
    port = server.port
    server.stop()
    gone = PhasePlan(host="127.0.0.1", port=port, concurrency=3, seconds=0.4, warmup=BRIEF)
    with pytest.raises(LoadGeneratorFailed, match="cannot be opened"):
        group.run(gone)
    other = serve(lambda peer: peer.answer_all())
    assert len(group.run(plan_for(other)).records) > 0


def test_each_client_needs_a_connection(group, serve):
    """Said before anything is sent."""
    server = serve(lambda peer: peer.answer_all())
    with pytest.raises(LoadGeneratorFailed, match="fewer --load-clients"):
        group.run(plan_for(server, concurrency=2))


def test_one_client_is_the_load_generator_itself():
    """Without a group around it."""
    assert type(make_load_generator(1)) is LoadGenerator
    assert type(make_load_generator(2)) is LoadGeneratorGroup
