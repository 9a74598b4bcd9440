"""D2: floods of HTTP/2 frames that cost the server and ask for nothing, over one connection and over twenty.

A flood of frames that only cost must be ended with ENHANCE_YOUR_CALM before 10,000 of them are read, or be
read without harm; what the observer sees meanwhile is judged for all stages. h2load is the honest flood.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator

from tests.abuse import h2wire as h2
from tests.abuse.h2wire import frame
from tests.abuse.stage import Allowance, Context, Stage

PATIENCE = 10_000
_PIECE = 500
"""Frames that are sent at once."""

_INFER = tuple(
    (n, v if n != b":path" else b"/inference.GRPCInferenceService/ModelInfer") for n, v in h2.CALL
)


def _resets() -> Iterator[bytes]:
    block, stream = h2.block(), 1
    while True:
        yield frame(h2.HEADERS, 4, stream, block) + frame(h2.RST, 0, stream, b"\0\0\0\x08")
        stream += 2


def _same(data: bytes, before: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def made() -> Iterator[bytes]:
        yield before + data
        while True:
            yield data

    return made


def _table_sizes() -> Iterator[bytes]:
    stream = 1
    while True:
        yield frame(h2.HEADERS, 5, stream, b"\x20\x3f\xe1\x1f" + h2.block())
        stream += 2


def _zero_windows() -> Iterator[bytes]:
    """Answers that nobody lets out."""
    yield h2.settings(s4=0)
    stream = 1
    while True:
        yield h2.request(stream)
        stream += 2


def _long_heads() -> Iterator[bytes]:
    stream = 1
    while True:
        block = h2.block([*h2.CALL, *((b"a%d" % i, b"b" * 150) for i in range(75))])
        yield (
            frame(h2.HEADERS, 5, stream, block[:16_000])
            if len(block) <= 16_000
            else (
                frame(h2.HEADERS, 1, stream, block[:16_000])
                + frame(h2.CONTINUATION, 4, stream, block[16_000:])
            )
        )
        stream += 2


_OPEN = frame(h2.HEADERS, 4, 1, h2.block(_INFER))
FLOODS: dict[str, tuple[Callable[[], Iterator[bytes]], bool]] = {
    "rapid resets": (_resets, True),
    "PING": (_same(frame(h2.PING, 0, 0, bytes(8))), True),
    "SETTINGS": (_same(h2.settings(s3=100, s4=70_000)), True),
    "PRIORITY": (_same(frame(h2.PRIORITY, 0, 1, bytes(5))), True),
    "unknown frames": (_same(frame(99, 0, 0, b"a")), True),
    "empty DATA": (_same(frame(h2.DATA, 0, 1), _OPEN), True),
    "empty CONTINUATION": (
        _same(frame(h2.CONTINUATION, 0, 1), frame(h2.HEADERS, 1, 1, h2.block()[:3])),
        True,
    ),
    "windows of one byte": (_same(frame(h2.WINDOW, 0, 0, b"\0\0\0\1")), False),
    "table sizes": (_table_sizes, False),
    "answers without a window": (_zero_windows, False),
    "heads of 12 KB": (_long_heads, False),
}
"""Name -> frames, and whether they only cost, so that the connection must be ended."""


def run(context: Context) -> None:
    """Every flood, then h2load."""
    most = context.size(100_000, 20_000)
    for connections in (1, 20):
        for name, (frames, only_costs) in FLOODS.items():
            until_s = time.monotonic() + context.size(12, 3)
            wrong = _flood(context.subject.grpc_port, frames, connections, most // connections,
                           until_s, only_costs=only_costs)  # fmt: skip
            context.case(f"{name} over {connections}", wrong)
    context.case("h2load", _h2load(context))


def _flood(
    port: int,
    frames: Callable[[], Iterator[bytes]],
    connections: int,
    most: int,
    until_s: float,
    *,
    only_costs: bool,
) -> str | None:
    """What went wrong with a flood of so many frames over each connection."""
    with contextlib.ExitStack() as owns:
        clients = [owns.enter_context(h2.Client(port)) for _ in range(connections)]
        sources = [frames() for _ in clients]
        sent = [0] * connections
        open_ = set(range(connections))
        for i, client in enumerate(clients):
            if not client.send(h2.PREFACE + h2.settings()):
                open_.discard(i)
        while open_ and time.monotonic() < until_s:
            for i in list(open_):
                piece = b"".join(next(sources[i]) for _ in range(_PIECE))
                if not clients[i].send(piece) or not clients[i].read(0.0):
                    open_.discard(i)
                sent[i] += _PIECE
                if sent[i] >= most or clients[i].heard.goaway is not None:
                    open_.discard(i)
        for client in clients:
            client.read(0.3)
        codes = [client.heard.goaway for client in clients]
    if only_costs and connections == 1:
        if max(sent) >= 3 * PATIENCE and codes[0] is None:
            return f"{sent[0]} frames were taken"
        if codes[0] not in {h2.CALM, None}:
            return f"GOAWAY {codes[0]} after {sent[0]} frames, expected ENHANCE_YOUR_CALM"
    return None


def _h2load(context: Context) -> str | None:
    body = context.folder / "message"
    body.write_bytes(h2.EMPTY_MESSAGE)
    count = context.size(100_000, 5_000)
    done = subprocess.run(
        ["h2load", "-n", str(count), "-c", "20", "-m", "100", "-d", str(body), "-H", "te: trailers",
         "-H", "content-type: application/grpc",
         f"http://127.0.0.1:{context.subject.grpc_port}/inference.GRPCInferenceService/ServerLive"],
        capture_output=True, text=True, timeout=max(10.0, context.left_s), check=False,
    )  # fmt: skip
    counts = re.search(
        r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", done.stdout
    )
    if counts is None:
        return f"h2load said {done.stdout[-200:]} {done.stderr[-200:]}"
    finished, good, *lost = (int(each) for each in counts.groups())
    context.count(finished - 1)
    return None if good == count and not any(lost) else counts[0]


STAGE = Stage(
    name="D2",
    title="HTTP/2: floods",
    half=1,
    run=run,
    limit_s=420,
    programs={"h2load": "nghttp2-client"},
    modules={"hpack": "hpack"},
    allowance=Allowance(peak_mib=150, is_overload=True),
)
