"""Frames in the tensors encoding: a descriptor of the tensors, then their bytes back to back.

    frame      = u32 bytes of the descriptor, descriptor, data of each tensor
    descriptor = u16 count, then per tensor:
                 u8 datatype, u8 rank, u16 bytes of name, u64 bytes of data, i64 x rank, name

Elements are little-endian and row-major; a BYTES element is a u32 length and that many bytes, which
is not checked here. Parsed descriptors are cached.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from serving.values import ITEM_BYTES, MAX_RANK, Tensor
from serving.wire.stream import WireError

MAX_CACHED_LAYOUTS = 1024
_MAX_ELEMENTS = 2**60
"""Bound on the product of nonzero dimensions, which keeps sizes and strides below 2**63 bytes."""

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_TENSOR = struct.Struct("<BBHQ")

_DATATYPES = tuple(ITEM_BYTES)
_CODES = {name: code for code, name in enumerate(_DATATYPES)}

Description = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""(name, datatype, shape, bytes of the data) per tensor."""


class TensorLayout(NamedTuple):
    """One tensor of a frame, with offsets in the frame's data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Parsed descriptor, shared by frames of the same layout."""

    tensors: tuple[TensorLayout, ...]
    data_bytes: int
    prefix_bytes: int


_layouts: dict[bytes, Layout] = {}
_known_layout = _layouts.get


def split_frame(view: memoryview) -> tuple[Layout, memoryview]:
    """Return the layout and data of a frame, or raise WireError if they do not match."""
    if len(view) < 4:
        raise WireError(f"a frame of {len(view)} bytes has no room for its descriptor's length")
    (length,) = _U32.unpack_from(view, 0)
    descriptor = bytes(view[4 : 4 + length])
    layout = _known_layout(descriptor)
    if layout is None:
        layout = _parse_descriptor(descriptor)
        if len(_layouts) >= MAX_CACHED_LAYOUTS:
            _layouts.clear()
        _layouts[descriptor] = layout
    prefix_bytes = layout.prefix_bytes
    if len(view) != prefix_bytes + layout.data_bytes or length + 4 != prefix_bytes:
        raise WireError(
            f"a frame has {len(view)} bytes with a descriptor of {length}, "
            f"its tensors say {prefix_bytes + layout.data_bytes} with {prefix_bytes - 4}"
        )
    return layout, view[prefix_bytes:]


def decode_frame(view: memoryview) -> tuple[Tensor, ...]:
    """Return the tensors of a frame as views of `view`, or raise WireError."""
    layout, data = split_frame(view)
    return tuple(
        [
            Tensor(name, datatype, shape, data[start:stop])
            for name, datatype, shape, start, stop in layout.tensors
        ]
    )


def encode_descriptor(tensors: Sequence[Tensor]) -> bytes:
    """Return the first buffer of a frame (u32 length and descriptor), or raise WireError.

    A tensor's data must be bytes, a bytearray or a memoryview of bytes.
    """
    return describe(tuple([(name, kind, shape, len(data)) for name, kind, shape, data in tensors]))


def describe(tensors: Description) -> bytes:
    """Return the first buffer of a frame with the described tensors, or raise WireError; cached."""
    try:
        return _pack_descriptor(tensors)
    except (struct.error, UnicodeEncodeError, KeyError) as error:
        raise WireError(f"{tensors!r} cannot be written as a descriptor: {error!r}") from error


@functools.lru_cache(maxsize=MAX_CACHED_LAYOUTS)
def _pack_descriptor(tensors: Description) -> bytes:
    parts = [_U16.pack(len(tensors))]
    for name, datatype, shape, data_bytes in tensors:
        encoded = name.encode()
        parts.append(_TENSOR.pack(_CODES[datatype], len(shape), len(encoded), data_bytes))
        parts.append(struct.pack(f"<{len(shape)}q", *shape))
        parts.append(encoded)
    descriptor = b"".join(parts)
    return _U32.pack(len(descriptor)) + descriptor


def _parse_descriptor(descriptor: bytes) -> Layout:
    size = len(descriptor)
    tensors = []
    data_bytes = 0
    try:
        (count,) = _U16.unpack_from(descriptor, 0)
        position = 2
        for _ in range(count):
            tensor, position = _parse_tensor(descriptor, position, data_bytes)
            data_bytes = tensor.stop
            tensors.append(tensor)
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"a frame's descriptor of {size} bytes is malformed: {error}") from error
    if position != size:
        raise WireError(
            f"a frame's descriptor has {size} bytes, its {count} tensors need {position}"
        )
    return Layout(tensors=tuple(tensors), data_bytes=data_bytes, prefix_bytes=4 + size)


def _parse_tensor(descriptor: bytes, position: int, start: int) -> tuple[TensorLayout, int]:
    code, rank, name_bytes, data_bytes = _TENSOR.unpack_from(descriptor, position)
    position += _TENSOR.size
    if rank > MAX_RANK or code >= len(_DATATYPES):
        raise WireError(
            f"a tensor of a frame has rank {rank} (at most {MAX_RANK}) "
            f"and datatype code {code} (below {len(_DATATYPES)})"
        )
    shape = struct.unpack_from(f"<{rank}q", descriptor, position)
    position += 8 * rank
    name = descriptor[position : position + name_bytes].decode()
    datatype = _DATATYPES[code]
    elements = math.prod(shape)
    item_bytes = ITEM_BYTES[datatype]
    if (
        min(shape, default=0) < 0
        or math.prod([length or 1 for length in shape]) >= _MAX_ELEMENTS
        or (item_bytes and data_bytes != elements * item_bytes)
        or data_bytes < elements * 4 * (not item_bytes)
    ):
        raise WireError(
            f"tensor {name!r} of a frame has {data_bytes} bytes, "
            f"which does not fit {datatype}{list(shape)}"
        )
    return TensorLayout(name, datatype, shape, start, start + data_bytes), position + name_bytes
