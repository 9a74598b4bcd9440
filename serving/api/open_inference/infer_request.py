"""Inference request, decoded from any protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving import wire
from serving.values import Buffer, Tensor

TENSORS = int(wire.Encoding.TENSORS)  # looking it up for each request is slow


class DecodedRequest:
    """Inference request, ready for a replica."""

    __slots__ = (
        "encoding",
        "frame",
        "frame_bytes",
        "items",
        "priority",
        "timeout_s",
        "wanted",
    )

    def __init__(
        self,
        frame: tuple[Buffer, ...],
        frame_bytes: int,
        encoding: int,
        items: int,
        wanted: Any,
        timeout_s: float | None,
        priority: int,
    ) -> None:
        self.frame = frame
        self.frame_bytes = frame_bytes
        self.encoding = encoding
        self.items = items
        self.wanted = wanted
        """Contents of the response, for the protocol's encoder."""
        self.timeout_s = timeout_s
        """Time limit, or None for the server's default."""
        self.priority = priority
        """Priority: 1 is the highest, 0 the default."""


def tensor_request(
    tensors: Sequence[Tensor],
    items: int,
    wanted: Any = None,
    timeout_s: float | None = None,
    priority: int = 0,
) -> DecodedRequest:
    """Build a request from decoded tensors."""
    frame = (wire.encode_descriptor(tensors), *(tensor.data for tensor in tensors))
    return DecodedRequest(frame, sum(map(len, frame)), TENSORS, items, wanted, timeout_s, priority)
