"""Frames of a request that is split over batches: cut by items, and answers put together again.

In: frames in the tensors encoding; out: frames in the tensors encoding. Where items lie along axis 0, the
items of a tensor of fixed-size elements are one range of its bytes; elsewhere arrays are cut and joined. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from serving.replica import arrays, wire
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


def join(frames: Sequence[Buffer], axes: Mapping[str, int]) -> memoryview:
    """One frame with the items of several, in their order.

    Args:
        frames: one or more.
        axes: output -> axis of its items, where it is not the first.

    Raises:
        WireError: the frames differ in more than their number of items.
    """
    answers = [wire.decode_frame(memoryview(frame)) for frame in frames]
    joined = []
    for tensors in zip(*answers, strict=True):
        first = tensors[0]
        if first.name in axes:
            joined.append(_joined(tensors, axes[first.name]))
            continue
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


def _joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """One output of several answers, along an axis that is not the first.

    Raises:
        WireError: they differ along another one.
    """
    first = tensors[0]
    pieces = []
    for tensor in tensors:
        if tensor.datatype == "BYTES":
            elements = arrays.split_bytes(tensor.data, math.prod(tensor.shape))
            pieces.append(arrays.bytes_array(tensor.shape, elements))
        else:
            pieces.append(arrays.array_of(tensor.datatype, tensor.shape, [tensor.data]))
    try:
        array = np.concatenate(pieces, axis)
    except ValueError as error:
        raise wire.WireError(f"the parts of output {first.name!r} differ in shape") from error
    return Tensor(first.name, first.datatype, array.shape, arrays.raw_of(array))
