"""The campaign's own parts: what the oracles find, what the observer sees, the ledger, the page, the plan."""

import contextlib
import dataclasses
import pathlib
import random
import re
import socket
import tempfile
import threading
from collections import Counter

import pytest

from tests.abuse import h2wire, machine, oracles, page, targets, wire
from tests.abuse.campaign import Run
from tests.abuse.fuzz import LONGEST_BYTES, mutated
from tests.abuse.ledger import Entry, Ledger
from tests.abuse.observer import Seen, summary
from tests.abuse.oracles import Evidence, broken
from tests.abuse.relay import Relay, Way
from tests.abuse.stage import Allowance, Context, Stage
from tests.abuse.stages import REPLAYS, STAGES, http2_table, http_table, readers
from tests.abuse.subject import Holding, Subject, SubjectSpec

HELD = Holding(memory_mib=200.0, descriptors=30, processes=4, temporary=1, groups=0)
GOOD = Evidence(
    is_alive=True,
    ready_s=0.01,
    before=HELD,
    after=HELD,
    peak_mib=210.0,
    seen={
        "health": Seen(answers=100, worst_ms=20.0, p99_ms=5.0, statuses=Counter({200: 100})),
        "echo": Seen(answers=100, worst_ms=30.0, p99_ms=8.0, statuses=Counter({200: 100})),
        "null": Seen(answers=100, worst_ms=10.0, p99_ms=2.0, statuses=Counter({200: 100})),
    },
    log="",
    log_bytes=0,
)
ENTRY = Entry(
    stage="C",
    title="a | title",
    half=1,
    seed=7,
    commit="abc",
    is_quick=False,
    date="2026-11-23",
    seconds=12.0,
    cases=100,
    failures=0,
    failed={},
    broken=[],
    notes=[],
    worst_health_ms=20.0,
    worst_echo_ms=30.0,
    worst_null_ms=10.0,
    p99_health_ms=5.0,
    growth_mib=1.0,
    peak_mib=10.0,
)


def seen(kind, **changes):
    return {**GOOD.seen, kind: dataclasses.replace(GOOD.seen[kind], **changes)}


@pytest.mark.parametrize(
    ("changes", "oracle"),
    [
        ({}, None),
        ({"is_alive": False}, "O1"),
        ({"ready_s": None}, "O1"),
        ({"seen": seen("health", worst_ms=261.0)}, "O2"),
        ({"seen": seen("echo", p99_ms=53.0)}, "O2"),
        ({"seen": seen("echo", statuses=Counter({200: 99, 500: 1}))}, "O2"),
        ({"seen": seen("echo", statuses=Counter({200: 99, 429: 1}))}, "O2"),
        ({"seen": {"null": GOOD.seen["null"]}}, "O2"),
        ({"after": dataclasses.replace(HELD, memory_mib=265.0)}, "O3"),
        ({"peak_mib": 800.0}, "O3"),
        ({"memory_kills": 1}, "O3"),
        ({"after": dataclasses.replace(HELD, descriptors=31)}, "O4"),
        ({"after": dataclasses.replace(HELD, temporary=2)}, "O4"),
        ({"log": "Traceback (most recent call last):\\nValueError: a"}, "O5"),
        ({"log_bytes": 1_000_001}, "O5"),
        ({"seen": seen("health", statuses=Counter({200: 99, 0: 1}))}, "O6"),
    ],
)
def test_each_oracle_finds_its_fault_and_no_other(changes, oracle):
    """A sentence for what is wrong; the same without the fault says nothing."""
    found = broken(dataclasses.replace(GOOD, **changes), Allowance())
    assert sorted({text.partition(" ")[0] for text in found}) == ([oracle] if oracle else [])


def test_delays_of_the_machine_are_not_the_servers():
    """What the null server beside it shows as well is taken off."""
    late = {kind: dataclasses.replace(one, worst_ms=400.0) for kind, one in GOOD.seen.items()}
    assert broken(dataclasses.replace(GOOD, seen=late), Allowance()) == []


def test_a_stage_may_allow_what_it_causes():
    """Overload, a gateway that is stopped, a model that raises."""
    busy = dataclasses.replace(GOOD, seen=seen("echo", statuses=Counter({200: 9, 429: 1, 503: 1})))
    assert broken(busy, Allowance(is_overload=True)) == []
    stopped = dataclasses.replace(GOOD, seen=seen("echo", worst_ms=9e3, statuses=Counter({0: 5})))
    assert broken(stopped, Allowance(stops_gateway=True)) == []
    raising = dataclasses.replace(GOOD, log="Traceback (most recent call last):\n")
    assert broken(raising, Allowance(tracebacks=True)) == []


def test_an_observation_that_is_half_written_does_not_count():
    """Worst, p99 and statuses of each kind."""
    found = summary([*(f"1.0 health {ms} 200" for ms in range(100)), "2.0 echo 7.5 0", "3.0 hea"])
    assert found["health"].worst_ms == 99
    assert found["health"].p99_ms == 98
    assert found["echo"].statuses == {0: 1}
    assert sorted(found) == ["echo", "health"]


def test_a_run_goes_on_where_it_was(tmp_path):
    """Entries of the same seed, commit and size count; a line that was cut off does not."""
    ledger = Ledger(tmp_path / "build" / "ledger.jsonl")
    ledger.add(ENTRY)
    ledger.add(dataclasses.replace(ENTRY, stage="D1", failures=1))
    ledger.add(dataclasses.replace(ENTRY, stage="D1", seed=8))
    with ledger.path.open("a") as file:
        file.write('{"stage": "E"')
    done = ledger.done(seed=7, commit="abc", is_quick=False)
    assert {name: entry.has_passed for name, entry in done.items()} == {"C": True, "D1": False}
    assert ledger.done(seed=7, commit="other", is_quick=False) == {}
    assert ledger.last_seed(commit="abc", is_quick=False) == 8
    assert [run[0] for run in ledger.runs()] == [7, 8]


def test_the_page_says_what_failed_in_plain_text(tmp_path):
    """One row for a stage; names with marks of Markdown in them stay text."""
    failed = dataclasses.replace(
        ENTRY, failures=1, failed={"a`b|c": "answered *500*\nand more"}, broken=["O1 not ready"]
    )
    stage = Stage(name="C", title="a | title", half=1, run=lambda context: None)
    text = page.rendered([[ENTRY], [failed]], [stage], "a machine")
    assert text.count("| C |") == 2
    assert "**failed**" in text
    assert "passed" in text
    assert "answered \\*500\\* and more" in text
    assert "a'b" in text
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(ENTRY)
    page.write(ledger, [stage], tmp_path / "abuse.md")
    assert "Seed 7, commit abc" in (tmp_path / "abuse.md").read_text()


def test_a_stage_without_its_tool_fails_and_says_so(tmp_path):
    """In a whole run; the quick one leaves it out."""
    stage = Stage(
        name="Z",
        title="none",
        half=1,
        run=lambda context: None,
        programs={"no-such-tool": "no-package"},
        spec=None,
    )
    run = Run(
        seed=1, commit="abc", is_quick=False, ledger=Ledger(tmp_path / "ledger.jsonl"), keeps=False
    )
    entry = run.stage(stage)
    assert not entry.has_passed
    assert "apt-get install no-package" in entry.broken[0]


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda context: context.case("a", None), None),
        (lambda context: context.case("a", "it is wrong", b"bytes"), "it is wrong"),
        (lambda context: 1 / 0, "ZeroDivisionError"),
        (lambda context: threading.Event().wait(30), "more than 0.3 s"),
    ],
)
def test_a_stage_that_fails_hangs_or_raises_has_failed(tmp_path, work, told):
    """And the run goes on."""
    stage = Stage(name="Z", title="none", half=1, run=work, spec=None, limit_s=0.3)
    run = Run(
        seed=1, commit="abc", is_quick=False, ledger=Ledger(tmp_path / "ledger.jsonl"), keeps=False
    )
    entry = run.stage(stage)
    assert entry.has_passed is (told is None)
    assert told is None or told in " ".join([*entry.broken, *entry.failed.values()])


def test_equal_seeds_make_equal_runs(tmp_path):
    """Of one stage; another stage draws other numbers."""

    def context(name, seed):
        return Context(name, seed=seed, is_quick=True, folder=tmp_path, subject=None, limit_s=1)

    assert context("A", 1).rng.random() == context("A", 1).rng.random()
    assert len({context(name, seed).rng.random() for name in "AB" for seed in (1, 2)}) == 4


def test_every_stage_of_the_table_is_there_once():
    """A to S, in two halves, each with what tries its stored cases again where these are bytes."""
    names = [stage.name for stage in STAGES]
    assert sorted(names) == sorted([*"ABC", "D1", "D2", *"EFGHIJKLMNOPQRS"])
    for half in (1, 2):
        assert sum(stage.limit_s for stage in STAGES if stage.half == half) < 7200
    quick_s = sum(stage.quick_limit_s for stage in STAGES if stage.is_quick)
    assert quick_s < 900, "the limits of the quick run, which takes less than half of them"
    assert set(REPLAYS) <= set(names)


def test_the_tables_name_every_row_once():
    """A case is known by its name."""
    for rows in (list(http_table.rows()), list(http2_table.rows())):
        names = [row.name for row in rows]
        assert len(names) == len(set(names))
        assert len(rows) > 60


def test_good_bytes_pass_every_target():
    """What fuzzers begin with is read, so that they get further than the first byte."""
    for name in targets.TARGETS:
        for data in targets.seeds(name):
            assert targets.escaped(name, data) is None
            assert targets.cost(name, data) < 1


def test_bombs_are_as_long_as_they_say():
    """At any size, and for readers that there are."""
    for size in (1 << 12, 1 << 16):
        for name, what, data in readers.bombs(size):
            assert name in targets.TARGETS
            assert size / 2 <= len(data) <= 2 * size, what


def test_mutations_stay_short():
    """And differ from what they began with."""
    rng = random.Random(1)
    pool = [b"abc" * 100, b""]
    made = {mutated(rng, pool) for _ in range(500)}
    assert len(made) > 300
    assert max(map(len, made)) <= LONGEST_BYTES


def test_answers_are_read_strictly():
    """Interim ones, ones to HEAD, and what is no whole answer."""
    data = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nab"
    )
    answers, rest = wire.parsed(data, frozenset({1}))
    assert [answer.status for answer in answers] == [100, 200, 200]
    assert rest.endswith(b"\r\n\r\nab")


@pytest.mark.parametrize(
    ("way", "passed"),
    [
        (Way(), b"0123456789"),
        (Way(piece_bytes=1), b"0123456789"),
        (Way(cut_request_at=4), b"0123"),
        (Way(cut_answer_at=3), b"012"),
    ],
)
def test_a_relay_passes_all_up_to_its_cut(way, passed):
    """Through a server that sends back what it gets."""
    arrived = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo():
            sock, _ = server.accept()
            with sock, contextlib.suppress(OSError):
                while data := sock.recv(100):
                    arrived.extend(data)
                    sock.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        got = b""
        with (
            contextlib.suppress(ConnectionError),
            Relay(server.getsockname()[1], way) as relay,
            socket.create_connection(("127.0.0.1", relay.port), 10) as sock,
        ):
            sock.sendall(b"0123456789")
            while len(got) < len(passed) and (data := sock.recv(100)):
                got += data
        thread.join(10)
    assert passed.startswith(got) if way.cut_request_at else got == passed
    assert bytes(arrived) == (passed if way.cut_request_at else b"0123456789")


def test_frames_are_those_of_the_rfc():
    """Section 4.1, and section 6.5 for SETTINGS."""
    assert h2wire.frame(h2wire.PING, 1, 3, b"12345678") == b"\0\0\x08\x06\x01\0\0\0\x0312345678"
    assert h2wire.settings(s4=1) == b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\x01"


def test_a_subject_is_watched_through_its_lives():
    """Started, asked, killed, started again on the same ports, and nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="abuse-", dir="/tmp") as folder:
        subject = Subject(pathlib.Path(folder), SubjectSpec(), is_pinned=False)
        with subject:
            port, first = subject.port, subject.pid
            held = subject.holding()
            assert held.processes >= 2
            assert held.memory_mib > 20
            subject.kill()
            assert not subject.is_ready()
            subject.restart()
            assert subject.ready_within(10) is not None
            assert (subject.port, subject.pid == first) == (port, False)
            assert re.search("luthier_", subject.metrics())
            mark = subject._mark
        assert machine.marked(mark) == []


def test_a_table_finds_a_server_that_is_wrong():
    """A server that answers everything with 200 fails the rows that must be refused."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lenient():
            for _ in range(2):
                sock, _ = server.accept()
                with sock:
                    sock.recv(65_536)
                    sock.sendall(answer)

        thread = threading.Thread(target=lenient)
        thread.start()
        port = server.getsockname()[1]
        rows = {row.name: row for row in http_table.rows()}
        told = {
            name: http_table.wrong(
                port,
                rows[name].data,
                rows[name].wanted,
                form="whole",
                stays_open=False,
                is_head=False,
            )
            for name in ("two lengths", "plain")
        }
        thread.join(10)
    assert told["plain"] is None
    assert "answered (200,)" in told["two lengths"]


def test_the_limits_are_those_that_the_page_promises():
    """Numbers of docs and issue, in one place."""
    assert (oracles.READY_S, oracles.WORST_MS, oracles.P99_MS, oracles.GROWTH_MIB) == (
        2,
        250,
        50,
        64,
    )
    assert (oracles.SETTLE_S, oracles.LOG_BYTES) == (10, 1_000_000)
