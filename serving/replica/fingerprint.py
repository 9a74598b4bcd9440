"""Tells a file from what it was when it was loaded, without reading it.

In: what a model is loaded from. Out: device, inode, size and time of change of the file; None where no single file
says it all. The replica takes it before it loads, the gateway when it asks whether that is still the same.
"""

from __future__ import annotations

import pathlib

Fingerprint = tuple[int, int, int, int]


def fingerprint(path: str | None) -> Fingerprint | None:
    """Of a file, or of the file in `FILE:NAME`; None for a folder, a module, and what is not there.

    Args:
        path: absolute; others name no file.
    """
    if path is None or not pathlib.Path(path).is_absolute():
        return None
    whole = pathlib.Path(path)
    for file in (whole, whole.parent / whole.name.partition(":")[0]):
        if file.is_file():
            seen = file.stat()
            return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns
    return None
