"""E: clients that send a head, a body or a call byte by byte, or do not take their answers: a thousand at a time.

slowhttptest brings the load; a few of our own beside it measure that each is ended within 36 s (30 s for a
request, and the sweep), over REST and over gRPC.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable

from tests.abuse import h2wire as h2
from tests.abuse.stage import Allowance, Context, Stage

ENDED_S = 36.0
_POST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\n"
_KINDS = {"head": "-H", "body": "-B", "range": "-R", "read": "-X"}


def _slow_head(sock: socket.socket) -> None:
    sock.sendall(b"GET /v2 HTTP/1.1\r\n")
    _drip(sock, b"X-A: b\r\n")


def _slow_body(sock: socket.socket) -> None:
    sock.sendall(_POST + b"Content-Length: 100000\r\n\r\n")
    _drip(sock, b"a")


def _slow_chunks(sock: socket.socket) -> None:
    sock.sendall(_POST + b"Transfer-Encoding: chunked\r\n\r\n")
    _drip(sock, b"1\r\na\r\n")


def _slow_trailer(sock: socket.socket) -> None:
    sock.sendall(_POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
    _drip(sock, b"A: b\r\n")


def _slow_call(sock: socket.socket) -> None:
    head = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.block())
    sock.sendall(h2.PREFACE + h2.settings() + head)
    _drip(sock, h2.frame(h2.DATA, 0, 1, b"\0"))


def _slow_frame(sock: socket.socket) -> None:
    sock.sendall(h2.PREFACE + h2.settings())
    for byte in h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.block()):
        sock.sendall(bytes((byte,)))
        time.sleep(0.7)


def _drip(sock: socket.socket, data: bytes) -> None:
    """Send until the other side ends it."""
    until_s = time.monotonic() + 2 * ENDED_S
    while time.monotonic() < until_s:
        sock.sendall(data)
        time.sleep(0.5)


CLIENTS: dict[str, tuple[Callable[[socket.socket], None], bool]] = {
    "a head": (_slow_head, False),
    "a body": (_slow_body, False),
    "chunks": (_slow_chunks, False),
    "trailers": (_slow_trailer, False),
    "a call": (_slow_call, True),
    "a frame": (_slow_frame, True),
}


def run(context: Context) -> None:
    """Our own slow clients beside each run of slowhttptest."""
    seconds = context.size(60, 10)
    ours = [
        threading.Thread(target=_measured, args=(context, name), daemon=True) for name in CLIENTS
    ]
    for thread in ours:
        thread.start()
    for name, kind in _KINDS.items():
        context.case(f"slowhttptest, slow {name}", _slowhttptest(context, kind, seconds))
    for thread in ours:
        thread.join(2 * ENDED_S)
    cut = re.findall(r"luthier_closed_connections_total\{(.*?)\} (\S+)", context.subject.metrics())
    counted = {reason: float(count) for reason, count in cut}
    context.case(
        "those that are ended are counted",
        None if counted.get('reason="late"', 0) >= len(CLIENTS) else f"counted were {counted}",
    )


def _measured(context: Context, name: str) -> None:
    """How long one slow client is let live: until its connection, or its call, is ended."""
    send, is_grpc = CLIENTS[name]
    port = context.subject.grpc_port if is_grpc else context.subject.port
    ended = threading.Event()
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.settimeout(2 * ENDED_S)
        for work in (_sends, _reads):
            threading.Thread(target=work, args=(sock, send, ended), daemon=True).start()
        ended.wait(2 * ENDED_S)
        took_s = time.monotonic() - began_s
    context.case(
        f"{name}, byte by byte", None if took_s <= ENDED_S else f"it lived for {took_s:.0f} s"
    )


def _sends(
    sock: socket.socket, send: Callable[[socket.socket], None], ended: threading.Event
) -> None:
    with contextlib.suppress(OSError):
        send(sock)
        return
    ended.set()


def _reads(sock: socket.socket, _send: object, ended: threading.Event) -> None:
    """Read until the server ends the connection, or resets a stream of it."""
    received = b""
    with contextlib.suppress(OSError):
        while data := sock.recv(65_536):
            received += data
            if b"\x00\x00\x04\x03" in received or b"grpc-status" in received:
                break
    ended.set()


def _slowhttptest(context: Context, kind: str, seconds: int) -> str | None:
    url = f"http://127.0.0.1:{context.subject.port}/v2/models/echo"
    words = [
        "slowhttptest",
        kind,
        "-c",
        "1000",
        "-r",
        "200",
        "-l",
        str(seconds),
        "-i",
        "5",
        "-u",
        url,
    ]
    if kind == "-B":
        words += ["-s", "65536", "-t", "POST"]
    if kind == "-X":
        words += ["-w", "1", "-y", "2", "-n", "5", "-z", "32", "-k", "3"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=seconds + 60, check=False,
        cwd=context.folder, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    context.count(999)
    away = re.findall(r"service available:\s*\S*?(NO|YES)", done.stdout)
    if done.returncode and not away:
        return (
            f"slowhttptest ended with {done.returncode}: {done.stderr[-200:] or done.stdout[-200:]}"
        )
    return "the service was not available" if away and away[-1] == "NO" else None


STAGE = Stage(
    name="E",
    title="slow clients",
    half=1,
    run=run,
    limit_s=420,
    programs={"slowhttptest": "slowhttptest"},
    modules={"hpack": "hpack"},
    allowance=Allowance(is_overload=True),
)
