"""Whole numbers as protobuf packs them (varints), read and written as arrays.

A varint holds 7 bits a byte, the least first; its last byte is below 128. Negative numbers are
their two's complement of 64 bits, ten bytes long. Pure; some 10 ns a byte, where a loop over the
elements takes ten times that. Forty bytes of memory are used for each meanwhile, so what is read is bounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest

_LONGEST = 10
"""Bytes of the largest number."""
MOST_BYTES = 8 * 2**20
"""Read at once: some 0.1 s, while nobody else is served."""


def unpack(data: bytes | memoryview) -> NDArray[np.uint64] | None:
    """The numbers, modulo 2**64; None when the bytes are no varints.

    Raises:
        InvalidRequest: they are too many.
    """
    check_size(len(data))
    encoded = np.frombuffer(data, dtype=np.uint8)
    if not encoded.size:
        return np.empty(0, dtype=np.uint64)
    last = encoded < 128
    if not last[-1]:
        return None
    if last.all():
        return encoded.astype(np.uint64)
    stops = np.flatnonzero(last)
    starts = np.concatenate([[0], stops[:-1] + 1])
    lengths = stops - starts + 1
    if lengths.max() > _LONGEST:
        return None
    shifts = 7 * (np.arange(encoded.size) - np.repeat(starts, lengths))
    parts = (encoded & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts)


def check_size(size: int) -> None:
    """Whether so many bytes of one tensor may be read.

    Raises:
        InvalidRequest: they may not.
    """
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"{size} bytes of packed whole numbers are given in one tensor, at most {MOST_BYTES} are read; send it in "
            "raw contents (raw_input_contents, tensor_content)"
        )


def pack(values: NDArray[np.integer]) -> bytes:
    """The bytes of whole numbers of any kind."""
    numbers = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    if not numbers.size or numbers.max() < 128:
        return numbers.astype(np.uint8).tobytes()
    shifts = np.arange(_LONGEST, dtype=np.uint64) * np.uint64(7)
    rest = numbers[:, None] >> shifts  # (n, 10): what is left before each byte
    parts = (rest & np.uint64(127)).astype(np.uint8)
    parts[:, :-1] |= np.where(rest[:, 1:] > 0, 128, 0).astype(np.uint8)
    used = rest > 0
    used[:, 0] = True
    return parts[used].tobytes()


def one(value: int) -> bytes:
    """One whole number; of a negative one its two's complement."""
    value %= 2**64
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
