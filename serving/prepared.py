"""Forms of models that are loaded quicker than their own files, in the user's cache.

    files, kind, runtime, processor, version of Luthier -> a folder, there once a replica has written it

A folder is whole as soon as it is there, and never changed, for replicas map what is in it; it may be removed at any
time. The least recently used go where all together take too much. Nobody but this user may write there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import time
from typing import Any

from serving import __version__, machine, models, zoo
from serving.replica.fingerprint import stamps
from serving.values import ModelCard

MOST_BYTES = 16 * 2**30
"""Of all forms together."""
_LEAST_FREE = 4
"""Nothing is prepared where there is not room for so many times the size of the model."""


_LEFT_S = 3600.0
"""What nobody has finished for so long, nobody will."""


class Forms:
    """The folders below one."""

    def __init__(self, root: pathlib.Path) -> None:
        """Nothing is made yet.

        Args:
            root: this user's own.
        """
        self._root = root

    @classmethod
    def of_user(cls) -> Forms:
        """Those that all servers of this user share."""
        return cls(zoo.cache_folder() / "prepared")

    def folder_of(self, card: ModelCard, variant: str | None) -> pathlib.Path | None:
        """Where the form of a model is, or may be made, marked as used; None: it can have none here."""
        files = files_of(card, variant)
        if files is None or card.kind not in models.PREPARED:
            return None
        digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
        folder = self._root / digest[:32]
        if folder.is_dir():
            with contextlib.suppress(OSError):  # another user's, it may be
                os.utime(folder)
            return folder
        size = sum(size for _, _, size, _ in files["files"])
        return folder if self._has_room(size) else None

    def trim(self) -> None:
        """Remove the least recently used where there are too many, and what a killed replica has left unfinished."""
        with contextlib.suppress(OSError):
            used_s = {folder: folder.stat().st_mtime for folder in self._root.iterdir()}
            together = 0
            for folder in sorted(used_s, key=lambda one: -used_s[one]):
                together += sum(file.stat().st_size for file in folder.glob("*"))
                is_left = folder.name.startswith(".") and time.time() - used_s[folder] > _LEFT_S
                if together > MOST_BYTES or is_left:
                    shutil.rmtree(folder, ignore_errors=True)

    def _has_room(self, size: int) -> bool:
        """Whether a form of so many bytes may be written, into a folder of this user's own."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            seen = self._root.stat()
            is_private = seen.st_uid == os.geteuid() and not seen.st_mode & 0o022
            room = min(shutil.disk_usage(self._root).free, MOST_BYTES)
            return is_private and room > _LEAST_FREE * size
        except OSError:
            return False


def files_of(card: ModelCard, variant: str | None) -> dict[str, Any] | None:
    """What tells a model's files, and what reads them, from others; None: its files cannot tell.

    A file is known by where it lies on which disk, its size and its time: hard links are one file.
    """
    weights = card.weights(variant)
    if weights is None or not weights.is_file():
        return None
    try:
        files = stamps(weights)
    except OSError:  # it has just gone
        return None
    return {
        "files": files,
        "kind": card.kind,
        "runtime": models.runtime_of(card.kind),
        "machine": machine.cpu_model(),
        "version": __version__,
    }
