"""Control messages: HELLO, MOVE, LOAD, LOADED, UNLOAD, UNLOADED.

    HELLO, MOVE      = JSON
    LOAD             = u64 action, i64 earliest_ns, i64 latest_ns, JSON
    UNLOAD           = u64 action, i64 earliest_ns, i64 latest_ns, u32 model
    LOADED, UNLOADED = u64 action, u16 status, u16 reserved, JSON

docs/replica-wire.md lists the keys; unknown keys are ignored.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serving.values import DeclaredInputs
from serving.wire.stream import VERSION, MessageType, WireError, message, unpack_start

_NOTHING_DECLARED = DeclaredInputs()
FEATURES = ("json", "stage-times", "windows")

_LOAD = struct.Struct("<Qqq")
_UNLOAD = struct.Struct("<QqqI")
_ACTION_RESPONSE = struct.Struct("<QHH")

_MAX_ACTION_RESPONSE_BYTES = 2**20
"""Size limit for LOADED and UNLOADED, which are parsed on the event loop."""

_LOAD_KEYS: Mapping[str, type] = {
    **dict.fromkeys(("model", "threads", "max_items", "pages", "budget", "max_answer_bytes"), int),
    **dict.fromkeys(("name", "version", "kind", "path", "samples", "device", "digest"), str),
    "warmup_s": float,
    "inputs": dict,
}
_LOAD_REQUIRED = ("model", "name", "version", "kind", "threads")


class HelloMessage(NamedTuple):
    """First message of a replica."""

    wire: int
    pid: int
    features: tuple[str, ...]
    monotonic_ns: int


class MoveMessage(NamedTuple):
    """Command to go on with the gateway on the connection whose descriptor comes with it.

    It may only be the first message to a process of this installation, on a Unix socket.
    """

    certificate: str | None = None
    """PEM of the certificate to show; None: without TLS."""
    key: str | None = None
    """PEM of its private key."""
    peer: str | None = None
    """PEM of the only certificate to accept."""


class LoadMessage(NamedTuple):
    """Command to load a model under a number that the gateway chose."""

    action_id: int
    earliest_ns: int
    latest_ns: int
    model: int
    name: str
    version: str
    kind: str
    path: str | None
    threads: int
    samples: str | None = None
    max_items: int = 1
    """Number of items in the largest expected batch."""
    warmup_s: float = 0.0
    device: str = "auto"
    pages: int = 0
    """Pages of memory that the gateway counts for the model."""
    budget: int | None = None
    """Maximum pages of all models together."""
    digest: str | None = None
    """SHA-256 of `path`, if an optimised model may be loaded instead."""
    optimises: bool = False
    inputs: DeclaredInputs = _NOTHING_DECLARED
    max_response_bytes: int | None = None


class UnloadMessage(NamedTuple):
    """Command to unload a model."""

    action_id: int
    earliest_ns: int
    latest_ns: int
    model: int


class ActionResponseMessage(NamedTuple):
    """Response of a replica to LOAD or UNLOAD, as LOADED or UNLOADED."""

    action_id: int
    status: int
    detail: dict[str, Any]


def encode_hello(*, pid: int, monotonic_ns: int, features: Sequence[str] = FEATURES) -> bytes:
    """Encode HELLO, the first message of a replica."""
    facts = {"pid": pid, "features": list(features), "monotonic_ns": monotonic_ns}
    return message(MessageType.HELLO, _json_bytes({"wire": VERSION, **facts}))


def parse_hello(body: memoryview) -> HelloMessage:
    """Parse the body of HELLO, or raise WireError if it is malformed or of another version."""
    data = _json_object(body, "HELLO")
    wire = _field(data, "wire", int, "HELLO")
    if wire != VERSION:
        raise WireError(f"the replica speaks version {wire} of the wire, expected {VERSION}")
    features = tuple(str(item) for item in _field(data, "features", list, "HELLO"))
    pid = _field(data, "pid", int, "HELLO")
    return HelloMessage(wire, pid, features, _field(data, "monotonic_ns", int, "HELLO"))


def encode_move(move: MoveMessage) -> bytes:
    """Encode MOVE; send it with the connection's descriptor in one call."""
    return message(MessageType.MOVE, _json_bytes(move._asdict()))


def parse_move(body: memoryview) -> MoveMessage:
    """Parse the body of MOVE, or raise WireError if it is malformed."""
    data = _json_object(body, "MOVE")
    if data.get("certificate") is None:
        return MoveMessage()
    return MoveMessage(*(_field(data, name, str, "MOVE") for name in MoveMessage._fields))


def encode_load(load: LoadMessage) -> bytes:
    """Encode LOAD; file paths must be absolute."""
    data = load._asdict()
    times = (data.pop("action_id"), data.pop("earliest_ns"), data.pop("latest_ns"))
    data["inputs"] = load.inputs.as_json()
    data["max_answer_bytes"] = data.pop("max_response_bytes")
    return message(MessageType.LOAD, _LOAD.pack(*times), _json_bytes(data))


def parse_load(body: memoryview) -> LoadMessage:
    """Parse the body of LOAD, or raise WireError if it is malformed."""
    action_id, earliest_ns, latest_ns = unpack_start(_LOAD, body, "LOAD")
    data = _json_object(body[_LOAD.size :], "LOAD")
    fields: dict[str, Any] = {
        name: _field(data, name, kind, "LOAD")
        for name, kind in _LOAD_KEYS.items()
        if name in _LOAD_REQUIRED or data.get(name) is not None
    }
    fields["path"] = fields.get("path")
    fields["optimises"] = data.get("optimises") is True
    fields["max_response_bytes"] = fields.pop("max_answer_bytes", None)
    try:
        fields["inputs"] = DeclaredInputs.from_json(fields.get("inputs", {}))
    except (AttributeError, TypeError, ValueError) as error:
        raise WireError(f"LOAD's inputs are malformed: {error}") from error
    return LoadMessage(action_id, earliest_ns, latest_ns, **fields)


def encode_unload(action_id: int, *, model: int, earliest_ns: int = 0, latest_ns: int = 0) -> bytes:
    """Encode UNLOAD; 0 leaves a time open."""
    return message(MessageType.UNLOAD, _UNLOAD.pack(action_id, earliest_ns, latest_ns, model))


def parse_unload(body: memoryview) -> UnloadMessage:
    """Parse the body of UNLOAD, or raise WireError if it is malformed."""
    return UnloadMessage(*unpack_start(_UNLOAD, body, "UNLOAD"))


def _encode_action_response(
    kind: MessageType, action_id: int, status: int, detail: Mapping[str, object]
) -> bytes:
    return message(kind, _ACTION_RESPONSE.pack(action_id, status, 0), _json_bytes(detail))


encode_loaded = functools.partial(_encode_action_response, MessageType.LOADED)
encode_unloaded = functools.partial(_encode_action_response, MessageType.UNLOADED)


def parse_loaded(body: memoryview, what: str = "LOADED") -> ActionResponseMessage:
    """Parse the body of LOADED, or raise WireError if it is malformed."""
    if len(body) > _MAX_ACTION_RESPONSE_BYTES:
        raise WireError(
            f"{what} has {len(body)} bytes, at most {_MAX_ACTION_RESPONSE_BYTES} are read"
        )
    action_id, status, _ = unpack_start(_ACTION_RESPONSE, body, what)
    detail = _json_object(body[_ACTION_RESPONSE.size :], what)
    return ActionResponseMessage(action_id, status, detail)


parse_unloaded = functools.partial(parse_loaded, what="UNLOADED")


def _json_bytes(data: Mapping[str, object]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _json_object(view: memoryview, what: str) -> dict[str, Any]:
    try:
        data = json.loads(bytes(view))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} does not hold JSON: {error}") from error
    if not isinstance(data, dict):
        raise WireError(f"{what} holds a JSON {type(data).__name__}, expected an object")
    return data


def _field(data: Mapping[str, Any], name: str, kind: type, what: str) -> Any:
    value = data.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireError(f"{what} has {name} = {value!r}, expected {kind.__name__}")
    return value
