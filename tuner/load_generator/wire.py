"""Frames on the pipes to the load generator: a JSON header and raw bytes, no pickle.

    4 bytes  length of the header, little-endian
    8 bytes  length of the blob, little-endian
    header   a JSON object, UTF-8
    blob     payload bodies, or columns of records

Descriptors must be non-blocking.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

_LENGTHS = struct.Struct("<IQ")
_PIECE_BYTES = 1 << 20


class Closed(Exception):
    """The other side closed its end of the pipe."""


def write_frame(
    descriptor: int, header: dict[str, Any], blob: bytes = b"", *, timeout_s: float | None
) -> None:
    """Write one frame.

    Args:
        timeout_s: maximum time without progress; None waits for ever.

    Raises:
        Closed: the reader is gone.
        TimeoutError: the reader stalls.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    for part in (_LENGTHS.pack(len(text), len(blob)) + text, blob):
        view = memoryview(part)
        while view:
            try:
                view = view[os.write(descriptor, view[:_PIECE_BYTES]) :]
            except BlockingIOError:
                _wait(descriptor, select.POLLOUT, timeout_s)
            except BrokenPipeError as error:
                raise Closed from error


def read_frame(descriptor: int, *, timeout_s: float | None) -> tuple[dict[str, Any], bytes]:
    """Read one frame.

    Args:
        timeout_s: maximum time without progress; None waits for ever.

    Raises:
        Closed: the writer is gone.
        TimeoutError: the writer stalls.
    """
    header_bytes, blob_bytes = _LENGTHS.unpack(_read_exactly(descriptor, _LENGTHS.size, timeout_s))
    header = json.loads(_read_exactly(descriptor, header_bytes, timeout_s))
    return header, _read_exactly(descriptor, blob_bytes, timeout_s)


def _read_exactly(descriptor: int, count: int, timeout_s: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        try:
            part = os.read(descriptor, min(count, _PIECE_BYTES))
        except BlockingIOError:
            _wait(descriptor, select.POLLIN, timeout_s)
            continue
        if not part:
            raise Closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _wait(descriptor: int, event: int, timeout_s: float | None) -> None:
    poller = select.poll()
    poller.register(descriptor, event)
    begun = time.monotonic()
    if not poller.poll(None if timeout_s is None else timeout_s * 1000):
        raise TimeoutError(f"the other side has stood still for {time.monotonic() - begun:.1f} s")
