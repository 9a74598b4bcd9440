"""Replica wire, version 1: bytes <-> messages between the gateway and one replica.

Pure: bytes in, values out; it waits for nothing and opens nothing. The form is language-neutral (little-endian
structs, JSON where speed does not matter) and written down in docs/replica-wire.md; change both together.

Rule 1: a message is an 8-byte head (magic, version, type, length of the body) and a body.
Rule 2: nothing is allocated by a length that was not checked against `max_message_bytes` first.
Rule 3: payloads are never copied here; what a function returns are views of what it was given.
Rule 4: the layout of a frame (names, datatypes, shapes) is told by its descriptor; equal bytes mean equal
        layout, so either side parses a descriptor once and then looks it up (`Layout` objects are shared).

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of one machine share; 0 means "open".
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from serving.errors import ServingError
from serving.values import ITEM_BYTES, Buffer, Tensor

MAGIC = b"LW"
VERSION = 1
DEFAULT_MAX_MESSAGE_BYTES = 1 << 30
"""1 GiB: sixteen of the largest bodies that the gateway takes by default (64 MiB)."""
MAX_RANK = 32
"""Dimensions of a tensor; numpy allows 32 (64 from version 2)."""
MAX_CACHED_LAYOUTS = 1024
"""Layouts remembered. A client that sends ever new shapes only makes the table start anew."""

FEATURES = ("json", "stage-times", "windows")
"""What this implementation offers in HELLO."""


class MessageType(enum.IntEnum):
    """The type byte of a message's head."""

    HELLO = 1
    LOAD = 2
    LOADED = 3
    UNLOAD = 4
    UNLOADED = 5
    INFER = 6
    RESULT = 7


class Encoding(enum.IntEnum):
    """How the frame of one request is written."""

    TENSORS = 0
    OIP_JSON = 1


class ActionStatus(enum.IntEnum):
    """How an action, or one request of it, ended. Numbers above 9 follow Clockwork's where it has one."""

    OK = 0
    MODEL_RAISED = 1
    INVALID_INPUT = 2
    BROKEN_CONTRACT = 3
    OUT_OF_MEMORY = 4
    UNKNOWN_MODEL = 10
    TOO_LATE = 11
    INVALID_ACTION = 12
    LOAD_FAILED = 41


class WireError(ServingError):
    """The peer sent bytes that are not this protocol; the connection is of no more use."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


HEAD = struct.Struct("<2sBBI")
"""magic, version, type, bytes of the body."""
_WINDOW = struct.Struct("<Qqq")
"""LOAD: action, earliest_ns, latest_ns; JSON follows."""
_UNLOAD = struct.Struct("<QqqI")
"""UNLOAD: action, earliest_ns, latest_ns, model number."""
_ANSWER = struct.Struct("<QHH")
"""LOADED and UNLOADED: action, status, reserved; JSON follows."""
_INFER = struct.Struct("<QIqqI")
"""INFER: action, model number, earliest_ns, latest_ns, count of entries."""
_INFER_ENTRY = struct.Struct("<IHHII")
"""Bytes of the frame, encoding, reserved, start, stop."""
_RESULT = struct.Struct("<QHHqQQQI")
"""RESULT: action, status, reserved, started_ns, input_ns, exec_ns, output_ns, count of entries."""
_RESULT_ENTRY = struct.Struct("<IHH")
"""Bytes of the frame, status, reserved."""
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_TENSOR = struct.Struct("<BBHQ")
"""One tensor of a descriptor: datatype, rank, bytes of the name, bytes of the data; dims and name follow."""

_TYPES = tuple(MessageType(n) if n in set(MessageType) else None for n in range(256))
_DATATYPES = tuple(ITEM_BYTES)
"""Datatype codes: their place in the protocol's own table."""
_CODES = {name: code for code, name in enumerate(_DATATYPES)}
_U32_MAX = 2**32 - 1


# ---------------------------------------------------------------------------------------------------- layouts


class TensorLayout(NamedTuple):
    """One tensor of a frame: what it is, and where its bytes lie from the start of the frame's data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A parsed descriptor. Frames of equal layout share one object, so `is` tells (until the table starts anew)."""

    tensors: tuple[TensorLayout, ...]
    data_bytes: int
    prefix_bytes: int
    """Bytes before the data: the u32 length and the descriptor."""


class _Layouts:
    """The table of parsed descriptors, bounded."""

    def __init__(self) -> None:
        self.by_descriptor: dict[bytes, Layout] = {}

    def parse(self, descriptor: bytes) -> Layout:
        layout = _parse_descriptor(descriptor)
        if len(self.by_descriptor) >= MAX_CACHED_LAYOUTS:
            self.by_descriptor.clear()
        self.by_descriptor[descriptor] = layout
        return layout


_layouts = _Layouts()
_known_layout = _layouts.by_descriptor.get


def _parse_descriptor(descriptor: bytes) -> Layout:
    try:
        (count,) = _U16.unpack_from(descriptor, 0)
        position = 2
        start = 0
        tensors = []
        for _ in range(count):
            code, rank, name_bytes, data_bytes = _TENSOR.unpack_from(descriptor, position)
            position += _TENSOR.size
            if rank > MAX_RANK:
                raise WireError(
                    f"a tensor of the frame has {rank} dimensions, at most {MAX_RANK} are allowed"
                )
            shape = struct.unpack_from(f"<{rank}q", descriptor, position)
            position += 8 * rank
            name = descriptor[position : position + name_bytes].decode()
            position += name_bytes
            if code >= len(_DATATYPES):
                raise WireError(
                    f"tensor {name!r} of the frame has the unknown datatype code {code}"
                )
            tensors.append(TensorLayout(name, _DATATYPES[code], shape, start, start + data_bytes))
            start += data_bytes
            _check_size(tensors[-1])
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(
            f"a frame's descriptor of {len(descriptor)} bytes is malformed: {error}"
        ) from error
    if position != len(descriptor):
        raise WireError(
            f"a frame's descriptor has {len(descriptor)} bytes, its {count} tensors need {position}"
        )
    return Layout(tensors=tuple(tensors), data_bytes=start, prefix_bytes=4 + len(descriptor))


def _check_size(tensor: TensorLayout) -> None:
    given = tensor.stop - tensor.start
    if any(size < 0 for size in tensor.shape):
        raise WireError(
            f"tensor {tensor.name!r} of the frame has the negative shape {list(tensor.shape)}"
        )
    elements = math.prod(tensor.shape)
    item_bytes = ITEM_BYTES[tensor.datatype]
    if (item_bytes and given != elements * item_bytes) or (not item_bytes and given < 4 * elements):
        raise WireError(
            f"tensor {tensor.name!r} of the frame has {given} bytes, which does not fit "
            f"{tensor.datatype}{list(tensor.shape)}"
        )


@functools.lru_cache(maxsize=MAX_CACHED_LAYOUTS)
def _descriptor(tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]) -> bytes:
    parts = [_U16.pack(len(tensors))]
    for name, datatype, shape, data_bytes in tensors:
        encoded = name.encode()
        parts.append(_TENSOR.pack(_CODES[datatype], len(shape), len(encoded), data_bytes))
        parts.append(struct.pack(f"<{len(shape)}q", *shape))
        parts.append(encoded)
    descriptor = b"".join(parts)
    return _U32.pack(len(descriptor)) + descriptor


def encode_descriptor(tensors: Sequence[Tensor]) -> bytes:
    """The first buffer of a frame: u32 length and descriptor; the tensors' data follow it back to back.

    Raises:
        WireError: a name, a rank or a shape does not fit the form.
    """
    return describe(
        tuple(
            [
                (
                    t.name,
                    t.datatype,
                    t.shape,
                    t.data.nbytes if type(t.data) is memoryview else len(t.data),
                )
                for t in tensors
            ]
        )
    )


def describe(tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]) -> bytes:
    """As `encode_descriptor`, from (name, datatype, shape, bytes of the data) alone; remembered by its argument."""
    try:
        return _descriptor(tensors)
    except (struct.error, UnicodeEncodeError, KeyError) as error:
        raise WireError(
            f"tensors {tensors!r} cannot be described in the wire's form: {error!r}"
        ) from error


def split_frame(view: memoryview) -> tuple[Layout, memoryview]:
    """Layout and data of a frame in the tensors encoding, without an object per tensor.

    Raises:
        WireError: the descriptor is malformed, or the frame's length is not what it says.
    """
    if len(view) < 4:
        raise WireError(f"a frame of {len(view)} bytes is too short for its descriptor's length")
    (length,) = _U32.unpack_from(view, 0)
    descriptor = bytes(view[4 : 4 + length])
    layout = _known_layout(descriptor)
    if layout is None:
        if len(descriptor) != length:
            raise WireError(
                f"a frame of {len(view)} bytes is shorter than its descriptor of {length} bytes"
            )
        layout = _layouts.parse(descriptor)
    if len(view) != layout.prefix_bytes + layout.data_bytes or length + 4 != layout.prefix_bytes:
        raise WireError(
            f"a frame has {len(view)} bytes, its descriptor says {layout.prefix_bytes + layout.data_bytes}"
        )
    return layout, view[layout.prefix_bytes :]


def decode_frame(view: memoryview) -> tuple[Tensor, ...]:
    """The tensors of a frame in the tensors encoding; their data are views of `view`.

    Raises:
        WireError: see `split_frame`.
    """
    layout, data = split_frame(view)
    return tuple(
        [Tensor(t.name, t.datatype, t.shape, data[t.start : t.stop]) for t in layout.tensors]
    )


# ------------------------------------------------------------------------------------------------- small messages


class HelloMessage(NamedTuple):
    """First message of a replica."""

    wire: int
    pid: int
    features: tuple[str, ...]
    monotonic_ns: int


class LoadMessage(NamedTuple):
    """The gateway wants a model in the replica's memory, under a number that it chose."""

    action_id: int
    earliest_ns: int
    latest_ns: int
    model: int
    name: str
    version: str
    kind: str
    path: str | None
    threads: int


class AnswerMessage(NamedTuple):
    """LOADED or UNLOADED: how the action ended, with a JSON object."""

    action_id: int
    status: int
    detail: dict[str, Any]


class UnloadMessage(NamedTuple):
    """The gateway wants a model out of the replica's memory."""

    action_id: int
    earliest_ns: int
    latest_ns: int
    model: int


def _message(kind: MessageType, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return HEAD.pack(MAGIC, VERSION, kind, len(body)) + body


def _json_bytes(data: Mapping[str, object]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _json_object(view: memoryview, what: str) -> dict[str, Any]:
    try:
        data = json.loads(bytes(view))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} does not hold JSON: {error}") from error
    if not isinstance(data, dict):
        raise WireError(f"{what} holds the JSON type {type(data).__name__}, expected an object")
    return data


def _field(data: Mapping[str, Any], name: str, kind: type, what: str) -> Any:
    value = data.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireError(f"{what} has {name} = {value!r}, expected {kind.__name__}")
    return value


def encode_hello(*, pid: int, monotonic_ns: int, features: Sequence[str] = FEATURES) -> bytes:
    """HELLO, the whole message."""
    data = {"wire": VERSION, "pid": pid, "features": list(features), "monotonic_ns": monotonic_ns}
    return _message(MessageType.HELLO, _json_bytes(data))


def parse_hello(body: memoryview) -> HelloMessage:
    """HELLO's body. The caller decides whether it can work with these features.

    Raises:
        WireError: malformed, or another version of the wire.
    """
    data = _json_object(body, "HELLO")
    wire = _field(data, "wire", int, "HELLO")
    if wire != VERSION:
        raise WireError(
            f"the replica speaks version {wire} of the wire, this gateway speaks {VERSION}"
        )
    features = tuple(str(item) for item in _field(data, "features", list, "HELLO"))
    return HelloMessage(
        wire,
        _field(data, "pid", int, "HELLO"),
        features,
        _field(data, "monotonic_ns", int, "HELLO"),
    )


def encode_load(
    action_id: int,
    *,
    model: int,
    name: str,
    version: str,
    kind: str,
    path: str | None,
    threads: int,
    earliest_ns: int = 0,
    latest_ns: int = 0,
) -> bytes:
    """LOAD, the whole message."""
    data = {
        "model": model,
        "name": name,
        "version": version,
        "kind": kind,
        "path": path,
        "threads": threads,
    }
    return _message(
        MessageType.LOAD, _WINDOW.pack(action_id, earliest_ns, latest_ns), _json_bytes(data)
    )


def parse_load(body: memoryview) -> LoadMessage:
    """LOAD's body.

    Raises:
        WireError: malformed.
    """
    action_id, earliest_ns, latest_ns = _unpacked(_WINDOW, body, "LOAD")
    data = _json_object(body[_WINDOW.size :], "LOAD")
    path = data.get("path")
    return LoadMessage(
        action_id,
        earliest_ns,
        latest_ns,
        _field(data, "model", int, "LOAD"),
        _field(data, "name", str, "LOAD"),
        _field(data, "version", str, "LOAD"),
        _field(data, "kind", str, "LOAD"),
        None if path is None else _field(data, "path", str, "LOAD"),
        _field(data, "threads", int, "LOAD"),
    )


def encode_loaded(action_id: int, status: int, detail: Mapping[str, object]) -> bytes:
    """LOADED, the whole message; `detail` is {"signature", "load_s"} or {"error"}."""
    return _message(MessageType.LOADED, _ANSWER.pack(action_id, status, 0), _json_bytes(detail))


def parse_loaded(body: memoryview) -> AnswerMessage:
    """LOADED's body.

    Raises:
        WireError: malformed.
    """
    action_id, status, _ = _unpacked(_ANSWER, body, "LOADED")
    return AnswerMessage(action_id, status, _json_object(body[_ANSWER.size :], "LOADED"))


def encode_unload(action_id: int, *, model: int, earliest_ns: int = 0, latest_ns: int = 0) -> bytes:
    """UNLOAD, the whole message."""
    return _message(MessageType.UNLOAD, _UNLOAD.pack(action_id, earliest_ns, latest_ns, model))


def parse_unload(body: memoryview) -> UnloadMessage:
    """UNLOAD's body.

    Raises:
        WireError: malformed.
    """
    action_id, earliest_ns, latest_ns, model = _unpacked(_UNLOAD, body, "UNLOAD", exactly=True)
    return UnloadMessage(action_id, earliest_ns, latest_ns, model)


def encode_unloaded(action_id: int, status: int, detail: Mapping[str, object]) -> bytes:
    """UNLOADED, the whole message; `detail` is {} or {"error"}."""
    return _message(MessageType.UNLOADED, _ANSWER.pack(action_id, status, 0), _json_bytes(detail))


def parse_unloaded(body: memoryview) -> AnswerMessage:
    """UNLOADED's body.

    Raises:
        WireError: malformed.
    """
    action_id, status, _ = _unpacked(_ANSWER, body, "UNLOADED")
    return AnswerMessage(action_id, status, _json_object(body[_ANSWER.size :], "UNLOADED"))


def _unpacked(
    form: struct.Struct, body: memoryview, what: str, *, exactly: bool = False
) -> tuple[int, ...]:
    if len(body) < form.size or (exactly and len(body) != form.size):
        raise WireError(f"{what} has a body of {len(body)} bytes, expected {form.size}")
    return form.unpack_from(body, 0)


# ------------------------------------------------------------------------------------------------ INFER and RESULT


class InferEntry(NamedTuple):
    """One request of a batch; `start` and `stop` are the items meant, 0 and 0 all of them."""

    encoding: int
    start: int
    stop: int
    frame: memoryview


class InferMessage(NamedTuple):
    """One batch for a model."""

    action_id: int
    model: int
    earliest_ns: int
    latest_ns: int
    entries: list[InferEntry]


class ReplicaTimes(NamedTuple):
    """When the replica began with an action (its CLOCK_MONOTONIC) and how long each stage took."""

    started_ns: int
    input_ns: int
    exec_ns: int
    output_ns: int


class ResultMessage(NamedTuple):
    """The answers to one batch: (status, frame) per request, in the order of the INFER."""

    action_id: int
    status: int
    times: ReplicaTimes
    entries: list[tuple[int, memoryview]]


def infer_head(
    action_id: int,
    model: int,
    earliest_ns: int,
    latest_ns: int,
    frames: Sequence[tuple[int, int, int, int]],
) -> bytes:
    """INFER up to its frames; the caller writes this, then the buffers of the frames in the same order.

    Args:
        action_id: chosen by the gateway, told back in the result.
        model: number that LOAD gave to the model.
        earliest_ns: the action must not start before this time, 0 = open.
        latest_ns: the action must not start after this time, 0 = open.
        frames: (bytes of the frame, encoding, start, stop) per request.

    Raises:
        WireError: the frames together do not fit one message.
    """
    pack = _INFER_ENTRY.pack
    total = _INFER.size + _INFER_ENTRY.size * len(frames)
    parts = [b"", _INFER.pack(action_id, model, earliest_ns, latest_ns, len(frames))]
    for frame_bytes, encoding, start, stop in frames:
        total += frame_bytes
        parts.append(pack(frame_bytes, encoding, 0, start, stop))
    if total > _U32_MAX:
        raise WireError(
            f"a batch of {total} bytes does not fit one message of at most {_U32_MAX} bytes"
        )
    parts[0] = HEAD.pack(MAGIC, VERSION, MessageType.INFER, total)
    return b"".join(parts)


def parse_infer(body: memoryview) -> InferMessage:
    """INFER's body; the frames are views of it.

    Raises:
        WireError: malformed.
    """
    action_id, model, earliest_ns, latest_ns, count = _unpacked(_INFER, body, "INFER")
    position = _frames_start(_INFER, _INFER_ENTRY, count, body, "INFER")
    entries = []
    for frame_bytes, encoding, _, start, stop in _INFER_ENTRY.iter_unpack(
        body[_INFER.size : position]
    ):
        end = position + frame_bytes
        entries.append(InferEntry(encoding, start, stop, body[position:end]))
        position = end
    _check_end(position, body, "INFER")
    return InferMessage(action_id, model, earliest_ns, latest_ns, entries)


def result_head(
    action_id: int, status: int, times: ReplicaTimes, frames: Iterable[tuple[int, int]]
) -> bytes:
    """RESULT up to its frames; `frames` are (bytes of the frame, status) per request, in the INFER's order.

    Raises:
        WireError: the frames together do not fit one message.
    """
    pack = _RESULT_ENTRY.pack
    entries = []
    total = _RESULT.size
    for frame_bytes, entry_status in frames:
        total += frame_bytes + _RESULT_ENTRY.size
        entries.append(pack(frame_bytes, entry_status, 0))
    if total > _U32_MAX:
        raise WireError(
            f"a result of {total} bytes does not fit one message of at most {_U32_MAX} bytes"
        )
    head = HEAD.pack(MAGIC, VERSION, MessageType.RESULT, total)
    return b"".join([head, _RESULT.pack(action_id, status, 0, *times, len(entries)), *entries])


def parse_result(body: memoryview) -> ResultMessage:
    """RESULT's body; the frames are views of it.

    Raises:
        WireError: malformed.
    """
    action_id, status, _, started, in_ns, exec_ns, out_ns, count = _unpacked(
        _RESULT, body, "RESULT"
    )
    position = _frames_start(_RESULT, _RESULT_ENTRY, count, body, "RESULT")
    entries = []
    for frame_bytes, entry_status, _ in _RESULT_ENTRY.iter_unpack(body[_RESULT.size : position]):
        end = position + frame_bytes
        entries.append((entry_status, body[position:end]))
        position = end
    _check_end(position, body, "RESULT")
    return ResultMessage(action_id, status, ReplicaTimes(started, in_ns, exec_ns, out_ns), entries)


def _frames_start(
    form: struct.Struct, entry: struct.Struct, count: int, body: memoryview, what: str
) -> int:
    start = form.size + entry.size * count
    if start > len(body):
        raise WireError(
            f"{what} has a body of {len(body)} bytes, its {count} entries alone need {start}"
        )
    return start


def _check_end(position: int, body: memoryview, what: str) -> None:
    if position != len(body):
        raise WireError(f"{what} has a body of {len(body)} bytes, its entries say {position}")


# ---------------------------------------------------------------------------------------------------------- parser


class Parser:
    """Cuts a stream into messages; bytes go in as they come, in any pieces.

    A message that lies whole in one piece is not copied; one that spans pieces is joined once, when its last
    byte is there. What is fed must not change afterwards: the bodies that come out are views of it.
    """

    __slots__ = ("_held", "_held_bytes", "_max_message_bytes", "_needed_bytes")

    def __init__(self, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._needed_bytes = HEAD.size

    @property
    def waits_for_bytes(self) -> int:
        """Bytes that are missing until the next step: the rest of the head, or of the message it told of."""
        return self._needed_bytes - self._held_bytes

    def feed(self, data: Buffer) -> list[tuple[MessageType, memoryview]]:
        """The messages that are complete with these bytes, as (type, body).

        Raises:
            WireError: not this protocol, or a message above the limit; the stream cannot be read any further.
        """
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return []
            data = b"".join(self._held)
            self._held.clear()
        view = memoryview(data)
        size = len(view)
        messages: list[tuple[MessageType, memoryview]] = []
        position = 0
        needed = HEAD.size
        while size - position >= HEAD.size:
            kind, length = self._read_head(view, position)
            needed = HEAD.size + length
            end = position + needed
            if end > size:
                break
            messages.append((kind, view[position + HEAD.size : end]))
            position = end
            needed = HEAD.size
        self._needed_bytes = needed
        self._held_bytes = size - position
        if position < size:
            self._held.append(view[position:])
        return messages

    def _read_head(self, view: memoryview, position: int) -> tuple[MessageType, int]:
        magic, version, type_byte, length = HEAD.unpack_from(view, position)
        kind = _TYPES[type_byte]
        if magic != MAGIC:
            raise WireError(f"a message starts with {bytes(magic)!r}, expected {MAGIC!r}")
        if version != VERSION:
            raise WireError(f"a message has version {version} of the wire, expected {VERSION}")
        if kind is None:
            raise WireError(f"a message has the unknown type {type_byte}")
        if length > self._max_message_bytes:
            raise WireError(
                f"a {kind.name} of {length} bytes is above the limit of {self._max_message_bytes}"
            )
        return kind, length
