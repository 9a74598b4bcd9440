"""Forms of models that are loaded quicker than their own files, in the user's cache.

    content of a model's one file, kind, runtime, processor, version of Luthier
    -> a folder, there once a replica has written it

A folder is whole as soon as it is there, and never changed, for replicas map what is in it; it may be removed at any
time. The least recently used go where all together take too much. What is in it decides what a model answers, so
nothing is used but what nobody else can have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import shutil
import time

from serving import __version__, machine, models, private_folder
from serving.replica.fingerprint import Identity

log = logging.getLogger(__name__)

MOST_BYTES = 16 * 2**30
"""Of all forms together."""
MOST_DAYS = 30
"""What no model was deployed from, or loaded from by a process, for so long goes."""
_LEAST_FREE = 4
"""Nothing is prepared where there is not room for so many times the size of the model."""
UNFINISHED = ".new-"
"""How names of folders begin that are no forms yet."""
_DAY_S = 86_400.0
_LEFT_S = 3600.0
"""What nobody has finished for so long, nobody will."""
_ADVICE = "set XDG_CACHE_HOME"


class Forms:
    """The folders below one."""

    def __init__(self, root: pathlib.Path) -> None:
        """Nothing is made yet.

        Args:
            root: this user's own.
        """
        self._root = root
        self._problem = ""

    @classmethod
    def of_user(cls) -> Forms:
        """Those that all servers of this user share."""
        return cls(private_folder.cache_folder() / "prepared")

    def folder_of(self, kind: str, identity: Identity | None) -> pathlib.Path | None:
        """Where the form of a model is, or may be made, marked as used; None: it can have none here. Blocking.

        Args:
            kind: of the model.
            identity: of its files; None: unknown.
        """
        if kind not in models.PREPARED or identity is None or not identity.is_whole:
            return None
        try:
            root = self._private()
            folder = root / _name(kind, identity)
            if folder.is_symlink() or folder.exists():
                private_folder.check(folder, advice=_ADVICE)
                os.utime(folder)
            elif _LEAST_FREE * identity.size > min(shutil.disk_usage(root).free, MOST_BYTES):
                raise OSError(f"{root} has no room for {_LEAST_FREE} times the size of a model")
        except OSError as error:
            self._tell(str(error))
            return None
        return folder

    def trim(self) -> None:
        """Remove the least recently used where there are too many, and what a killed replica has left unfinished."""
        used_s: dict[pathlib.Path, float] = {}
        with contextlib.suppress(OSError):
            for folder in self._private().iterdir():
                with contextlib.suppress(OSError):  # another deploy has just removed it
                    used_s[folder] = folder.stat().st_mtime
        together = 0
        for folder in sorted(used_s, key=lambda one: -used_s[one]):
            with contextlib.suppress(OSError):
                together += sum(file.stat().st_size for file in folder.glob("*"))
            unused_s = time.time() - used_s[folder]
            most_s = _LEFT_S if folder.name.startswith(UNFINISHED) else MOST_DAYS * _DAY_S
            if together > MOST_BYTES or unused_s > most_s:
                shutil.rmtree(folder, ignore_errors=True)

    def _private(self) -> pathlib.Path:
        """The folder of all, without links on the way: nobody else can change what is in it, or put another there.

        Raises:
            OSError: somebody can, or it cannot be made.
        """
        return private_folder.made(self._root, advice=_ADVICE)

    def _tell(self, problem: str) -> None:
        """Say once why there are none."""
        if problem != self._problem:
            self._problem = problem
            log.warning("models are loaded from their own files", extra={"reason": problem})


def _name(kind: str, identity: Identity) -> str:
    """Of the folder of a form: everything that it depends on."""
    facts = {
        "content": identity.digest,
        "kind": kind,
        "runtime": models.runtime_of(kind),
        "processor": machine.cpu_digest(),
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
