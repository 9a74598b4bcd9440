"""Control messages: HELLO, LOAD, LOADED, UNLOAD, UNLOADED.

    HELLO            = JSON
    LOAD             = u64 action, i64 earliest_ns, i64 latest_ns, JSON
    UNLOAD           = u64 action, i64 earliest_ns, i64 latest_ns, u32 model
    LOADED, UNLOADED = u64 action, u16 status, u16 reserved, JSON

docs/replica-wire.md lists the keys. Unknown keys are ignored, so that later versions may add some.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from serving.values import DeclaredInputs
from serving.wire.stream import VERSION, MessageType, WireError, message, unpack_start

_NOTHING_DECLARED = DeclaredInputs()
FEATURES = ("json", "stage-times", "windows")

_LOAD = struct.Struct("<Qqq")
_UNLOAD = struct.Struct("<QqqI")
_ACTION_RESPONSE = struct.Struct("<QHH")

_MAX_ACTION_RESPONSE_BYTES = 2**20
"""Limit of LOADED and UNLOADED, which the event loop parses."""

_Kind = TypeVar("_Kind", int, float, str, list[Any], dict[str, Any])


class HelloMessage(NamedTuple):
    """First message of a replica."""

    wire: int
    pid: int
    features: tuple[str, ...]
    monotonic_ns: int


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
    """Path of an npz with real inputs."""
    max_items: int = 1
    """Items of the largest expected batch."""
    warmup_s: float = 0.0
    device: str = "auto"
    pages: int = 0
    """Memory that the gateway counts for the model."""
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
    """LOADED or UNLOADED."""

    action_id: int
    status: int
    detail: dict[str, Any]


def encode_hello(*, pid: int, monotonic_ns: int, features: Sequence[str] = FEATURES) -> bytes:
    """Encode HELLO."""
    data = {
        "wire": VERSION,
        "pid": pid,
        "features": list(features),
        "monotonic_ns": monotonic_ns,
    }
    return message(MessageType.HELLO, _json_bytes(data))


def parse_hello(body: memoryview) -> HelloMessage:
    """Parse HELLO's body.

    Raises:
        WireError: malformed, or another version of the wire.
    """
    data = _json_object(body, "HELLO")
    wire = _field(data, "wire", int, "HELLO")
    if wire != VERSION:
        raise WireError(f"the replica speaks version {wire} of the wire, expected {VERSION}")
    features = tuple(str(item) for item in _field(data, "features", list, "HELLO"))
    pid = _field(data, "pid", int, "HELLO")
    return HelloMessage(wire, pid, features, _field(data, "monotonic_ns", int, "HELLO"))


def encode_load(
    action_id: int,
    *,
    model: int,
    name: str,
    version: str,
    kind: str,
    path: str | None,
    threads: int,
    samples: str | None = None,
    max_items: int = 1,
    warmup_s: float = 0.0,
    device: str = "auto",
    pages: int = 0,
    budget: int | None = None,
    digest: str | None = None,
    optimises: bool = False,
    inputs: DeclaredInputs = _NOTHING_DECLARED,
    max_response_bytes: int | None = None,
    earliest_ns: int = 0,
    latest_ns: int = 0,
) -> bytes:
    """Encode LOAD; paths are absolute."""
    data = {
        "model": model,
        "name": name,
        "version": version,
        "kind": kind,
        "path": path,
        "threads": threads,
        "samples": samples,
        "max_items": max_items,
        "warmup_s": warmup_s,
        "device": device,
        "pages": pages,
        "budget": budget,
        "digest": digest,
        "optimises": optimises,
        "inputs": inputs.as_json(),
        "max_answer_bytes": max_response_bytes,
    }
    fixed = _LOAD.pack(action_id, earliest_ns, latest_ns)
    return message(MessageType.LOAD, fixed, _json_bytes(data))


def parse_load(body: memoryview) -> LoadMessage:
    """Parse LOAD's body.

    Raises:
        WireError: malformed.
    """
    action_id, earliest_ns, latest_ns = unpack_start(_LOAD, body, "LOAD")
    data = _json_object(body[_LOAD.size :], "LOAD")
    path = None if data.get("path") is None else _field(data, "path", str, "LOAD")
    most = data.get("max_answer_bytes")
    return LoadMessage(
        action_id,
        earliest_ns,
        latest_ns,
        model=_field(data, "model", int, "LOAD"),
        name=_field(data, "name", str, "LOAD"),
        version=_field(data, "version", str, "LOAD"),
        kind=_field(data, "kind", str, "LOAD"),
        path=path,
        threads=_field(data, "threads", int, "LOAD"),
        samples=None if data.get("samples") is None else _field(data, "samples", str, "LOAD"),
        max_items=_field({"max_items": 1, **data}, "max_items", int, "LOAD"),
        warmup_s=_field({"warmup_s": 0.0, **data}, "warmup_s", float, "LOAD"),
        device=_field({"device": "auto", **data}, "device", str, "LOAD"),
        pages=_field({"pages": 0, **data}, "pages", int, "LOAD"),
        budget=None if data.get("budget") is None else _field(data, "budget", int, "LOAD"),
        digest=None if data.get("digest") is None else _field(data, "digest", str, "LOAD"),
        optimises=data.get("optimises") is True,
        inputs=_declared_inputs(_field({"inputs": {}, **data}, "inputs", dict, "LOAD")),
        max_response_bytes=None if most is None else _field(data, "max_answer_bytes", int, "LOAD"),
    )


def _declared_inputs(data: dict[str, Any]) -> DeclaredInputs:
    try:
        return DeclaredInputs.from_json(data)
    except (AttributeError, TypeError, ValueError) as error:
        raise WireError(f"LOAD's inputs are malformed: {error}") from error


def encode_unload(action_id: int, *, model: int, earliest_ns: int = 0, latest_ns: int = 0) -> bytes:
    """Encode UNLOAD."""
    return message(MessageType.UNLOAD, _UNLOAD.pack(action_id, earliest_ns, latest_ns, model))


def parse_unload(body: memoryview) -> UnloadMessage:
    """Parse UNLOAD's body.

    Raises:
        WireError: malformed.
    """
    action_id, earliest_ns, latest_ns, model = unpack_start(_UNLOAD, body, "UNLOAD")
    return UnloadMessage(action_id, earliest_ns, latest_ns, model)


def encode_loaded(action_id: int, status: int, detail: Mapping[str, object]) -> bytes:
    """Encode LOADED."""
    return message(
        MessageType.LOADED, _ACTION_RESPONSE.pack(action_id, status, 0), _json_bytes(detail)
    )


def parse_loaded(body: memoryview) -> ActionResponseMessage:
    """Parse LOADED's body.

    Raises:
        WireError: malformed.
    """
    return _parse_action_response(body, "LOADED")


def encode_unloaded(action_id: int, status: int, detail: Mapping[str, object]) -> bytes:
    """Encode UNLOADED."""
    return message(
        MessageType.UNLOADED, _ACTION_RESPONSE.pack(action_id, status, 0), _json_bytes(detail)
    )


def parse_unloaded(body: memoryview) -> ActionResponseMessage:
    """Parse UNLOADED's body.

    Raises:
        WireError: malformed.
    """
    return _parse_action_response(body, "UNLOADED")


def _parse_action_response(body: memoryview, what: str) -> ActionResponseMessage:
    if len(body) > _MAX_ACTION_RESPONSE_BYTES:
        raise WireError(
            f"{what} has {len(body)} bytes, at most {_MAX_ACTION_RESPONSE_BYTES} are read"
        )
    action_id, status, _ = unpack_start(_ACTION_RESPONSE, body, what)
    return ActionResponseMessage(
        action_id, status, _json_object(body[_ACTION_RESPONSE.size :], what)
    )


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


def _field(data: Mapping[str, Any], name: str, kind: type[_Kind], what: str) -> _Kind:
    value = data.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireError(f"{what} has {name} = {value!r}, expected {kind.__name__}")
    return value
