"""Staging folder, which running containers mount and which is filled later with models' files.

Each model gets a numbered folder with its files at their absolute paths: hard links, which take no
space and follow writes in place, or copies if a file is on another file system or belongs to
another user. Calls block and may come from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import pathlib
import shutil
import stat
import threading
from collections.abc import Iterable

from serving.errors import NotReady
from serving.system import process_identity
from serving.wire.staged_path import staged_path

log = logging.getLogger(__name__)

_BLOCK_BYTES = 1024 * 1024
_ZEROS = bytes(_BLOCK_BYTES)
_FOLDER_MODE = 0o755
"""Mode of parent folders, as containers run as another user."""
_OWN_RIGHTS = 0o700
"""Permissions that this user needs to remove a folder's contents."""


class StagingFolder:
    """Staging folder; its creator removes it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Create the folder at an absolute path; only its owner can list it."""
        folder.mkdir()
        folder.chmod(0o711)
        self.folder = folder
        self._numbers = itertools.count(1)
        self._working = threading.Lock()
        self._is_closed = False
        self._copies: dict[tuple[int, ...], pathlib.Path] = {}
        """Copied files by key, so that models share copies."""
        self._to_copy: dict[pathlib.Path, tuple[pathlib.Path, os.stat_result]] = {}
        """Files of the current model that must be copied: target -> source and stat result."""

    def add(self, files: Iterable[pathlib.Path]) -> pathlib.Path:
        """Stage files, given as absolute paths; return their root in the mount, e.g. `/1`.

        Symlinks are followed, but preserved inside folders, where unreadable files, other file
        systems and folders of gateways are left out.

        Raises:
            OSError: a file cannot be read, or there is no space; nothing is left staged.
            NotReady: the staging folder is being closed.
        """
        with self._working:
            root = pathlib.Path("/", str(next(self._numbers)))
            top = staged_path(root, self.folder)
            self._make_folder(top)
            self._to_copy = {}
            try:
                wanted = set()
                for file in files:
                    source = file.resolve()
                    target = staged_path(file, top)
                    wanted.add(target)
                    self._make_folders(top, target.parent)
                    self._lay(source, target, source.stat().st_dev)
                self._copy_all(wanted)
            except BaseException as error:
                shutil.rmtree(top, ignore_errors=True)
                if isinstance(error, RecursionError):
                    raise OSError(errno.ENAMETOOLONG, "folders are nested too deeply") from error
                raise
        return root

    def remove(self, root: pathlib.Path) -> None:
        """Remove the files staged below a root, if any."""
        with self._working:
            shutil.rmtree(staged_path(root, self.folder), ignore_errors=True)

    def close(self) -> None:
        """Stop staging, and return when no thread works on the folder."""
        self._is_closed = True
        with self._working:
            pass

    def _make_folders(self, top: pathlib.Path, folder: pathlib.Path) -> None:
        at = top
        for part in folder.relative_to(top).parts:
            at /= part
            if at.is_symlink():
                at.unlink()  # else files would land at its target
            if not at.exists():
                self._make_folder(at)

    def _make_folder(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        folder.chmod(_FOLDER_MODE)  # regardless of the umask

    def _lay(self, source: pathlib.Path, target: pathlib.Path, device: int) -> None:
        if self._is_closed:
            raise NotReady("the server is stopping")
        facts = source.lstat()
        if stat.S_ISDIR(facts.st_mode):
            if facts.st_dev == device and process_identity.of(source.name) is None:
                self._lay_folder(source, target, facts)
        elif target.is_symlink() or target.exists():
            return  # also in another folder of the model
        elif stat.S_ISLNK(facts.st_mode):
            target.symlink_to(source.readlink())
        elif stat.S_ISREG(facts.st_mode):
            try:
                target.hardlink_to(source)
            except OSError:
                self._to_copy.setdefault(target, (source, facts))

    def _lay_folder(
        self, source: pathlib.Path, target: pathlib.Path, facts: os.stat_result
    ) -> None:
        if target.is_symlink():
            target.unlink()
        target.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):
            for inner in source.iterdir():
                # Gone, or unreadable for this user.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    self._lay(inner, target / inner.name, facts.st_dev)
        target.chmod(stat.S_IMODE(facts.st_mode) | _OWN_RIGHTS)

    def _copy_all(self, wanted: set[pathlib.Path]) -> None:
        """Copy files that cannot be linked, if all fit; only `wanted` files must be readable."""
        new = {_key(facts): facts.st_size for _, facts in self._to_copy.values()}
        size = sum(size for key, size in new.items() if key not in self._copies)
        free = shutil.disk_usage(self.folder).free
        if size > free:
            text = f"{size / 2**20:.1f} MiB must be copied, but {free / 2**20:.1f} MiB are free"
            raise OSError(errno.ENOSPC, text, str(self.folder))
        if size:
            extra = {"mb": round(size / 2**20, 1), "folder": str(self.folder)}
            log.info("files are copied for containers: hard links are not possible", extra=extra)
        for target, (source, facts) in self._to_copy.items():
            try:
                self._copy(source, target, facts)
            except (FileNotFoundError, PermissionError):  # gone or unreadable
                if target in wanted:
                    raise

    def _copy(self, source: pathlib.Path, target: pathlib.Path, facts: os.stat_result) -> None:
        key = _key(facts)
        copy = self._copies.get(key)
        if copy is not None:
            with contextlib.suppress(OSError):  # its model may be gone
                target.hardlink_to(copy)
                return
        with source.open("rb") as read, target.open("xb") as written:
            while block := read.read(_BLOCK_BYTES):
                if self._is_closed:
                    raise NotReady("the server is stopping")
                if block != _ZEROS[: len(block)]:
                    written.write(block)
                else:  # keeps holes
                    written.seek(len(block), os.SEEK_CUR)
            written.truncate()
        with contextlib.suppress(PermissionError):  # only root may
            os.chown(target, facts.st_uid, facts.st_gid)
        shutil.copystat(source, target)
        self._copies[key] = target


def _key(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size
