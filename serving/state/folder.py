"""A server's state folder, locked until its process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from serving.errors import NotReady
from serving.system import private_folder

_LOCK = "lock"


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[pathlib.Path]:
    """Create the folder, without access for other users, and lock it; yield its real path.

    Raises:
        NotReady: the folder cannot be written, others can write to it or a parent, or it belongs to
            another user or server.
    """
    try:
        # Its contents are run at the next start, and name users and paths.
        path = private_folder.ensure(pathlib.Path(folder), advice="name another folder")
        path.chmod(0o700)
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotReady(f"server.state_dir {folder}: {error.strerror or error}") from error
    try:
        _take(lock, folder)
        yield path
    finally:
        os.close(lock)  # the file stays: removing it would admit two owners


def _take(lock: int, folder: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise NotReady(
            f"server.state_dir {folder} is in use by another server (process {owner}); "
            "give each server its own folder"
        ) from error
    except OSError as error:
        raise NotReady(
            f"server.state_dir {folder} cannot be locked: {error.strerror or error}"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
