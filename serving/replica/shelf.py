"""Files for containers that run already: a folder that they have mounted, on which files of models are laid later.

In: files and folders of a model. Out: the same files, by their absolute paths below a numbered folder of the model's
own. They are hard links, which cost no room and follow a file that is written in place; copies where there can be no
link, because the file lies on another file system or is another user's. So a model that is deployed anew from files
that were replaced has its own beside the old one's, and what one model takes along no other one had.

Blocking; for any thread.
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

from serving import owner
from serving.errors import NotReady

log = logging.getLogger(__name__)

_BLOCK_BYTES = 1024 * 1024
_ZEROS = bytes(_BLOCK_BYTES)
_FOLDER_MODE = 0o755
"""Of folders above a model's own: the containers' user is not this one."""
_OWN_RIGHTS = 0o700
"""Without which this user could not remove what is in a folder."""


def placed(path: str | pathlib.Path, root: pathlib.Path | None) -> pathlib.Path:
    """Where a path is found when files lie below a root; what is not absolute, such as a module's name, stays."""
    found = pathlib.Path(path)
    if root is None or not found.is_absolute():
        return found
    return root / found.relative_to(found.anchor)


class Shelf:
    """One folder of files; whoever makes it removes it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Make the folder, which nobody may list but its owner.

        Args:
            folder: absolute; its parent keeps out who shall not read models.

        Raises:
            OSError: it cannot be made.
        """
        folder.mkdir()
        folder.chmod(0o711)
        self.folder = folder
        self._numbers = itertools.count(1)
        self._working = threading.Lock()
        self._is_closed = False
        self._copies: dict[tuple[int, ...], pathlib.Path] = {}
        """Of files as they were: what models have in common is copied once."""
        self._to_copy: dict[pathlib.Path, tuple[pathlib.Path, os.stat_result]] = {}
        """Where -> what cannot be linked, of the model that is being laid out."""

    def add(self, files: Iterable[pathlib.Path]) -> pathlib.Path:
        """Lay out a model's files and folders.

        In a folder links stay what they are; what this user may not read is left out, as are other file systems that
        are mounted in it, and folders of running gateways.

        Args:
            files: absolute; one that is a link is followed.

        Returns:
            The root below which they are, as who has the folder mounted as its root sees it: `/1`.

        Raises:
            OSError: one cannot be read, or there is no room for a copy; nothing of the model is left.
            NotReady: the shelf is being closed.
        """
        with self._working:
            root = pathlib.Path("/", str(next(self._numbers)))
            top = placed(root, self.folder)
            self._make_folder(top)
            self._to_copy = {}
            try:
                wanted = set()
                for file in files:
                    source = file.resolve()
                    target = placed(file, top)
                    wanted.add(target)
                    self._make_folders(top, target.parent)
                    self._lay(source, target, source.stat().st_dev)
                self._copy_all(wanted)
            except RecursionError as error:
                shutil.rmtree(top, ignore_errors=True)
                raise OSError(errno.ENAMETOOLONG, "folders are nested too deeply") from error
            except BaseException:
                shutil.rmtree(top, ignore_errors=True)
                raise
        return root

    def remove(self, root: pathlib.Path) -> None:
        """Remove what was laid out below a root; harmless where it is gone."""
        with self._working:
            shutil.rmtree(placed(root, self.folder), ignore_errors=True)

    def close(self) -> None:
        """Lay out nothing more; returns when nobody works on the folder."""
        self._is_closed = True
        with self._working:
            pass

    def _make_folders(self, top: pathlib.Path, folder: pathlib.Path) -> None:
        """Make the folders from the top down to one, whatever another folder of the model had there."""
        at = top
        for part in folder.relative_to(top).parts:
            at /= part
            if at.is_symlink():
                at.unlink()  # else what is laid below it would be laid where it leads
            if not at.exists():
                self._make_folder(at)

    def _make_folder(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        folder.chmod(_FOLDER_MODE)  # whatever the umask

    def _lay(self, source: pathlib.Path, target: pathlib.Path, device: int) -> None:
        """Lay out one file, link or folder of a file system."""
        if self._is_closed:
            raise NotReady("the server is stopping")
        facts = source.lstat()
        if stat.S_ISDIR(facts.st_mode):
            if facts.st_dev == device and owner.of(source.name) is None:
                self._lay_folder(source, target, facts)
        elif target.is_symlink() or target.exists():
            return  # another folder of the model has it, too
        elif stat.S_ISLNK(facts.st_mode):
            target.symlink_to(source.readlink())
        elif stat.S_ISREG(facts.st_mode):
            self._lay_file(source, target, facts)

    def _lay_folder(
        self, source: pathlib.Path, target: pathlib.Path, facts: os.stat_result
    ) -> None:
        if target.is_symlink():
            target.unlink()
        target.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):
            for inner in source.iterdir():
                # One that went, or that this user may not read.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    self._lay(inner, target / inner.name, facts.st_dev)
        target.chmod(stat.S_IMODE(facts.st_mode) | _OWN_RIGHTS)

    def _lay_file(self, source: pathlib.Path, target: pathlib.Path, facts: os.stat_result) -> None:
        try:
            target.hardlink_to(source)
        except OSError:
            self._to_copy.setdefault(target, (source, facts))

    def _copy_all(self, wanted: set[pathlib.Path]) -> None:
        """Copy what cannot be linked, if there is room for all of it.

        Args:
            wanted: what was asked for by name: others are left out where this user may not read them.

        Raises:
            OSError: there is no room, or one that is wanted cannot be read.
        """
        new = {_key(facts): facts.st_size for _, facts in self._to_copy.values()}
        size = sum(size for key, size in new.items() if key not in self._copies)
        if not self._to_copy:
            return
        extra = {"mb": round(size / 2**20, 1), "folder": str(self.folder)}
        free = shutil.disk_usage(self.folder).free
        if size > free:
            text = f"{size / 2**20:.1f} MiB are to be copied, and {free / 2**20:.1f} are free"
            raise OSError(errno.ENOSPC, text, str(self.folder))
        if size:
            log.info("files are copied for containers: no hard link can be made", extra=extra)
        for target, (source, facts) in self._to_copy.items():
            try:
                self._copy(source, target, facts)
            except (FileNotFoundError, PermissionError):  # it went, or this user may not read it
                if target in wanted:
                    raise

    def _copy(self, source: pathlib.Path, target: pathlib.Path, facts: os.stat_result) -> None:
        key = _key(facts)
        copy = self._copies.get(key)
        if copy is not None:
            with contextlib.suppress(OSError):  # the model that it was made for may be gone
                target.hardlink_to(copy)
                return
        with source.open("rb") as read, target.open("xb") as written:
            while block := read.read(_BLOCK_BYTES):
                if self._is_closed:
                    raise NotReady("the server is stopping")
                if block != _ZEROS[: len(block)]:
                    written.write(block)
                else:  # a hole stays one
                    written.seek(len(block), os.SEEK_CUR)
            written.truncate()
        with contextlib.suppress(PermissionError):  # only root gives files away
            os.chown(target, facts.st_uid, facts.st_gid)
        shutil.copystat(source, target)
        self._copies[key] = target


def _key(facts: os.stat_result) -> tuple[int, ...]:
    """What a file is known by."""
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size
