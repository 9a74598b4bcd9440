"""What this process has of memory and does not use: a heap keeps what was freed for what comes next.

In: nothing. Out: the same memory, less what is free. A loop that allocates meanwhile may wait for some milliseconds.
"""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Give the system what is free, as far as the C library can: glibc, and no other."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
