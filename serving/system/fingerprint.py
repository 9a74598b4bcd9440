"""Identity of model files: a digest of their content, and stamps to detect later changes."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

Stamp = tuple[int, int, int, int]
"""Device, inode, size and modification time (ns) of a file."""

_BLOCK_BYTES = 4 * 1024 * 1024
_LOCATION = re.compile(rb"\n\x08location\x12([\x00-\x7f]|[\x80-\xff][\x01-\x7f])", re.DOTALL)
"""Entry in an ONNX file that names an external file of weights: the key and the length of the name
(`StringStringEntryProto`). Other bytes may match too; then no such file exists."""
_MAX_BYTES = 2**14 + 16


class Fingerprint(NamedTuple):
    """Content and stamps of a model's files."""

    digest: str
    """SHA-256 of the file's content; for several files, of all names and digests."""
    stamps: Mapping[str, Stamp]
    """Stamps of the file and of external ONNX weights, by absolute path."""

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(size for _, _, size, _ in self.stamps.values())

    @property
    def is_whole(self) -> bool:
        """Whether there is only one file."""
        return len(self.stamps) == 1

    def still_holds(self) -> bool:
        """Whether the files are unchanged."""
        try:
            return all(_stamp(path) == known for path, known in self.stamps.items())
        except (OSError, ValueError):  # one is gone
            return False


def _stamp(file: str | pathlib.Path) -> Stamp:
    seen = os.stat(file)  # noqa: PTH116 - also takes a text
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def digest_of(file: pathlib.Path) -> str:
    """Return the SHA-256 of a file's content, or raise OSError; blocking."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def fingerprint_of(kind: str, path: pathlib.Path | None) -> Fingerprint | None:
    """Return the fingerprint of a model's file, also for `FILE:NAME`; blocking.

    Return None for folders, modules, relative paths and missing files.
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
    except (OSError, ValueError):  # unreadable, or changing
        return None
    digest = digests[""]
    if len(stamps) > 1:
        digest = hashlib.sha256(repr(digests).encode()).hexdigest()
    return Fingerprint(digest, stamps)


def _read(file: pathlib.Path, names: set[str] | None) -> tuple[Stamp, str]:
    """Return a file's stamp and digest; add the names of its external files to `names`.

    Raises OSError, or ValueError if the file changes meanwhile.
    """
    before, digest, end = _stamp(file), hashlib.sha256(), b""
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
            if names is not None:
                window = end + block
                names.update(_names(window))
                end = window[-_MAX_BYTES:]  # an entry may begin there
    if _stamp(file) != before:
        raise ValueError(f"{file} changed while it was read")
    return before, digest.hexdigest()


def _names(window: bytes) -> set[str]:
    """Return the external files' names; the next window finds one cut at this one's end."""
    found = set()
    for entry in _LOCATION.finditer(window):
        length = entry[1]
        size = length[0] if len(length) == 1 else length[0] & 0x7F | length[1] << 7
        name = window[entry.end() : entry.end() + size]
        if b"\0" not in name:
            found.add(os.fsdecode(name))
    return found
