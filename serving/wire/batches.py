"""Batch messages INFER and RESULT, with one frame per request.

    INFER  = u64 action, u32 model, i64 earliest_ns, i64 latest_ns, u32 count, entries, frames
    entry  = u32 bytes of the frame, u16 encoding, u16 reserved, u32 start, u32 stop
    RESULT = u64 action, u16 status, u16 reserved, i64 started_ns, u64 input_ns, u64 exec_ns,
             u64 output_ns, u32 count, entries, frames
    entry  = u32 bytes of the frame, u16 status, u16 reserved

This module builds the heads; the caller writes the frames.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from serving.wire.stream import (
    DEFAULT_MAX_MESSAGE_BYTES,
    HEAD,
    MAGIC,
    MAX_RESULT_BYTES,
    VERSION,
    MessageType,
    WireError,
    unpack_start,
)

_INFER = struct.Struct("<QIqqI")
_INFER_ENTRY = struct.Struct("<IHxxII")
_RESULT = struct.Struct("<QHxxqQQQI")
_RESULT_ENTRY = struct.Struct("<IHxx")


class Encoding(enum.IntEnum):
    """Encoding of a request's frame."""

    TENSORS = 0
    OIP_JSON = 1
    """JSON body of an Open Inference Protocol v2 request."""


class ActionStatus(enum.IntEnum):
    """Outcome of an action or of a request in it; numbers from 10 up are those of Clockwork."""

    OK = 0
    MODEL_RAISED = 1
    INVALID_INPUT = 2
    BROKEN_CONTRACT = 3
    OUT_OF_MEMORY = 4
    TOO_LARGE = 5
    UNKNOWN_MODEL = 10
    TOO_LATE = 11
    INVALID_ACTION = 12
    LOAD_FAILED = 41
    NO_ROOM = 53


InferEntry = tuple[int, int, int, memoryview]
"""Entry of INFER: encoding, start and stop of the items (0 and 0 mean all), frame."""


class InferMessage:
    """One batch for a model."""

    __slots__ = ("action_id", "earliest_ns", "entries", "even", "latest_ns", "model")

    def __init__(
        self,
        action_id: int,
        model: int,
        earliest_ns: int,
        latest_ns: int,
        entries: list[InferEntry],
        even: memoryview | None = None,
    ) -> None:
        """Create a message; `even` holds all frames back to back if the entries are alike."""
        self.action_id = action_id
        self.model = model
        self.earliest_ns = earliest_ns
        self.latest_ns = latest_ns
        self.entries = entries
        self.even = even


class ReplicaTimes(NamedTuple):
    """Start of an action (CLOCK_MONOTONIC) and the durations of its stages."""

    started_ns: int
    input_ns: int
    exec_ns: int
    output_ns: int


class ResultMessage:
    """Responses to one batch: (status, frame) per request, in the order of INFER.

    A frame holds tensors if its status is 0, otherwise UTF-8 text. The message's status is 0 if any
    request succeeded, otherwise that of the first request.
    """

    __slots__ = ("action_id", "entries", "status", "times")  # faster to create than a named tuple

    def __init__(
        self,
        action_id: int,
        status: int,
        times: ReplicaTimes,
        entries: list[tuple[int, memoryview]],
    ) -> None:
        self.action_id = action_id
        self.status = status
        self.times = times
        self.entries = entries


def infer_head(
    action_id: int,
    model: int,
    earliest_ns: int,
    latest_ns: int,
    frames: Sequence[tuple[int, int, int, int]],
) -> bytes:
    """Build INFER up to its frames; 0 leaves a time open.

    `frames` gives (bytes of the frame, encoding, start, stop) per request. Raises WireError if the
    message exceeds a replica's limit.
    """
    head, table = _head(
        MessageType.INFER, _INFER.size, _INFER_ENTRY, frames, DEFAULT_MAX_MESSAGE_BYTES
    )
    return head + _INFER.pack(action_id, model, earliest_ns, latest_ns, len(frames)) + table


def parse_infer(body: memoryview) -> InferMessage:
    """Parse the body of INFER into views, or raise WireError if it is malformed."""
    action_id, model, earliest_ns, latest_ns, count = unpack_start(_INFER, body, "INFER")
    table, position = _table(_INFER, _INFER_ENTRY, count, body, "INFER")
    entries: list[InferEntry] = []
    even = None
    if table == table[: _INFER_ENTRY.size] * count:  # most batches
        even = body[position:]
        size, encoding, start, stop = _INFER_ENTRY.unpack_from(table) if count else (0, 0, 0, 0)
        for _each in range(count):
            end = position + size
            entries.append((encoding, start, stop, body[position:end]))
            position = end
    else:
        for size, encoding, start, stop in _INFER_ENTRY.iter_unpack(table):
            end = position + size
            entries.append((encoding, start, stop, body[position:end]))
            position = end
    _check_end(position, body, "INFER")
    return InferMessage(action_id, model, earliest_ns, latest_ns, entries, even)


def result_head(
    action_id: int,
    status: int,
    times: ReplicaTimes,
    frames: Sequence[tuple[int, int]],
    max_response_bytes: int | None = None,
) -> bytes:
    """Build RESULT up to its frames, or raise WireError if it is larger than `max_response_bytes`.

    `frames` gives (bytes of the frame, status) in the order of INFER.
    """
    most = MAX_RESULT_BYTES
    if max_response_bytes is not None and max_response_bytes < most:
        most = max_response_bytes
    head, table = _head(MessageType.RESULT, _RESULT.size, _RESULT_ENTRY, frames, most)
    return head + _RESULT.pack(action_id, status, *times, len(frames)) + table


def parse_result(body: memoryview) -> ResultMessage:
    """Parse the body of RESULT into views, or raise WireError if it is malformed."""
    action_id, status, started_ns, input_ns, exec_ns, output_ns, count = unpack_start(
        _RESULT, body, "RESULT"
    )
    table, position = _table(_RESULT, _RESULT_ENTRY, count, body, "RESULT")
    entries: list[tuple[int, memoryview]] = []
    if table == table[: _RESULT_ENTRY.size] * count:  # most responses
        size, entry_status = _RESULT_ENTRY.unpack_from(table) if count else (0, 0)
        for _each in range(count):
            end = position + size
            entries.append((entry_status, body[position:end]))
            position = end
    else:
        for size, entry_status in _RESULT_ENTRY.iter_unpack(table):
            end = position + size
            entries.append((entry_status, body[position:end]))
            position = end
    _check_end(position, body, "RESULT")
    times = ReplicaTimes(started_ns, input_ns, exec_ns, output_ns)
    return ResultMessage(action_id, status, times, entries)


def _head(
    kind: MessageType,
    fixed_bytes: int,
    entry: struct.Struct,
    frames: Sequence[tuple[int, ...]],
    most: int,
) -> tuple[bytes, bytes]:

    count = len(frames)
    is_even = count > 0 and frames.count(frames[0]) == count  # most batches
    frames_bytes = frames[0][0] * count if is_even else sum([frame[0] for frame in frames])
    body_bytes = fixed_bytes + entry.size * count + frames_bytes
    if body_bytes > most:
        raise WireError(f"{kind.name} would have a body of {body_bytes} bytes, at most {most} fit")
    table = (
        entry.pack(*frames[0]) * count
        if is_even
        else b"".join(itertools.starmap(entry.pack, frames))
    )
    return HEAD.pack(MAGIC, VERSION, kind, body_bytes), table


def _table(
    form: struct.Struct, entry: struct.Struct, count: int, body: memoryview, what: str
) -> tuple[bytes, int]:

    end = form.size + entry.size * count
    if end > len(body):
        raise WireError(
            f"{what} has a body of {len(body)} bytes, its {count} entries alone need {end}"
        )
    return bytes(body[form.size : end]), end


def _check_end(position: int, body: memoryview, what: str) -> None:
    if position != len(body):
        raise WireError(f"{what} has a body of {len(body)} bytes, its entries say {position}")
