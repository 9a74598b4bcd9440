"""Tells files from what they were before, without reading them: by device, inode, size and time of change.

In: what a model is loaded from. Out: numbers that are the same as long as its files are; None where no file says it
all. The replica takes them before it loads, the gateway when it asks whether that is still the same.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib

Stamp = tuple[int, int, int, int]


def stamp(file: pathlib.Path) -> Stamp:
    """What a file is known by: hard links are one file."""
    seen = file.stat()
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def stamps(file: pathlib.Path) -> list[Stamp]:
    """Of a model's file, and of those whose names begin with its own: an ONNX file's weights, it may be.

    What goes meanwhile, or is a link to nowhere, is nobody's weights.

    Raises:
        OSError: the file itself is not there.
    """
    found = [stamp(file)]
    for name in sorted(os.listdir(file.parent)):  # noqa: PTH208 - a folder may hold thousands
        if name.startswith(file.name) and name != file.name:
            with contextlib.suppress(OSError):
                found.append(stamp(file.parent / name))
    return found


def fingerprint(path: pathlib.Path) -> tuple[int, ...] | None:
    """Of a model's file, or of the file in `FILE:NAME`; None for a folder, a module, and what is not there.

    Args:
        path: absolute; others name no file.
    """
    if not path.is_absolute():
        return None
    try:
        if path.is_file():
            return tuple(itertools.chain.from_iterable(stamps(path)))
        code = path.parent / path.name.partition(":")[0]
        return stamp(code) if code.is_file() else None
    except OSError:
        return None
