"""F: one client that takes connections, names, items or time, and an honest one beside it.

The honest client has one connection. Its fair share is what it gets beside as many honest ones as the attacker
has, for on loopback a server tells clients apart by nothing else; it must keep 40 % of its share, and never be
without an answer for longer than a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.abuse import wire
from tests.abuse.stage import Allowance, Context, Stage
from tests.abuse.stages.memory import post, tensor
from tests.abuse.subject import SubjectSpec

MOST = 1000
"""Connections that the server of this stage lets in."""
LEAST_SHARE = 0.4
REFUSED_S = 1.0
CROWD = 20
"""Connections of most attackers."""
_HONEST = post(tensor([1, 3], "[1,2,3]"))
Attack = Callable[[Context, threading.Event], None]


def _honest(port: int, seconds: float, result: Any) -> None:
    """Ask as fast as it is answered, over one connection; put how many were, and the longest time without one."""
    with contextlib.suppress(OSError):
        os.nice(-10)  # else it would see how busy the attacker keeps the core that they share
    answered, longest_s, refusals = 0, 0.0, 0
    until_s = time.monotonic() + seconds
    last_s = time.monotonic()
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.settimeout(5)
            while time.monotonic() < until_s:
                sock.sendall(_HONEST)
                data = sock.recv(65_536)
                if not data:
                    break
                now_s = time.monotonic()
                if data.startswith(b"HTTP/1.1 200"):
                    answered += 1
                    longest_s, last_s = max(longest_s, now_s - last_s), now_s
                else:
                    refusals += 1
    longest_s = max(longest_s, time.monotonic() - last_s)
    result.put((answered / seconds, longest_s, refusals))


def _measured(port: int, seconds: float) -> tuple[float, float, int]:
    spawn = multiprocessing.get_context("spawn")
    result = spawn.Queue()
    process = spawn.Process(target=_honest, args=(port, seconds, result))
    process.start()
    found = result.get(timeout=seconds + 60)
    process.join()
    assert isinstance(found, tuple)
    return found


def run(context: Context) -> None:
    """Each attacker beside the honest client, then more connections than there may be."""
    seconds = context.size(10, 3)
    fair = {count: _beside(context, _crowd(count), seconds)[0] for count in {1, CROWD}}
    for count, rate in fair.items():
        context.note(f"an honest client beside {count} honest ones: {rate:.0f} requests/s")
    for name, (attack, count) in ATTACKS.items():
        rate, longest_s, refusals = _beside(context, attack, seconds)
        share = rate / fair[count]
        told = (
            f"{rate:.0f} requests/s, {share:.0%} of its share, "
            f"{longest_s:.1f} s without an answer, {refusals} refused"
        )
        context.case(name, told if share < LEAST_SHARE or longest_s > REFUSED_S else None)
        context.note(f"beside {name}: {told}")
        context.subject.ready_within(30)
        time.sleep(1)
    context.case("one connection too many", _too_many(context))


def _beside(context: Context, attack: Attack, seconds: float) -> tuple[float, float, int]:
    """What the honest client gets beside others."""
    stop = threading.Event()
    thread = threading.Thread(target=_kept_up, args=(attack, context, stop), daemon=True)
    thread.start()
    time.sleep(0.5)
    found = _measured(context.subject.port, seconds)
    stop.set()
    thread.join(30)
    return found


def _crowd(count: int) -> Attack:
    """Honest clients: each sends its next request when it has its answer."""

    def ask(context: Context, stop: threading.Event) -> None:
        with _sockets(context.subject.port, count) as socks:
            for sock in socks:
                sock.sendall(_HONEST)
            while not stop.is_set():
                for sock in select.select(socks, [], [], 1.0)[0]:
                    sock.recv(65_536)
                    sock.sendall(_HONEST)

    return ask


def _kept_up(attack: Attack, context: Context, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(OSError):
            attack(context, stop)


@contextlib.contextmanager
def _sockets(port: int, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as owns:
        socks = []
        for _ in range(count):
            sock = owns.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            sock.settimeout(2)
            socks.append(sock)
        yield socks


def _names(context: Context, stop: threading.Event) -> None:
    """A new application's name with each request."""
    number = 0
    with _sockets(context.subject.port, CROWD) as socks:
        while not stop.is_set():
            for sock in socks:
                number += 1
                sock.sendall(
                    post(tensor([1, 3], "[1,2,3]"), X_Application=f"name-{number % 10_000}")
                )
            for sock in socks:
                sock.recv(65_536)


def _many_items(context: Context, stop: threading.Event) -> None:
    """One request of a million items, and again."""
    count = 1 << 20
    head = tensor([count, 1], "[1]").replace(
        b',"data":[1]', b',"parameters":{"binary_data_size":%d}' % count
    )
    data = post(head + bytes(count), Inference_Header_Content_Length=len(head), Connection="close")
    wire.exchange(context.subject.port, [data], timeout_s=10)
    stop.wait(0.05)


def _long_deadlines(context: Context, stop: threading.Event) -> None:
    """Many items that may wait a day."""
    body = tensor([2000, 1], "[" + "1," * 1999 + "1]", parameters={"timeout": 86_400_000_000})
    data = post(body)
    with _sockets(context.subject.port, CROWD) as socks:
        while not stop.is_set():
            for sock in socks:
                sock.sendall(data)
            for sock in socks:
                sock.recv(1 << 20)


def _pipelines(context: Context, stop: threading.Event) -> None:
    """Requests behind requests, as many as are taken."""
    with _sockets(context.subject.port, CROWD) as socks:
        while not stop.is_set():
            for sock in socks:
                sock.sendall(_HONEST * 50)
            for sock in socks:
                sock.recv(1 << 20)


def _questions(path: str) -> Attack:
    """Requests that no replica is asked for, thousands in a piece, whose answers are read."""
    data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 4000

    def attack(context: Context, stop: threading.Event) -> None:
        with _sockets(context.subject.port, CROWD) as socks:
            for sock in socks:
                sock.setblocking(False)
            while not stop.is_set():
                for sock in socks:
                    with contextlib.suppress(BlockingIOError):
                        sock.send(data)
                    with contextlib.suppress(BlockingIOError):
                        sock.recv(1 << 20)

    return attack


def _bad_requests(context: Context, stop: threading.Event) -> None:
    """Requests that cannot be read, each over a new connection."""
    while not stop.is_set():
        with socket.create_connection(("127.0.0.1", context.subject.port), 5) as sock:
            sock.sendall(
                post(b'{"inputs":[{"name":"data","shape":[1,1],"datatype":"UINT8","data":[300]}]}')
            )
            sock.recv(4096)


def _large_bodies(context: Context, stop: threading.Event) -> None:
    """Bodies of 16 MiB, of which a model makes nothing."""
    size = 16 << 20
    head = tensor([1, size], "[1]").replace(
        b',"data":[1]', b',"parameters":{"binary_data_size":%d}' % size
    )
    data = post(head + bytes(size), Inference_Header_Content_Length=len(head), Connection="close")
    wire.exchange(context.subject.port, [data], timeout_s=10)
    stop.wait(0.02)


ATTACKS: dict[str, tuple[Attack, int]] = {
    "10,000 names of applications": (_names, CROWD),
    "a request of a million items": (_many_items, 1),
    "deadlines of a day": (_long_deadlines, CROWD),
    "pipelines": (_pipelines, CROWD),
    "pipelined questions for the health": (_questions("/v2/health/live"), CROWD),
    "pipelined questions for metrics": (_questions("/monitoring/prometheus/metrics"), CROWD),
    "bad requests": (_bad_requests, 1),
    "bodies of 16 MiB": (_large_bodies, 1),
}
"""Attack, and the connections that it has."""


def _too_many(context: Context) -> str | None:
    """The rest is told why, and there is room again when the others are gone."""
    with _sockets(context.subject.port, MOST) as socks:
        time.sleep(0.5)
        heard = wire.exchange(context.subject.port, [post(b"{}")], timeout_s=5)
        if heard.statuses != (503,) or b"max_connections" not in heard.answers[0].body:
            return f"answered {heard.statuses} and {heard.rest[:60]!r}, expected 503 that names the setting"
        for sock in socks[:10]:
            sock.close()
    return None if context.subject.ready_within(2.0) is not None else "no room again within 2 s"


STAGE = Stage(
    name="F",
    title="connections and fairness",
    half=1,
    run=run,
    limit_s=360,
    spec=SubjectSpec(settings={"server.max_connections": MOST}),
    allowance=Allowance(is_overload=True, peak_mib=768),
)
