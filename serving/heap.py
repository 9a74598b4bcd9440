"""What this process has of memory and does not use: a heap keeps what was freed for what comes next.

In: nothing. Out: the same memory, less what is free. Only glibc's heap can be told; with another C library nothing
happens here.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

LARGE_BYTES = 8 * 1024 * 1024
"""Blocks from here on are mapped by themselves, and go back when they are freed. By default the heap learns from what
is freed to map no block under 32 MiB and to keep 64 MiB for each thread: what a few requests leave would stay."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def give_back() -> None:
    """Give the system what is free; a thread that allocates meanwhile may wait for some milliseconds."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def keep_little() -> None:
    """Let large blocks go back to the system when they are freed, from now on."""
    set_option = _function("mallopt")
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, LARGE_BYTES)
        set_option(_TRIM_THRESHOLD, LARGE_BYTES)


@functools.cache
def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
