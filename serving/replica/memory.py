"""Resident memory of this process.

A heap retains freed memory, which would distort measurements of models, so it is trimmed first.
"""

from __future__ import annotations

import os
import pathlib

from serving import heap

_STATM = pathlib.Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def resident_bytes(*, settled: bool) -> int:
    """Return resident bytes; `settled`: trim the heap first (up to some milliseconds)."""
    if settled:
        heap.give_back()
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
