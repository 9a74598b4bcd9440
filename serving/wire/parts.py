"""Splitting of a request across batches: cuts its frame by items, and joins the responses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from serving import wire
from serving.tensors import arrays
from serving.values import ITEM_BYTES, Buffer, Tensor

_MAX_TEXTS = 2**16


class SplitRequest:
    """A request that runs in parts."""

    __slots__ = ("_columns", "_missing", "_responses", "response_bytes", "whole_bytes")

    def __init__(
        self, frame: Sequence[Buffer], encoding: int, items: int, *, has_rows: bool
    ) -> None:
        """Find the items in the frame; with `has_rows`, they lie along axis 0 of all inputs."""
        self._columns = _columns(frame) if has_rows and encoding == wire.Encoding.TENSORS else None
        self._responses: list[tuple[int, int, bytes]] = []
        self._missing = items
        self.response_bytes = 0
        self.whole_bytes = 0
        """Bytes sent so far if the frame is not cut."""

    @property
    def is_cut(self) -> bool:
        """Whether the gateway rather than the replica cuts the frame."""
        return self._columns is not None

    def cut(self, start: int, stop: int) -> list[Buffer]:
        """Return a frame of items [start, stop), with views of the data."""
        assert self._columns is not None, "is_cut tells"
        parts = [
            Tensor(name, datatype, (stop - start, *shape[1:]), data[ends[start] : ends[stop]])
            for (name, datatype, shape, data), ends in self._columns
        ]
        return [wire.encode_descriptor(parts), *(part.data for part in parts)]

    def add_part(self, start: int, stop: int, frame: Buffer) -> bool:
        """Add the response for items [start, stop); return whether it was the last."""
        self._responses.append((start, stop, bytes(frame)))
        self.response_bytes += len(frame)
        self._missing -= stop - start
        return self._missing <= 0

    def join_response(self, axes: Mapping[str, int]) -> memoryview:
        """Return the whole response; see `join`."""
        return join([answer for _, _, answer in sorted(self._responses)], axes)


def _columns(frame: Sequence[Buffer]) -> list[tuple[Tensor, Sequence[int]]] | None:
    tensors = wire.decode_frame(memoryview(b"".join(frame)))
    columns = []
    for tensor in tensors:
        ends = _ends(tensor)
        if ends is None:
            return None
        columns.append((tensor, ends))
    return columns


def _ends(tensor: Tensor) -> Sequence[int] | None:
    if not tensor.shape or not tensor.shape[0]:
        return None
    items, data_bytes = tensor.shape[0], len(tensor.data)
    if ITEM_BYTES[tensor.datatype]:
        item_bytes = data_bytes // items
        return range(0, data_bytes + item_bytes, item_bytes) if item_bytes else [0] * (items + 1)
    width = math.prod(tensor.shape[1:])
    if items * width > _MAX_TEXTS:
        return None
    ends, position = [0], 0
    for _ in range(items):
        for _ in range(width):
            if position + 4 > data_bytes:
                return None
            position += 4 + int.from_bytes(tensor.data[position : position + 4], "little")
        ends.append(position)
    return ends if position == data_bytes else None


def join(frames: Sequence[Buffer], axes: Mapping[str, int]) -> memoryview:
    """Join the items of frames along `axes` (output -> axis, by default 0), or raise WireError."""
    answers = [wire.decode_frame(memoryview(frame)) for frame in frames]
    joined = []
    for tensors in zip(*answers, strict=True):
        first = tensors[0]
        if first.name in axes:
            joined.append(_concatenate(tensors, axes[first.name]))
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


def _concatenate(tensors: Sequence[Tensor], axis: int) -> Tensor:
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
