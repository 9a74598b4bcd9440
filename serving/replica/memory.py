"""Memory that this process has in use, so that two measurements of the same thing agree.

A heap keeps what was freed for what comes next: the next model that is loaded seems to take nothing, and what a load
has freed itself seems to be part of the model. So the heap gives back first what it does not use.
"""

from __future__ import annotations

import os
import pathlib

from serving import heap

_STATM = pathlib.Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def resident_bytes(*, settled: bool) -> int:
    """Bytes of this process that are in memory.

    Args:
        settled: whether the heap gives back first what it does not use, which takes up to some milliseconds.
    """
    if settled:
        heap.give_back()
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
