"""Memory in use, and the return of free heap memory to the system (effective with glibc only)."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from typing import Any

LARGE_BYTES = 8 * 1024 * 1024
"""Size from which blocks are mapped separately, and unmapped when freed.

By default glibc raises this threshold up to 32 MiB and keeps 64 MiB per thread, so that the memory
of a few requests would stay.
"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h
_STATM = pathlib.Path("/proc/self/statm")


def trim() -> None:
    """Give free heap memory back; a thread that allocates meanwhile may wait some milliseconds."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def resident_bytes(*, settled: bool) -> int:
    """Return resident bytes; if `settled`, call `trim` first, which may take some milliseconds.

    Otherwise the heap would retain freed memory, which distorts measurements of models.
    """
    if settled:
        trim()
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGESIZE")


def lower_trim_threshold() -> None:
    """Make the heap give large blocks back as soon as they are freed."""
    set_option = _function("mallopt")
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, LARGE_BYTES)
        set_option(_TRIM_THRESHOLD, LARGE_BYTES)


@functools.cache
def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
