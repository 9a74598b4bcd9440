"""Tells a file from what it was when it was loaded, without reading it.

In: what a model is loaded from. Out: device, inode, size and time of change of the file; None where no single file
says it all. The replica takes it before it loads, the gateway when it asks whether that is still the same.
"""

from __future__ import annotations

import os

Fingerprint = tuple[int, int, int, int]


def fingerprint(path: str | None) -> Fingerprint | None:
    """Of a file, or of the file in `FILE:NAME`; None for a folder, a module, and what is not there.

    Args:
        path: absolute; others name no file.
    """
    if path is None or not os.path.isabs(path):
        return None
    folder, name = os.path.split(path)
    for one in dict.fromkeys((name, name.partition(":")[0])):
        file = os.path.join(folder, one)  # noqa: PTH118 - a path with `:NAME` is none
        if os.path.isfile(file):  # noqa: PTH113
            seen = os.stat(file)  # noqa: PTH116
            return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns
    return None
