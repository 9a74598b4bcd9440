"""Tells files from what they were before: by their content, read once, and by their stamps.

In: what a model is loaded from. Out: its `Identity`; None where no file says it all. The gateway takes it when a model
is deployed.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change of a file."""

_BLOCK_BYTES = 4 * 1024 * 1024
_LOCATION = re.compile(rb"\n\x08location\x12([\x00-\x7f]|[\x80-\xff][\x01-\x7f])", re.DOTALL)
"""In an ONNX file, where a tensor's values are in another one: the key and the length of the entry that names it
(`StringStringEntryProto`). Some other parts of a graph can look like this, and then no file has such a name."""
_LONGEST_BYTES = 2**14 + 16
"""Of such an entry."""


class Identity(NamedTuple):
    """What a model's files are known by."""

    digest: str
    """SHA-256 of the content: of the file, or of what is said of each of several."""
    stamps: Mapping[str, Stamp]
    """Of the file, and of those in which an ONNX file has weights, by their absolute paths, as they were read."""

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(size for _, _, size, _ in self.stamps.values())

    @property
    def is_whole(self) -> bool:
        """Whether one file holds everything."""
        return len(self.stamps) == 1

    def still_holds(self) -> bool:
        """Whether the files are where they were, untouched."""
        return all(
            stamp_or_none(pathlib.Path(path)) == known for path, known in self.stamps.items()
        )


def stamp(file: pathlib.Path) -> Stamp:
    """What a file is known by without being read: hard links are one file."""
    seen = file.stat()
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def stamp_or_none(file: pathlib.Path) -> Stamp | None:
    """The same; None where there is no such file."""
    try:
        return stamp(file)
    except (OSError, ValueError):
        return None


def digest_of(file: pathlib.Path) -> str:
    """SHA-256 of a file's content. Blocking.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def identity_of(kind: str, path: pathlib.Path | None) -> Identity | None:
    """Of a model's file, or of the file in `FILE:NAME`; None for a folder, a module, and what is not there. Blocking.

    Args:
        kind: of the model.
        path: absolute; others name no file.
    """
    if path is None or not path.is_absolute():
        return None
    names: set[str] = set()
    stamps: dict[str, Stamp] = {}
    digests: dict[str, str] = {}
    try:
        file = path if path.is_file() else path.parent / path.name.partition(":")[0]
        if not file.is_file():
            return None
        stamps[str(file)], digests[""] = _read(file, names if kind == "onnx" else None)
        for name in sorted(names):
            other = file.parent / name
            if other.is_file():
                stamps[str(other)], digests[name] = _read(other, None)
    except (OSError, ValueError):  # it cannot be read, or changes while it is
        return None
    digest = digests[""]
    if len(stamps) > 1:
        digest = hashlib.sha256(repr(digests).encode()).hexdigest()
    return Identity(digest, stamps)


def _read(file: pathlib.Path, names: set[str] | None) -> tuple[Stamp, str]:
    """A file's stamp and digest; adds names of other files that it speaks of, where these are asked for.

    Raises:
        OSError: it cannot be read.
        ValueError: it changes meanwhile.
    """
    before, digest, end = stamp(file), hashlib.sha256(), b""
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
            if names is not None:
                window = end + block
                names.update(_names(window))
                end = window[-_LONGEST_BYTES:]  # an entry may begin there
    if stamp(file) != before:
        raise ValueError(f"{file} changes while it is read")
    return before, digest.hexdigest()


def _names(window: bytes) -> set[str]:
    """Of files, in a part of an ONNX file; what ends with the part is found in the next one, too."""
    found = set()
    for entry in _LOCATION.finditer(window):
        length = entry[1]
        size = length[0] if len(length) == 1 else length[0] & 0x7F | length[1] << 7
        name = window[entry.end() : entry.end() + size]
        if b"\0" not in name:
            found.add(os.fsdecode(name))
    return found
