"""Watches a server from outside while it is abused: a process of its own, on a core that the server has not.

    python -m tests.abuse.observer FILE PORT NULL_PORT [TOKEN]

Every 20 ms it asks for the health and for an echo of one item, and asks a server that does nothing, which
stands on the same core as the one that is watched. Each line of the file is one answer: the time
(CLOCK_MONOTONIC), who, how long it took in ms, and the status, 0 for none. What the machine itself delays
shows at the null server as well; the difference is the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import TextIO

from tests.abuse import machine

PERIOD_S = 0.02
PATIENCE_S = 20.0
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_ECHO = json.dumps(
    {"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [7]}]}
).encode()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one kind of question got in a while."""

    answers: int = 0
    worst_ms: float = 0.0
    p99_ms: float = 0.0
    statuses: Counter[int] = dataclasses.field(default_factory=Counter)


def summary(lines: Iterable[str]) -> dict[str, Seen]:
    """What a file of an observer says of each kind of question."""
    times: dict[str, list[float]] = {}
    statuses: dict[str, Counter[int]] = {}
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be half there
            _, kind, took_ms, status = line.split()
            times.setdefault(kind, []).append(float(took_ms))
            statuses.setdefault(kind, Counter())[int(status)] += 1
    return {
        kind: Seen(
            answers=len(took),
            worst_ms=max(took),
            p99_ms=sorted(took)[int(0.99 * (len(took) - 1))],
            statuses=statuses[kind],
        )
        for kind, took in times.items()
    }


class Observer:
    """The two processes: who asks, and the server that does nothing."""

    def __init__(self, file: pathlib.Path, port: int, token: str | None = None) -> None:
        self._file = file
        file.touch()
        self._null = subprocess.Popen(
            [*machine.on_core(0), sys.executable, str(_ROOT / "benchmarks" / "null_server.py")],
            stdout=subprocess.PIPE, text=True, cwd=_ROOT,
        )  # fmt: skip
        assert self._null.stdout is not None
        null_port = self._null.stdout.readline().strip()
        words = [sys.executable, "-m", "tests.abuse.observer", str(file), str(port), null_port]
        self._process = subprocess.Popen([*words, *([token] if token else [])], cwd=_ROOT)

    def mark(self) -> int:
        """Now, for `since`."""
        return self._file.stat().st_size

    def since(self, mark: int) -> dict[str, Seen]:
        """What was seen from then on."""
        with self._file.open("rb") as file:
            file.seek(mark)
            return summary(file.read().decode().splitlines())

    def end(self) -> None:
        """End both."""
        for process in (self._process, self._null):
            process.terminate()
            process.wait()
        if self._null.stdout is not None:
            self._null.stdout.close()


async def _ask_for_ever(kind: str, port: int, request: bytes, out: TextIO) -> None:
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    due_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        due_s = max(due_s + PERIOD_S, now_s)  # what was missed is not made up for
        await asyncio.sleep(due_s - now_s)
        began_s = time.monotonic()
        status = 0
        try:
            async with asyncio.timeout(PATIENCE_S):
                if streams is None:
                    streams = await asyncio.open_connection("127.0.0.1", port)
                status, is_last = await _answer(*streams, request)
            if is_last:
                streams = _closed(streams)
        except (OSError, EOFError, ValueError, TimeoutError):
            streams = _closed(streams)
        took_ms = (time.monotonic() - began_s) * 1e3
        out.write(f"{began_s:.3f} {kind} {took_ms:.2f} {status}\n")


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bool]:
    """Status of one answer, and whether the connection ends with it."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    start = head.find(b"content-length:")
    length = int(head[start + 15 : head.index(b"\r\n", start)]) if start >= 0 else 0
    await reader.readexactly(length)
    return int(head[9:12]), b"connection: close" in head


def _closed(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None) -> None:
    if streams is not None:
        streams[1].close()


async def _watch(file: str, port: int, null_port: int, token: str | None) -> None:
    field = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"Host: localhost\r\n{field}".encode()
    health = b"GET /v2/health/live HTTP/1.1\r\n" + head + b"\r\n"
    echo = b"POST /v2/models/echo/infer HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
        head, len(_ECHO), _ECHO,
    )  # fmt: skip
    with pathlib.Path(file).open("a", buffering=1) as out:  # noqa: ASYNC230 - a line now and then
        await asyncio.gather(
            _ask_for_ever("health", port, health, out),
            _ask_for_ever("echo", port, echo, out),
            _ask_for_ever("null", null_port, health, out),
        )


def main() -> None:
    """Watch until the end."""
    machine.stay_on_core(1)
    with contextlib.suppress(OSError):
        os.nice(-10)  # else it would see how busy the abuser keeps the core that they share
    file, port, null_port, *token = sys.argv[1:]
    asyncio.run(_watch(file, int(port), int(null_port), token[0] if token else None))


if __name__ == "__main__":
    main()
