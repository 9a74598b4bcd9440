"""F: one client that takes connections, names, items or time, and an honest one beside it.

The honest client's rate alone is measured first. Beside one attacker its fair share is half of that; it must
keep 40 % of its share, and never be refused for longer than a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
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
_HONEST = post(tensor([1, 3], "[1,2,3]"))


def _honest(port: int, seconds: float, result: Any) -> None:
    """Ask as fast as it is answered, over one connection; put how many were, and the longest time without one."""
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
    seconds = context.size(15, 3)
    alone, _, _ = _measured(context.subject.port, seconds)
    context.note(f"an honest client alone: {alone:.0f} requests/s")
    for name, attack in ATTACKS.items():
        stop = threading.Event()
        thread = threading.Thread(target=_kept_up, args=(attack, context, stop), daemon=True)
        thread.start()
        time.sleep(0.5)
        rate, longest_s, refusals = _measured(context.subject.port, seconds)
        stop.set()
        thread.join(30)
        share = rate / (alone / 2)
        told = (
            f"{rate:.0f} requests/s, {share:.0%} of its share, "
            f"{longest_s:.1f} s without an answer, {refusals} refused"
        )
        context.case(name, told if share < LEAST_SHARE or longest_s > REFUSED_S else None)
        context.note(f"beside {name}: {told}")
        context.subject.ready_within(30)
        time.sleep(1)
    context.case("one connection too many", _too_many(context))


def _kept_up(
    attack: Callable[[Context, threading.Event], None], context: Context, stop: threading.Event
) -> None:
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
    with _sockets(context.subject.port, 20) as socks:
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
    with _sockets(context.subject.port, 10) as socks:
        while not stop.is_set():
            for sock in socks:
                sock.sendall(data)
            for sock in socks:
                sock.recv(1 << 20)


def _pipelines(context: Context, stop: threading.Event) -> None:
    """Requests behind requests, as many as are taken."""
    with _sockets(context.subject.port, 20) as socks:
        while not stop.is_set():
            for sock in socks:
                sock.sendall(_HONEST * 50)
            for sock in socks:
                sock.recv(1 << 20)


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


ATTACKS: dict[str, Callable[[Context, threading.Event], None]] = {
    "10,000 names of applications": _names,
    "a request of a million items": _many_items,
    "deadlines of a day": _long_deadlines,
    "pipelines": _pipelines,
    "bad requests": _bad_requests,
    "bodies of 16 MiB": _large_bodies,
}


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
