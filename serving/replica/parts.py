"""Frames of a request that is split over batches: cut by items, and answers put together again.

In: frames in the tensors encoding; out: frames in the tensors encoding. Items lie along axis 0, so
the items of a tensor of fixed-size elements are one range of its bytes. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving.replica import wire
from serving.values import ITEM_BYTES, Buffer, Tensor


def cut(frame: Sequence[Buffer], encoding: int, start: int, stop: int) -> list[Buffer] | None:
    """The buffers of a frame that holds items [start, stop) alone.

    None where a cut would need the elements' contents (JSON, BYTES): then the whole frame is sent
    with the range, and the replica cuts.
    """
    if encoding != wire.Encoding.TENSORS:
        return None
    tensors = wire.decode_frame(memoryview(b"".join(frame)))
    parts = []
    for tensor in tensors:
        if not ITEM_BYTES[tensor.datatype] or not tensor.shape or not tensor.shape[0]:
            return None
        item_bytes = len(tensor.data) // tensor.shape[0]
        data = tensor.data[start * item_bytes : stop * item_bytes]
        shape = (stop - start, *tensor.shape[1:])
        parts.append(Tensor(tensor.name, tensor.datatype, shape, data))
    return [wire.encode_descriptor(parts), *(part.data for part in parts)]


def join(frames: Sequence[Buffer]) -> memoryview:
    """One frame with the items of several, in their order.

    Raises:
        WireError: the frames differ in more than their number of items.
    """
    answers = [wire.decode_frame(memoryview(frame)) for frame in frames]
    joined = []
    for tensors in zip(*answers, strict=True):
        first = tensors[0]
        if any(
            (other.name, other.datatype, other.shape[1:])
            != (first.name, first.datatype, first.shape[1:])
            for other in tensors
        ):
            raise wire.WireError(f"the parts of output {first.name!r} differ in type or shape")
        items = sum(tensor.shape[0] for tensor in tensors)
        data = b"".join([tensor.data for tensor in tensors])
        joined.append(Tensor(first.name, first.datatype, (items, *first.shape[1:]), data))
    descriptor = wire.encode_descriptor(joined)
    return memoryview(b"".join([descriptor, *(tensor.data for tensor in joined)]))
