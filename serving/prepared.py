"""Cache of optimised models, which load faster than the original files.

    key (file content, kind, runtime or image, processor, version of Luthier) -> folder

A container writes into a scratch folder, from which the gateway copies. A folder is complete once
it exists and never changes, as replicas map its files; it may be deleted at any time. As the files
determine responses, only folders that nobody else can write are used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import shutil
import stat
import tempfile
import time

from serving import __version__, machine, models, private_folder, zoo
from serving.replica.fingerprint import Identity

log = logging.getLogger(__name__)

MOST_BYTES = 16 * 2**30
"""Maximum size of the cache."""
MOST_DAYS = 30
"""Days without a load or deployment after which a folder is removed."""
_LEAST_FREE = 4
"""Required free space, in multiples of the model's size."""
UNFINISHED = ".new-"
"""Prefix of incomplete folders."""
_BLOCK_BYTES = 4 * 1024 * 1024
_MOST_FILES = 8
"""Maximum files of one optimised model."""
_DAY_S = 86_400.0
_LEFT_S = 3600.0
"""Age at which incomplete folders count as abandoned."""
_ADVICE = "set XDG_CACHE_HOME"


class Forms:
    """The cache in one folder."""

    def __init__(self, root: pathlib.Path) -> None:
        """Create nothing yet; `root` must be this user's own."""
        self._root = root
        self._problem = ""

    @classmethod
    def of_user(cls) -> Forms:
        """Return the cache shared by all of this user's servers."""
        return cls(zoo.cache_folder() / "prepared")

    def folder_of(
        self, kind: str, identity: Identity | None, software: str = ""
    ) -> pathlib.Path | None:
        """Return an optimised model's folder and mark it as used; None: impossible. Blocking.

        The folder may not exist yet. `software` identifies the replicas' image, empty for this
        installation.
        """
        if kind not in models.PREPARED or identity is None or not identity.is_whole:
            return None
        try:
            root = self._private()
            folder = root / _name(kind, identity, software)
            if folder.is_symlink() or folder.exists():
                private_folder.check(folder, advice=_ADVICE)
                os.utime(folder)
            elif _LEAST_FREE * identity.size > min(shutil.disk_usage(root).free, MOST_BYTES):
                raise OSError(f"{root} has no room for {_LEAST_FREE} times the size of a model")
        except OSError as error:
            self._tell(str(error))
            return None
        return folder

    def box(self) -> pathlib.Path | None:
        """Create a scratch folder, writable by others once mounted; None: impossible. Blocking."""
        try:
            outer = pathlib.Path(tempfile.mkdtemp(dir=self._private(), prefix=UNFINISHED))
            box = outer / "box"
            box.mkdir()
            box.chmod(0o777)  # the outer folder keeps other users out
        except OSError as error:
            self._tell(str(error))
            return None
        return box

    def remove_box(self, box: pathlib.Path) -> None:
        """Remove a scratch folder after use. Blocking."""
        shutil.rmtree(box.parent, ignore_errors=True)
        if box.parent.exists():
            log.warning("a folder is left", extra={"folder": str(box.parent)})

    def adopt(self, made: pathlib.Path, folder: pathlib.Path) -> bool:
        """Copy an optimised model out of a scratch folder; return whether it is there. Blocking.

        The writer may still change the original. `folder` is the target, as of `folder_of`.
        """
        try:
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=UNFINISHED) as name:
                copy = pathlib.Path(name, "copied")
                copy.mkdir()
                _copy_files(made, copy)
                for path in (copy, *copy.iterdir()):  # containers run as another user
                    path.chmod(0o755 if path is copy else 0o644)
                copy.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else another server was quicker
                self._tell(str(error))
                return False
        return True

    def trim(self) -> None:
        """Remove the least recently used beyond the limits, and abandoned incomplete folders."""
        used_s: dict[pathlib.Path, float] = {}
        with contextlib.suppress(OSError):
            for folder in self._private().iterdir():
                with contextlib.suppress(OSError):  # removed by another deployment
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
        """Return the root without links, safe from changes by other users.

        Raises:
            OSError: it is not safe, or cannot be created.
        """
        return private_folder.made(self._root, advice=_ADVICE)

    def _tell(self, problem: str) -> None:
        """Log a problem once."""
        if problem != self._problem:
            self._problem = problem
            log.warning("models are loaded from their own files", extra={"reason": problem})


def _copy_files(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a folder's files durably, without following links.

    Raises:
        OSError: it holds something else or too much, or there is no space.
    """
    folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        names = os.listdir(folder)  # noqa: PTH208 - of what was opened
        if len(names) > _MOST_FILES:
            raise OSError(f"{source} holds {len(names)} files, expected {_MOST_FILES} at most")
        left = MOST_BYTES
        for name in names:
            read = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                left -= _copy_file(read, target / name, most=left)
            finally:
                os.close(read)
    finally:
        os.close(folder)


def _copy_file(read: int, target: pathlib.Path, *, most: int) -> int:
    """Copy a descriptor's file at its current size; return the bytes.

    Raises:
        OSError: no regular file, too large, or no space.
    """
    seen = os.fstat(read)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size > most:
        raise OSError(f"{target.name} is no file of a form")
    left = seen.st_size
    with target.open("xb") as written:
        while left and (block := os.read(read, min(left, _BLOCK_BYTES))):
            written.write(block)
            left -= len(block)
        written.flush()
        os.fsync(written.fileno())
    return seen.st_size


def _name(kind: str, identity: Identity, software: str) -> str:
    """Return the folder's name, a digest of all that an optimised model depends on."""
    facts = {
        "content": identity.digest,
        "kind": kind,
        "runtime": software or models.runtime_of(kind),
        "processor": machine.cpu_digest(),
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
