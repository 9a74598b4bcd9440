"""Messages of the replica wire on the blocking socket to the gateway."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

import numpy as np

from serving import wire
from serving.values import Buffer
from serving.wire import MessageType

_SMALL_BYTES = 16 * 1024
"""Size below which buffers are joined, as a copy costs less than a system call."""
_MAX_PIECES = 512
"""Maximum buffers per system call; the system's limit may be 1,024."""


class MessageSocket:
    """Reader and writer of whole messages."""

    def __init__(self, sock: socket.socket, max_message_bytes: int) -> None:
        self._sock = sock
        self._max_message_bytes = max_message_bytes
        self._head = bytearray(wire.HEAD.size)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def is_idle_for(self, period_ms: int) -> bool:
        """Wait for the next message for at most a period; return whether none has come."""
        return not self._poll.poll(period_ms)

    def receive(self) -> tuple[MessageType, memoryview] | None:
        """Return the next message, or None if the gateway closed the socket between messages.

        Raises WireError for invalid bytes, and ConnectionError if the socket is closed inside a
        message.
        """
        if not self._fill(memoryview(self._head)):
            return None
        kind, length = wire.parse_head(self._head, 0, self._max_message_bytes)
        body = np.empty(length, np.uint8).data
        if not self._fill(body):
            raise ConnectionResetError("the gateway closed the socket after a message's head")
        return kind, body

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write one message, usually in one system call."""
        pieces = _coalesce(buffers)
        for start in range(0, len(pieces), _MAX_PIECES):
            some = pieces[start : start + _MAX_PIECES]
            sent = self._sock.sendmsg(some)
            for piece in some:
                if sent < len(piece):  # partly sent
                    self._sock.sendall(memoryview(piece)[sent:])
                sent = max(0, sent - len(piece))

    def _fill(self, view: memoryview) -> bool:
        filled = 0
        while filled < len(view):
            count = self._receive_some(view[filled:])
            if not count:
                if filled:
                    raise ConnectionResetError("the gateway closed the socket inside a message")
                return False
            filled += count
        return True

    def _receive_some(self, view: memoryview) -> int:
        return self._sock.recv_into(view, 0, socket.MSG_WAITALL)


class TlsMessageSocket(MessageSocket):
    """Reader and writer of whole messages on a TLS connection."""

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write one message."""
        for piece in _coalesce(buffers):
            self._sock.sendall(piece)

    def _receive_some(self, view: memoryview) -> int:
        return self._sock.recv_into(view)  # TLS has no flags


def _coalesce(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Join small buffers, and leave large ones as they are."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < _SMALL_BYTES:
            small.append(buffer)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(buffer)
    if small:
        pieces.append(b"".join(small))
    return pieces
