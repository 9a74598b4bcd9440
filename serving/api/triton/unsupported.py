"""Errors for unsupported Triton features; the messages name alternatives."""

from __future__ import annotations

import re
from collections.abc import Container

from serving.error_text import short_repr
from serving.errors import InvalidRequest, Unimplemented

_SHARED_MEMORY = (
    "shared memory is not offered by this server; send the tensors in the request: "
    "binary tensors over REST, raw contents over gRPC"
)
_TRACE = (
    "trace settings are not offered by this server; server.timing=header reports the "
    "stages of each response over REST, and a model's statistics those of all"
)
_LOG = (
    "log settings are not offered by this server; it logs to stderr, from the level of --log-level"
)

_METHODS = {
    **{
        f"{kind}SharedMemory{verb}": _SHARED_MEMORY
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": _TRACE,
    "LogSettings": _LOG,
}

_PATH = re.compile(
    r"/v2/(?:"
    r"(?P<memory>(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:status|register|unregister))"
    r"|(?:models/[^/]+(?:/versions/[^/]+)?/)?(?P<trace>trace/setting)"
    r"|(?P<log>logging)"
    r")/?"
)
_REGION = "shared_memory_region"


def method(name: str) -> Unimplemented | None:
    """Return the error for an unsupported gRPC method, or None."""
    return Unimplemented(_METHODS[name]) if name in _METHODS else None


def path(asked: str) -> Unimplemented | None:
    """Return the error for an unsupported path, given without its query, or None."""
    match = _PATH.fullmatch(asked)
    if match is None:
        return None
    return Unimplemented(_SHARED_MEMORY if match["memory"] else _TRACE if match["trace"] else _LOG)


def check_tensor(what: str, name: object, parameters: Container[str]) -> None:
    """Raise InvalidRequest for a tensor in shared memory; `what` is `input` or `output`."""
    if _REGION in parameters:
        raise InvalidRequest(f"{what} {short_repr(name)}: {_SHARED_MEMORY}")
