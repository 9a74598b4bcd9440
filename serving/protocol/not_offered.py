"""What Triton offers and this server does not: refused at once, with what there is instead.

In: a path, a method's name, or the parameters of a tensor. Out: the line that refuses it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Container

from serving.errors import InvalidRequest, Unimplemented, shown

_SHARED_MEMORY = (
    "shared memory is not offered by this server; send the tensors in the request: binary tensors over REST, raw "
    "contents over gRPC"
)
_TRACE = (
    "trace settings are not offered by this server; server.timing=header tells the stages of each answer over REST, "
    "and the statistics of a model those of all"
)
_LOG = "log settings are not offered by this server; its log goes to stderr, from the level that --log-level names"

_METHODS = {
    **{
        f"{kind}SharedMemory{verb}": _SHARED_MEMORY
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": _TRACE,
    "LogSettings": _LOG,
}
"""Methods of Triton's gRPC service."""

_PATH = re.compile(
    r"/v2/(?:"
    r"(?P<memory>(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:status|register|unregister))"
    r"|(?:models/[^/]+(?:/versions/[^/]+)?/)?(?P<trace>trace/setting)"
    r"|(?P<log>logging)"
    r")/?"
)
_REGION = "shared_memory_region"


def method(name: str) -> Unimplemented | None:
    """The refusal of a method of the gRPC service; None: it is none of these."""
    return Unimplemented(_METHODS[name]) if name in _METHODS else None


def path(asked: str) -> Unimplemented | None:
    """The refusal of a path of the query port, without its query; None: it is none of these."""
    match = _PATH.fullmatch(asked)
    if match is None:
        return None
    return Unimplemented(_SHARED_MEMORY if match["memory"] else _TRACE if match["trace"] else _LOG)


def check_tensor(what: str, name: object, parameters: Container[str]) -> None:
    """Whether a tensor travels in the request or the answer.

    Args:
        what: `input` or `output`.
        name: its name.
        parameters: those of the tensor.

    Raises:
        InvalidRequest: it is in shared memory.
    """
    if _REGION in parameters:
        raise InvalidRequest(f"{what} {shown(name)}: {_SHARED_MEMORY}")
