"""The load generator against real servers: a real client process, real sockets on loopback."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from tuner.errors import LoadGeneratorFailed
from tuner.load_generator import payloads
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.error_responses import MAX_REPORTED, message
from tuner.load_generator.plan import PhasePlan, Race, Warmup

ROOT = pathlib.Path(__file__).parents[3]
COLD = Warmup(seconds=0.0, round_trips=0)
BRIEF = Warmup(seconds=0.05, round_trips=3)


def load(generator, server, *, bodies=(b"hello",), method="POST", headers=None, **changes):
    """One phase; 40 requests on 4 connections without a warm-up unless said otherwise."""
    generator.set_payloads(
        payloads.raw(
            bodies, path="/x", method=method, headers=headers or {}, description="test payload"
        )
    )
    plan = {"concurrency": 4, "requests": 40, "warmup": COLD, "timeout_s": 5.0, **changes}
    if "seconds" in changes:
        plan["requests"] = None
    result = generator.run(PhasePlan(host="127.0.0.1", port=server.port, **plan))
    check(result, plan["concurrency"])
    return result


def check(result, concurrency):
    """What holds for the records of every phase."""
    records = result.records
    assert np.all(records.started_s <= records.finished_s)
    assert np.all(np.diff(records.finished_s) >= 0), "in order of completion"
    assert np.array_equal(records.intended_s, records.started_s), "closed loop"
    assert 0 <= result.warmup_end_s <= result.measured_end_s
    assert set(records.connection.tolist()) <= set(range(concurrency))
    cpu = result.client_cpu
    assert cpu.at_s[0] <= result.warmup_end_s
    assert cpu.at_s[-1] >= records.finished_s[-1]
    assert np.all(np.diff(cpu.at_s) >= 0)
    assert np.all(np.diff(cpu.used_s) >= 0)
    measured_s = cpu.between(np.array([result.warmup_end_s, result.measured_end_s]))
    assert measured_s == pytest.approx(result.client_cpu_s, abs=0.05)
    for index in range(concurrency):
        own = records.connection == index
        assert np.all(records.started_s[own][1:] >= records.finished_s[own][:-1]), (
            "one request at a time on a connection"
        )


def test_a_counted_phase_sends_exactly_its_requests(generator, serve):
    """Without a warm-up, the server sees as many as the records say, in turn and unchanged."""
    seen = []

    def habit(peer):
        while (request := peer.request()) is not None:
            seen.append(request)
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    bodies = [b"a", b"", b"c" * 5000]
    result = load(generator, serve(habit), bodies=bodies, requests=30, headers={"X-One": "two"})
    assert len(result.records) == len(seen) == 30
    assert result.records.status.tolist() == [200] * 30
    assert sorted(body for _, body in seen) == sorted(bodies * 10)
    for head, _ in seen:
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /x HTTP/1.1"
        assert b"X-One: two" in lines
        assert any(line.startswith(b"Host: 127.0.0.1:") for line in lines)
    assert result.reconnects == 0


def test_a_get_has_no_body_and_no_length(generator, serve):
    """Any HTTP server can be loaded, not only one of models."""
    heads = []

    def habit(peer):
        while (request := peer.request()) is not None:
            heads.append(request[0])
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    load(generator, serve(habit), bodies=[b""], method="GET", requests=5)
    assert all(head.startswith(b"GET /x HTTP/1.1\r\n") for head in heads)
    assert not any(b"content-length" in head.lower() for head in heads)


def test_a_timed_phase_warms_up_first_and_waits_for_what_is_in_flight(generator, serve):
    """Three answers per connection come before the measured part, and the last ones after it."""

    def habit(peer):
        while peer.request() is not None:
            time.sleep(0.02)
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    result = load(generator, serve(habit), seconds=0.3, warmup=BRIEF)
    records = result.records
    assert result.measured_s == pytest.approx(0.3)
    warm = records.finished_s <= result.warmup_end_s
    assert all(np.count_nonzero(warm & (records.connection == index)) >= 3 for index in range(4))
    assert records.finished_s[-1] > result.measured_end_s, "those in flight at the end are recorded"
    late = np.count_nonzero(records.started_s > result.measured_end_s)
    assert late <= 4, "but no connection sends twice more"
    assert records.status.tolist() == [200] * len(records)
    assert result.client_cpu_s < result.measured_s
    assert result.wall_s >= records.finished_s[-1]


def test_a_server_that_settles_is_waited_for(generator, serve):
    """Its first 40 answers take 20 ms, all others 2 ms; the wait has an end."""
    answered = itertools.count()

    def habit(peer):
        while peer.request() is not None:
            time.sleep(0.02 if next(answered) < 40 else 0.002)
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    where = serve(habit)
    result = load(generator, where, seconds=0.2, warmup=dataclasses.replace(BRIEF, settling_s=5.0))
    assert np.count_nonzero(result.records.finished_s <= result.warmup_end_s) >= 80
    assert result.warmup_end_s < 4.0
    answered = itertools.count()
    brief = dataclasses.replace(BRIEF, settling_s=0.1)
    assert load(generator, where, seconds=0.2, warmup=brief).warmup_end_s < 0.3


def test_a_lost_race_ends_the_phase_early(generator, serve):
    """A server that needs 20 ms is given up after the first look at 10 ms, and kept at 60 ms."""

    def habit(peer):
        while peer.request() is not None:
            time.sleep(0.02)
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    where = serve(habit)
    lost = Race(look_s=0.1, limits_ms=(10.0, 10.0))
    result = load(generator, where, seconds=0.4, warmup=BRIEF, race=lost)
    assert result.measured_s == pytest.approx(0.1)
    assert result.records.status.tolist() == [200] * len(result.records)
    kept = Race(look_s=0.1, limits_ms=(500.0, 500.0))
    result = load(generator, where, seconds=0.4, warmup=BRIEF, race=kept)
    assert result.measured_s == pytest.approx(0.4)


def test_the_concurrency_is_what_was_asked_for(generator, serve):
    """The server never holds more requests at once, and with time to think it holds as many."""
    lock = threading.Lock()
    held = [0]
    most = [0]

    def habit(peer):
        while peer.request() is not None:
            with lock:
                held[0] += 1
                most[0] = max(most[0], held[0])
            time.sleep(0.03)
            with lock:
                held[0] -= 1
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    server = serve(habit)
    load(generator, server, concurrency=7, requests=70)
    assert most[0] == 7
    assert server.connections == 7


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", id="plain"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            id="chunked",
        ),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            id="continue",
        ),
    ],
)
def test_an_answer_in_pieces_is_one_answer(generator, serve, answer):
    """A server that writes byte by byte gets one record per request, at the last byte."""

    def habit(peer):
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while peer.request() is not None:
            for byte in answer:
                peer.socket.sendall(bytes([byte]))

    result = load(generator, serve(habit), requests=12)
    assert result.records.status.tolist() == [200] * 12
    assert result.reconnects == 0


def test_a_server_that_closes_after_each_answer_is_measured_too(generator, serve):
    """Connection: close, with the body ended by the close, costs a connection and no error."""

    def habit(peer):
        peer.request()
        if peer.number % 2:
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end")
        else:
            peer.socket.sendall(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
            )

    server = serve(habit)
    result = load(generator, server, requests=20)
    assert result.records.status.tolist() == [200] * 20
    assert result.last_loss == ""
    assert result.reconnects == 20


def test_errors_of_the_server_are_answers(generator, serve):
    """A phase of nothing but 500s and 404s runs to its end."""

    def habit(peer):
        status = b"500 Oops" if peer.number % 2 else b"404 None"
        peer.answer_all(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nno")

    result = load(generator, serve(habit), seconds=0.1, warmup=BRIEF)
    assert set(result.records.status.tolist()) == {404, 500}


def test_what_the_first_error_said_is_kept_on_one_line(generator, serve):
    """A status alone tells little; a long or binary body stays one short, printable line."""
    body = b"first\n line \x00 " + b"x" * 1000

    def habit(peer):
        peer.answer_all(b"HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    result = load(generator, serve(habit))
    assert result.first_error.startswith("first line ? xxx")
    assert result.first_error.endswith("x ...")
    assert len(result.first_error) == MAX_REPORTED
    assert result.why_failed == f'the first one said "{result.first_error}"'


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda peer: None, "closed the connection", id="closes"),
        pytest.param(
            lambda peer: peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
            "without a complete response",
            id="half an answer",
        ),
        pytest.param(lambda peer: peer.socket.sendall(b"\0garbage"), "not HTTP", id="garbage"),
        pytest.param(
            lambda peer: peer.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            ),
            "reset",
            id="resets",
        ),
    ],
)
def test_a_lost_request_is_status_zero_and_the_connection_is_replaced(
    generator, serve, spoil, reason
):
    """Every third request is lost; the others are answered on new connections."""

    def habit(peer):
        for turn in range(3):
            if peer.request() is None:
                return
            if turn == 2:
                spoil(peer)
                return
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    result = load(generator, serve(habit), concurrency=1, requests=24)
    status = result.records.status
    assert len(status) == 24
    assert np.count_nonzero(status == 0) == 8
    assert reason in result.last_loss
    assert reason in result.why_failed
    assert result.first_error == ""
    assert result.reconnects == 8


def test_surplus_bytes_cost_the_connection_and_not_the_answer(generator, serve):
    """What follows an answer uncalled must not be taken for the next one."""

    def habit(peer):
        peer.answer_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + b"HTTP/1.1 500 No\r\n")

    result = load(generator, serve(habit), requests=8)
    assert result.records.status.tolist() == [200] * 8


def test_a_hanging_request_is_lost_after_the_timeout(generator, serve):
    """The others go on meanwhile, and the phase still ends."""

    def habit(peer):
        if peer.number == 0:
            peer.request()
            peer.socket.recv(1)
            return
        while peer.request() is not None:
            time.sleep(0.01)
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    result = load(generator, serve(habit), seconds=2.0, timeout_s=1.0, warmup=COLD)
    lost = result.records.status == 0
    assert np.count_nonzero(lost) == 1
    took = (result.records.finished_s - result.records.started_s)[lost][0]
    assert took >= 1.0
    assert "no response within 1 s" in result.last_loss


def test_a_server_that_answers_nothing_ends_the_phase(generator, serve):
    """When every connection has timed out, there is nothing to wait for."""

    def habit(peer):
        while peer.request() is not None:
            pass

    with pytest.raises(
        LoadGeneratorFailed, match=r"none of the 4 connections .*no response within 0.1 s"
    ):
        load(generator, serve(habit), seconds=30.0, timeout_s=0.1, warmup=BRIEF)


def test_a_server_that_closes_everything_ends_the_phase(generator, serve):
    """Connections are tried again a bounded number of times, with pauses."""
    server = serve(lambda peer: peer.request())
    with pytest.raises(LoadGeneratorFailed, match="closed the connection"):
        load(generator, server, seconds=30.0, warmup=BRIEF)
    assert server.connections <= 4 * 10


def test_a_server_that_dies_in_the_middle_ends_the_phase(generator, serve):
    """The reason names the server and what became of the connections."""
    server = serve(lambda peer: peer.answer_all())
    timer = threading.Timer(0.3, server.stop)
    timer.start()
    with pytest.raises(
        LoadGeneratorFailed, match=r"127\.0\.0\.1:\d+: after \d+ requests none of the 4"
    ):
        load(generator, server, seconds=30.0, warmup=BRIEF)
    timer.join()


def test_a_server_that_is_not_there_is_said_at_once(generator, serve):
    """Refused connections, and a host without a name."""
    server = serve(lambda peer: None)
    server.stop()
    with pytest.raises(LoadGeneratorFailed, match=r"4 of 4 connections cannot be opened .*refused"):
        load(generator, server)
    with pytest.raises(LoadGeneratorFailed, match="host is not known"):
        generator.run(PhasePlan(host="no.such.host.invalid", port=1, concurrency=1, requests=1))


def test_a_host_of_several_addresses_is_reached_at_the_one_that_accepts(generator, serve):
    """The name localhost may mean ::1 first, where this server does not listen."""
    server = serve(lambda peer: peer.answer_all())
    result = generator_run_on(generator, "localhost", server.port)
    assert result.records.status.tolist() == [200] * 5


def generator_run_on(generator, host, port):
    generator.set_payloads(
        payloads.raw([b""], path="/", method="GET", headers={}, description="test payload")
    )
    return generator.run(PhasePlan(host=host, port=port, concurrency=1, requests=5, warmup=COLD))


def test_a_body_larger_than_the_socket_buffers_arrives_whole(generator, serve):
    """Partial writes go on when there is room, while other connections work."""
    body = os.urandom(6 << 20)
    seen = []

    def habit(peer):
        time.sleep(0.05)
        while (request := peer.request()) is not None:
            seen.append(request[1] == body)
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    result = load(generator, serve(habit), bodies=[body], concurrency=2, requests=4)
    assert seen == [True] * 4
    assert result.records.status.tolist() == [200] * 4


def test_an_answer_before_the_whole_body_was_sent_counts(generator, serve):
    """A server may refuse a large body by its head; the connection is not used again."""

    def habit(peer):
        peer.socket.recv(1000)
        peer.socket.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        hangup = select.poll()
        hangup.register(peer.socket, select.POLLRDHUP)
        hangup.poll(10_000)

    result = load(generator, serve(habit), bodies=[bytes(6 << 20)], concurrency=2, requests=6)
    assert result.records.status.tolist() == [413] * 6
    assert result.reconnects == 6


def test_large_answers_are_read_to_the_end(generator, serve):
    """An answer of many reads is one record."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + bytes(3_000_000)
    result = load(generator, serve(lambda peer: peer.answer_all(answer)), requests=8)
    assert result.records.status.tolist() == [200] * 8


def test_the_process_survives_phases_and_failures(serve):
    """One client for a whole study: phases, a failed one, and phases again."""
    with LoadGenerator() as generator:
        first = generator.pid
        server = serve(lambda peer: peer.answer_all())
        assert len(load(generator, server).records) == 40
        gone = serve(lambda peer: None)
        gone.stop()
        with pytest.raises(LoadGeneratorFailed):
            load(generator, gone)
        assert len(load(generator, server, concurrency=1, requests=3).records) == 3
        assert generator.pid == first
    assert generator.pid is None


def is_running(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition):
    """Up to 10 s; the caller asserts what it waited for."""
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)


def test_a_killed_client_is_said_and_replaced(serve):
    """The phase fails with the exit status; the next has a new process and the same payloads."""
    server = serve(lambda peer: peer.answer_all())
    with LoadGenerator() as generator:
        first = generator.pid
        timer = threading.Timer(0.2, os.kill, (first, signal.SIGKILL))
        timer.start()
        with pytest.raises(LoadGeneratorFailed, match=r"process ended \(exit status -9\)"):
            load(generator, server, seconds=30.0)
        timer.join()
        result = generator.run(
            PhasePlan(host="127.0.0.1", port=server.port, concurrency=2, requests=10, warmup=COLD)
        )
        assert len(result.records) == 10
        assert generator.pid != first


def test_closing_ends_the_process(serve):
    """Nothing is left behind, also when the block ends with an error."""
    seen = []

    def interrupted():
        with LoadGenerator() as generator:
            seen.append(generator.pid)
            assert is_running(generator.pid)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        interrupted()
    assert not is_running(seen[0])


def test_a_ctrl_c_does_not_reach_the_client(serve):
    """It has a process group of its own and ignores the signal: no traceback, no lost phase."""
    server = serve(lambda peer: peer.answer_all())
    with LoadGenerator() as generator:
        assert os.getpgid(generator.pid) != os.getpgid(0)
        os.kill(generator.pid, signal.SIGINT)
        assert len(load(generator, server).records) == 40


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "in a phase"])
def test_the_client_ends_with_the_tuner(serve, is_busy):
    """A tuner that is killed leaves no client behind, whether it waits or drives load."""
    server = serve(lambda peer: peer.answer_all())
    script = f"""
        import sys, time
        from tuner.load_generator import payloads
        from tuner.load_generator.client_process import LoadGenerator
        from tuner.load_generator.plan import PhasePlan
        with LoadGenerator() as generator:
            generator.set_payloads(payloads.raw([b""], path="/", method="GET", headers={{}},
                                                description="x"))
            print(generator.pid, flush=True)
            if {is_busy}:
                generator.run(PhasePlan(host="127.0.0.1", port={server.port}, concurrency=2,
                                       seconds=60.0))
            time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as tuner:
        pid = int(tuner.stdout.readline())
        if is_busy:
            wait_until(lambda: server.connections == 2)
        assert is_running(pid)
        tuner.kill()
    wait_until(lambda: not is_running(pid))
    assert not is_running(pid)


def test_two_servers_are_sent_different_requests_in_turn(generator, serve):
    """Each set travels once; a third one takes the place of the one that was used longest ago."""
    seen = []

    def habit(peer):
        while (request := peer.request()) is not None:
            seen.append(request[1])
            peer.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    where, handed = serve(habit), []
    hand_over = generator._hand_over
    generator._hand_over = lambda sent: (handed.append(sent.requests[0]), hand_over(sent))
    sets = {
        body: payloads.raw([body], path="/x", method="POST", headers={}, description="x")
        for body in (b"one", b"two", b"three")
    }
    turns = (b"one", b"two", b"one", b"three", b"one", b"two")
    for body in turns:
        generator.set_payloads(sets[body])
        plan = PhasePlan(host="127.0.0.1", port=where.port, concurrency=1, requests=2, warmup=COLD)
        generator.run(plan)
    assert seen == [body for body in turns for _ in range(2)]
    assert handed == [b"one", b"two", b"three", b"two"]


def test_nothing_to_send_is_said():
    """Running without payloads is a mistake of the caller, told in words."""
    with LoadGenerator() as generator, pytest.raises(LoadGeneratorFailed, match="set_payloads"):
        generator.run(PhasePlan(host="127.0.0.1", port=1, concurrency=1, requests=1))


def test_the_client_process_imports_nothing_heavy():
    """NumPy, Optuna and the like would cost each start, and memory beside the server."""
    code = (
        "import sys, tuner.load_generator.process as w\n"
        "heavy = {'numpy', 'pandas', 'scipy', 'optuna', 'aiohttp', 'asyncio', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"error": "ValueError: my model is sad"}', "ValueError: my model is sad"),
        ('{"error": "a text that is cut o', "a text that is cut o"),
        ('{"error": {"code": 3}}', '{"error": {"code": 3}}'),
        ('{"error": ""}', '{"error": ""}'),
        ("[" * 512, "[" * 512),
        ("busy", "busy"),
    ],
)
def test_the_text_is_taken_out_of_an_answer_of_json(body, told):
    """What has no text under `error` is told as it is."""
    assert message(body) == told
