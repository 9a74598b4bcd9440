"""A client of HTTP/1.1 that sends bytes as they are given and reads answers strictly: for what no client sends."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Iterable, Sequence

_FOREVER = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer."""

    status: int
    head: bytes
    body: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a connection gave back."""

    answers: Sequence[Answer]
    closed: bool
    """By the server."""
    rest: bytes = b""
    """Bytes behind the last whole answer."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """In their order, interim ones included."""
        return tuple(answer.status for answer in self.answers)


def exchange(
    port: int,
    pieces: Iterable[bytes],
    *,
    timeout_s: float = 10.0,
    heads_only: frozenset[int] = frozenset(),
    gap_s: float = 0.0,
) -> Heard:
    """Send pieces and read until the server closes, or is silent for `timeout_s`.

    Args:
        port: on loopback.
        pieces: sent one after another.
        timeout_s: of the whole.
        heads_only: which answers, counted from 0 without interim ones, have no body: those to HEAD.
        gap_s: waited between pieces.
    """
    received = bytearray()
    closed = False
    with socket.create_connection(("127.0.0.1", port), timeout_s) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # refused before all was sent
            for piece in pieces:
                sock.sendall(piece)
                if gap_s:
                    time.sleep(gap_s)
        until_s = time.monotonic() + timeout_s
        while not closed:
            sock.settimeout(max(0.001, until_s - time.monotonic()))
            try:
                data = sock.recv(65_536)
            except TimeoutError:
                break
            except OSError:
                data = b""
            closed = not data
            received += data
    answers, rest = parsed(bytes(received), heads_only)
    return Heard(answers=answers, closed=closed, rest=rest)


def parsed(data: bytes, heads_only: frozenset[int] = frozenset()) -> tuple[list[Answer], bytes]:
    """Whole answers at the beginning of what came, and the rest."""
    answers: list[Answer] = []
    final = 0
    while data.startswith(b"HTTP/1.") and b"\r\n\r\n" in data:
        head, _, after = data.partition(b"\r\n\r\n")
        status = int(head[9:12])
        length = _length(head)
        is_interim = status < 200
        if is_interim or status == 204 or final in heads_only:
            length = 0
        if len(after) < length:
            break
        answers.append(Answer(status=status, head=head, body=after[:length]))
        final += not is_interim
        data = after[length:]
    return answers, data


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return _FOREVER  # nothing that this server sends is without a length
