"""Inference request of the Open Inference Protocol, decoded."""

from __future__ import annotations

from serving import wire
from serving.api.open_inference.response_encoder import OutputRequest
from serving.values import Buffer, Tensor

TENSORS = int(wire.Encoding.TENSORS)  # a lookup costs as much as all of a request's numbers


class RestInferRequest:
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
        wanted: OutputRequest,
        timeout_s: float | None,
        priority: int,
    ) -> None:
        self.frame = frame
        self.frame_bytes = frame_bytes
        self.encoding = encoding
        self.items = items
        self.wanted = wanted
        self.timeout_s = timeout_s
        """From parameter `timeout` (microseconds); None: the server's default."""
        self.priority = priority
        """1 is the highest, 0 the default."""


def tensor_request(
    tensors: list[Tensor], items: int, wanted: OutputRequest, timeout_s: float | None, priority: int
) -> RestInferRequest:
    """Return the request of decoded tensors."""
    descriptor = wire.encode_descriptor(tensors)
    frame = (descriptor, *(tensor.data for tensor in tensors))
    return RestInferRequest(
        frame, sum(map(len, frame)), TENSORS, items, wanted, timeout_s, priority
    )
