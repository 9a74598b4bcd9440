"""Return free heap memory to the system; glibc only, without effect elsewhere."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

LARGE_BYTES = 8 * 1024 * 1024
"""Blocks of this size are mapped separately, and unmapped when freed.

By default glibc raises this threshold up to 32 MiB and keeps 64 MiB per thread, so that the memory
of a few requests would stay.
"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h


def give_back() -> None:
    """Return free memory; a thread that allocates meanwhile may wait some milliseconds."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def keep_little() -> None:
    """From now on, return large blocks when they are freed."""
    set_option = _function("mallopt")
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, LARGE_BYTES)
        set_option(_TRIM_THRESHOLD, LARGE_BYTES)


@functools.cache
def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
