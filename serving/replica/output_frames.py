"""Conversion of a model's outputs into one frame per request.

Frames are views of contiguous outputs; small frames of the same size form one block. The contract
is checked here: all outputs are present, in the signature's datatypes, with one entry per item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving import wire
from serving.replica.collation import MIN_ROWS, RequestGroup
from serving.replica.padding import Padding
from serving.tensors import arrays
from serving.values import Buffer, Signature


class BrokenContract(Exception):
    """The model's outputs break its contract; the message says how."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


Frame = tuple[int, list[Buffer]]
"""Size of a frame in bytes, and its buffers: the descriptor, then the data of each output."""


BLOCK_BYTES = 16 * 1024
"""Size below which frames are copied into a block, which is cheaper than two views of each."""


class FrameBlock(NamedTuple):
    """Consecutive frames of requests that differ only in their data."""

    frame_bytes: int  # of each frame
    requests: int
    data: Buffer


class _Output:
    __slots__ = ("array", "datatype", "name", "raw")

    def __init__(self, name: str, datatype: str, array: NDArray[Any], raw: memoryview) -> None:
        self.name = name
        self.datatype = datatype
        self.array = array
        self.raw = raw


def frames(
    group: RequestGroup,
    outputs: object,
    signature: Signature,
    *,
    as_block: bool = False,
    padding: Padding | None = None,
) -> list[Frame] | FrameBlock:
    """Return a group's outputs as one frame per request, in order.

    With `as_block`, small frames of the same size may be returned as a block.

    Raises:
        BrokenContract: an output is missing, or has the wrong datatype or number of items.
    """
    if not isinstance(outputs, Mapping):
        raise BrokenContract(f"the model returned {type(outputs).__name__}, expected a mapping")
    count = sum(group.counts)
    named = [_output(outputs, spec.name, spec.datatype) for spec in signature.outputs]
    if not group.has_items:
        return [_frame(named)]
    axes = [spec.item_axis or 0 for spec in signature.outputs]
    for output, axis in zip(named, axes, strict=True):
        array = output.array
        if array.ndim <= axis or array.shape[axis] != count:
            where = "the first axis" if axis == 0 else f"axis {axis}"
            raise BrokenContract(
                f"the model returned output {output.name!r} of shape {list(array.shape)} for {count} "
                f"items; expected one entry per item along {where}"
            )
    if any(axes) or padding is not None or any(output.datatype == "BYTES" for output in named):
        return _frames_of_cuts(group, named, axes, padding)
    if as_block and count and group.counts.count(group.counts[0]) == len(group.counts):
        block = _block(group, named, count)
        if block is not None:
            return block
    return _frames_of_slices(group, named, count)


def _output(outputs: Mapping[Any, Any], name: str, datatype: str) -> _Output:
    if name not in outputs:
        raise BrokenContract(f"the model returned {sorted(map(str, outputs))}, {name!r} is missing")
    array = np.asarray(outputs[name])
    given = arrays.datatype_of(array)
    if given != datatype:
        raise BrokenContract(
            f"the model returned output {name!r} as {given or array.dtype}, "
            f"its signature says {datatype}"
        )
    return _raw_output(name, datatype, array)


def _raw_output(name: str, datatype: str, array: NDArray[Any]) -> _Output:
    try:
        return _Output(name, datatype, array, arrays.raw_of(array))
    except TypeError as error:
        raise BrokenContract(f"the model returned output {name!r} in which {error}") from error


def _frame(named: list[_Output]) -> Frame:
    tensors = tuple([(out.name, out.datatype, out.array.shape, len(out.raw)) for out in named])
    frame: list[Buffer] = [wire.describe(tensors), *[output.raw for output in named]]
    return sum(map(len, frame)), frame


def _block(group: RequestGroup, named: list[_Output], count: int) -> FrameBlock | None:
    items, requests = group.counts[0], len(group.counts)
    rows = [(output.raw, len(output.raw) // count) for output in named]
    size, descriptor = _sized_descriptor(named, rows, items)
    if size >= BLOCK_BYTES:
        return None
    if requests < MIN_ROWS:
        pieces: list[Buffer] = []
        for start in range(0, count, items):
            pieces.append(descriptor)
            for raw, row in rows:
                pieces.append(raw[start * row : (start + items) * row])
        return FrameBlock(size, requests, b"".join(pieces))
    frames = np.empty((requests, size), np.uint8)
    position = len(descriptor)
    frames[:, :position] = np.frombuffer(descriptor, np.uint8)
    for raw, row in rows:
        width = row * items
        if width:
            data = np.frombuffer(raw, np.uint8).reshape(requests, width)
            frames[:, position : position + width] = data
            position += width
    return FrameBlock(size, requests, frames.reshape(-1).data)


def _frames_of_slices(group: RequestGroup, named: list[_Output], count: int) -> list[Frame]:
    """Return frames whose data are views, cut along axis 0."""
    rows = [(output.raw, len(output.raw) // count if count else 0) for output in named]
    sized: dict[int, tuple[int, bytes]] = {}
    result: list[Frame] = []
    position = 0
    for items in group.counts:
        known = sized.get(items)
        if known is None:
            known = sized[items] = _sized_descriptor(named, rows, items)
        size, descriptor = known
        end = position + items
        frame: list[Buffer] = [descriptor]
        for raw, row in rows:
            frame.append(raw[position * row : end * row])
        result.append((size, frame))
        position = end
    return result


def _sized_descriptor(
    named: list[_Output], rows: list[tuple[memoryview, int]], items: int
) -> tuple[int, bytes]:
    tensors = [
        (output.name, output.datatype, (items, *output.array.shape[1:]), items * row)
        for output, (_, row) in zip(named, rows, strict=True)
    ]
    descriptor = wire.describe(tuple(tensors))
    return len(descriptor) + sum(size for _, _, _, size in tensors), descriptor


def _frames_of_cuts(
    group: RequestGroup, named: list[_Output], axes: list[int], padding: Padding | None
) -> list[Frame]:
    """Return frames cut along any axis, without padding; outputs may be BYTES."""
    result = []
    position = 0
    for place, items in enumerate(group.counts):
        end = position + items
        rows = []
        for out, axis in zip(named, axes, strict=True):
            part = out.array[position:end] if axis == 0 else _along(out.array, axis, position, end)
            if padding is not None:
                for padded, size in padding.sizes_of(out.name, group.shapes[place]):
                    part = _along(part, padded, 0, size)
            rows.append(_raw_output(out.name, out.datatype, part))
        result.append(_frame(rows))
        position = end
    return result


def _along(array: NDArray[Any], axis: int, start: int, stop: int) -> NDArray[Any]:
    return array[(*[slice(None)] * axis, slice(start, stop))]
