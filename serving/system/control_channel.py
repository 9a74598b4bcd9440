"""Control channel to a child Python process: a socket that is the child's standard input.

Frames go both ways, without pickle:

    4 bytes  length of the message, little-endian
    8 bytes  length of the blob, little-endian
    message  a JSON object, UTF-8
    blob     raw bytes

Each side sees the other's end as the end of the socket, even after `kill -9`. A process without a
channel ends with its parent by `end_with_parent`. Imports are few, for a quick start.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

Frame = tuple[dict[str, Any], bytes]

MAX_FRAME_BYTES = 1 << 34
"""Maximum size of a frame, far above any workload's payloads."""
_LENGTHS = struct.Struct("<IQ")
_PIECE_BYTES = 1 << 20
_KILLED_S = 5.0
_STDERR = 2


class Closed(Exception):
    """The other side closed its end or broke the protocol."""


class ControlChannel:
    """One end of a channel. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._received = bytearray()

    @classmethod
    def to_parent(cls) -> Self:
        """Return the child's end of the channel, which its own children do not inherit."""
        sock = socket.socket(fileno=os.dup(0))
        with open(os.devnull, "rb") as null:  # noqa: PTH123 - a descriptor is needed
            os.dup2(null.fileno(), 0)
        return cls(sock)

    def send(
        self, message: Mapping[str, object], blob: bytes = b"", *, timeout_s: float | None = None
    ) -> None:
        """Send a frame; `timeout_s` is the maximum time without progress (None: no limit).

        Raises:
            Closed: the reader is gone.
            TimeoutError: the reader stalls.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        for part in (_LENGTHS.pack(len(text), len(blob)) + text, blob):
            view = memoryview(part)
            while view:
                try:
                    view = view[self.sock.send(view[:_PIECE_BYTES]) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, timeout_s)
                except OSError as error:
                    raise Closed from error

    def receive(self, *, timeout_s: float | None = None) -> Frame:
        """Return the next frame; waits and raises as `send` does."""
        while (frame := self._next()) is None:
            if not self._read():
                self._wait(select.POLLIN, timeout_s)
        return frame

    def receive_all(self) -> list[dict[str, Any]]:
        """Return the messages received so far, without waiting, or raise Closed."""
        messages = [message for message, _ in iter(self._next, None)]
        if not messages and self._read():
            messages = [message for message, _ in iter(self._next, None)]
        return messages

    def can_send(self) -> bool:
        """Whether a small frame can be sent without waiting."""
        return self._poll(select.POLLOUT, 0)

    def has_ended(self) -> bool:
        """Whether the other side is gone."""
        return self._poll(0, 0)  # hang-up is always reported

    def _next(self) -> Frame | None:
        received = self._received
        if len(received) < _LENGTHS.size:
            return None
        message_bytes, blob_bytes = _LENGTHS.unpack_from(received)
        blob_at = _LENGTHS.size + message_bytes
        end = blob_at + blob_bytes
        if end > MAX_FRAME_BYTES:
            raise Closed(f"a frame of {end} bytes, expected at most {MAX_FRAME_BYTES}")
        if len(received) < end:
            return None
        with memoryview(received) as view:
            text, blob = bytes(view[_LENGTHS.size : blob_at]), bytes(view[blob_at:end])
        del received[:end]
        return json.loads(text), blob

    def _read(self) -> bool:
        try:
            data = self.sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Closed from error
        if not data:
            raise Closed
        self._received += data
        return True

    def _wait(self, event: int, timeout_s: float | None) -> None:
        if not self._poll(event, timeout_s):
            raise TimeoutError(f"the other side has stood still for {timeout_s:.1f} s")

    def _poll(self, event: int, timeout_s: float | None) -> bool:
        poller = select.poll()
        poller.register(self.sock, event)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


class ControlledProcess(ControlChannel):
    """Child process, and the parent's end of its channel."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        super().__init__(sock)
        self.process = process

    @classmethod
    def start(
        cls,
        module: str,
        words: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        output: int | IO[bytes] = _STDERR,
        descriptors: Sequence[int] = (),
    ) -> Self:
        """Start a module in its own session, out of reach of Ctrl-C; `output` gets all it prints.

        It inherits `descriptors` under their numbers. If `environment` is None, it inherits this
        process's variables, and the current folder cannot shadow packages. Raises OSError if the
        process cannot start.
        """
        command = [sys.executable, "-m", module, *words]
        if environment is None:
            root = str(pathlib.Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
            environment = {**os.environ, "PYTHONPATH": path}
            command.insert(1, "-P")
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack, theirs:
            stack.callback(ours.close)
            process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
            stack.pop_all()
        return cls(process, ours)

    def end(self, timeout_s: float) -> None:
        """Close the channel; kill the process if it does not end in time."""
        self.sock.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        finally:
            self.process.kill()  # does nothing if it has ended
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                self.process.wait(_KILLED_S)
