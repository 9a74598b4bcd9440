"""A way to a port that delays, slows, cuts and chops what passes: what a bad network does, on loopback.

One thread for each direction of each connection; a connection is cut at a byte, at either side.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
import time
from typing import Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What happens to what passes."""

    delay_s: float = 0.0
    """Of every piece."""
    bytes_per_s: float | None = None
    piece_bytes: int = 65_536
    """Largest piece that is passed on at a time."""
    cut_request_at: int | None = None
    """Bytes of the client's that pass before the way ends."""
    cut_answer_at: int | None = None
    """Bytes of the server's."""
    resets: bool = False
    """The end is a reset, not an orderly one."""


class Relay:
    """Listens on a free port of loopback, from `with` to its end."""

    def __init__(self, port: int, way: Way) -> None:
        self._port = port
        self._way = way
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._socks: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # wakes who waits in accept
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port), 5)
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socks += [client, server]
                for source, target, cut_at in (
                    (client, server, self._way.cut_request_at),
                    (server, client, self._way.cut_answer_at),
                ):
                    work = threading.Thread(
                        target=self._pass_on, args=(source, target, cut_at), daemon=True
                    )
                    work.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, cut_at: int | None) -> None:
        way, passed = self._way, 0
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                for start in range(0, len(data), way.piece_bytes):
                    piece = data[start : start + way.piece_bytes]
                    if cut_at is not None and passed + len(piece) >= cut_at:
                        target.sendall(piece[: cut_at - passed])
                        self._cut(source, target)
                        return
                    time.sleep(
                        way.delay_s + (len(piece) / way.bytes_per_s if way.bytes_per_s else 0)
                    )
                    target.sendall(piece)
                    passed += len(piece)
            target.shutdown(socket.SHUT_WR)

    def _cut(self, *socks: socket.socket) -> None:
        for sock in socks:
            if self._way.resets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(
                    OSError
                ):  # closed by hand: a thread that reads would hold it open
                    sock.shutdown(socket.SHUT_RD)
                sock.close()
            else:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
