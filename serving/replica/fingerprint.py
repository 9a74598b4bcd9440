"""Tells files from what they were before, without reading them: by device, inode, size and time of change.

In: what a model is loaded from. Out: numbers that are the same as long as its files are; None where no file says it
all. The replica takes them before it loads, the gateway when it asks whether that is still the same.
"""

from __future__ import annotations

import glob
import pathlib

Stamp = tuple[int, int, int, int]


def stamp(file: pathlib.Path) -> Stamp:
    """What a file is known by: hard links are one file."""
    seen = file.stat()
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def with_weights(file: pathlib.Path) -> list[pathlib.Path]:
    """A model's file, and those whose names begin with its own: an ONNX file's weights, it may be."""
    return [file, *sorted(file.parent.glob(f"{glob.escape(file.name)}?*"))]


def fingerprint(path: pathlib.Path) -> tuple[int, ...] | None:
    """Of a model's file, or of the file in `FILE:NAME`; None for a folder, a module, and what is not there.

    Args:
        path: absolute; others name no file.
    """
    if not path.is_absolute():
        return None
    if path.is_file():
        files = with_weights(path)
    else:
        files = [path.parent / path.name.partition(":")[0]]
        if not files[0].is_file():
            return None
    return tuple(number for file in files for number in stamp(file))
