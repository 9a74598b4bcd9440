"""Q: a quarter of an hour of everything at a low rate, beside an honest client at half load.

The honest client is answered always, with p99 at most three times what it is alone; memory grows by less than
1 MiB a minute.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import multiprocessing
import os
import socket
import threading
import time
from multiprocessing.synchronize import Event
from typing import Any, Self

from tests.abuse import h2wire as h2
from tests.abuse import wire
from tests.abuse.stage import Allowance, Context, Stage
from tests.abuse.stages import http2_floods, http_table, memory

PERIOD_S = 0.01
"""Of the honest client: a hundred requests a second."""
MOST_TIMES = 3.0
LEAST_MS = 50.0
"""Below that p99 is no matter of the server's, on a core that is shared."""
SLOPE_MIB_PER_MIN = 1.0


class Honest:
    """A process that asks at an even rate over one connection; times from when each was due.

    A process of its own, before others of its core: among the threads that abuse the server it would tell how long
    they keep it from running.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.times_ms: list[float] = []
        self.errors = 0

    def __enter__(self) -> Self:
        spawn = multiprocessing.get_context("spawn")
        self._stop = spawn.Event()
        self._result = spawn.Queue()
        self._process = spawn.Process(target=_ask, args=(self._port, self._stop, self._result))
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.times_ms, self.errors = self._result.get(timeout=60)
        self._process.join(30)

    @property
    def p99_ms(self) -> float:
        """Of all times."""
        return sorted(self.times_ms)[int(0.99 * (len(self.times_ms) - 1))] if self.times_ms else 0.0


def _ask(port: int, stop: Event, result: Any) -> None:
    """Ask until it is to stop; put the times and the number of errors."""
    with contextlib.suppress(OSError):
        os.nice(-10)
    times_ms: list[float] = []
    errors = 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = memory.tensor([1, 3], "[1,2,3]")
    fields = {"Authorization": f"Bearer {http_table.TOKEN}"}
    due_s = time.monotonic()
    while not stop.is_set():
        due_s = max(due_s + PERIOD_S, time.monotonic() - 1)
        time.sleep(max(0.0, due_s - time.monotonic()))
        try:
            connection.request("POST", memory.INFER, body, fields)
            response = connection.getresponse()
            response.read()
            errors += response.status != 200
        except (OSError, http.client.HTTPException):
            errors += 1
            connection.close()
        times_ms.append((time.monotonic() - due_s) * 1e3)
    connection.close()
    result.put((times_ms, errors))


def run(context: Context) -> None:
    """A minute alone, then the rest beside everything."""
    minutes = context.size(13, 1)
    with Honest(context.subject.port) as alone:
        time.sleep(context.size(60, 5))
    stop = threading.Event()
    abusers = [
        threading.Thread(target=work, args=(context, stop), daemon=True)
        for work in (_rows, _floods, _bombs, _slow)
    ]
    samples: list[tuple[float, float]] = []
    with Honest(context.subject.port) as honest:
        for thread in abusers:
            thread.start()
        until_s = time.monotonic() + 60 * minutes
        while time.monotonic() < until_s:
            samples.append((time.monotonic(), context.subject.memory_mib()))
            time.sleep(5)
        stop.set()
    for thread in abusers:
        thread.join(60)
    context.note(
        f"honest p99 {honest.p99_ms:.1f} ms, alone {alone.p99_ms:.1f}; {len(honest.times_ms)} requests"
    )
    context.count(len(honest.times_ms))
    context.case("honest requests", f"{honest.errors} failed" if honest.errors else None)
    allowed_ms = max(LEAST_MS, MOST_TIMES * alone.p99_ms)
    context.case(
        "honest p99",
        f"{honest.p99_ms:.0f} ms, allowed {allowed_ms:.0f}" if honest.p99_ms > allowed_ms else None,
    )
    slope = _slope(samples[len(samples) // 3 :])
    context.case("growth", f"{slope:.2f} MiB a minute" if slope > SLOPE_MIB_PER_MIN else None)


def _slope(samples: list[tuple[float, float]]) -> float:
    """MiB a minute by least squares."""
    if len(samples) < 3:
        return 0.0
    mean_s = sum(t for t, _ in samples) / len(samples)
    mean = sum(m for _, m in samples) / len(samples)
    spread = sum((t - mean_s) ** 2 for t, _ in samples)
    return 60 * sum((t - mean_s) * (m - mean) for t, m in samples) / spread


def _rows(context: Context, stop: threading.Event) -> None:
    """The table of HTTP/1.1, row by row."""
    for row in itertools.cycle(http_table.rows()):
        if stop.wait(0.2):
            return
        with contextlib.suppress(OSError):
            wire.exchange(context.subject.port, [row.data], timeout_s=1.0)
        context.count(1)


def _floods(context: Context, stop: threading.Event) -> None:
    """Floods of HTTP/2, a few hundred frames at a time."""
    for frames, _ in itertools.cycle(http2_floods.FLOODS.values()):
        if stop.wait(0.5):
            return
        try:
            with h2.Client(context.subject.grpc_port) as client:
                client.send(h2.PREFACE + h2.settings())
                client.send(b"".join(itertools.islice(frames(), 300)))
                client.read(0.2)
        except OSError:
            pass
        context.count(300)


def _bombs(context: Context, stop: threading.Event) -> None:
    """Bombs, one every few seconds; without the token, and with it."""
    field = f"\r\nAuthorization: Bearer {http_table.TOKEN}\r\n".encode()
    for number, data in enumerate(itertools.cycle(memory.bombs().values())):
        if stop.wait(3.0):
            return
        memory.wrong(context.subject.port, data.replace(b"\r\n", field, 1) if number % 2 else data)
        context.count(1)


def _slow(context: Context, stop: threading.Event) -> None:
    """Connections that say little, some at a time."""
    socks: list[socket.socket] = []
    while not stop.wait(1.0):
        try:
            sock = socket.create_connection(("127.0.0.1", context.subject.port), 5)
            sock.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\n")
            socks.append(sock)
        except OSError:
            pass
        if len(socks) > 50:
            socks.pop(0).close()
        context.count(1)
    for sock in socks:
        sock.close()


STAGE = Stage(
    name="Q",
    title="soak",
    half=2,
    run=run,
    limit_s=1080,
    modules={"hpack": "hpack"},
    spec=http_table.SPEC,
    allowance=Allowance(is_overload=True, peak_mib=768),
)
