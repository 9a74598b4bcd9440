"""The token that a server makes for its admin port where nobody gave one: in a file that this user alone can read.

    $XDG_RUNTIME_DIR/luthier-<pid>-<start time>-<pid namespace>-<random>/admin-<port>.token

In: the port. Out: the file, there until the server ends. The folder's name tells its owner (`serving.owner`), so that
a later start removes what a killed server has left. Where this user has no runtime directory, the folder lies in the
temporary one. Clients on the same machine find the file by the port. Reads and writes files.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from serving import owner
from serving.errors import NotReady

_BYTES = 24
"""Of randomness: nobody guesses so many."""
_LONGEST = 4096
"""Characters that are read of a file."""


class MadeToken(NamedTuple):
    """A token and where it is kept."""

    text: str
    file: pathlib.Path


@contextlib.contextmanager
def made(port: int, environment: Mapping[str, str] = os.environ) -> Iterator[MadeToken]:
    """A new token, in a file of its own until the block is left; what killed servers have left is removed.

    Args:
        port: of the admin port.
        environment: names the user's runtime directory.

    Raises:
        NotReady: there is no place for the file.
    """
    remove_left(environment)
    folder = _bases(environment)[0] / owner.this_process().new_name()
    file = folder / f"admin-{port}.token"
    text = secrets.token_urlsafe(_BYTES)
    try:
        folder.mkdir(mode=0o700)  # nobody can know the name before: what is made is ours
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as written:
            written.write(f"{text}\n")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NotReady(
            f"the admin port's token cannot be kept in {file}: {error.strerror or error}; name another folder in "
            "XDG_RUNTIME_DIR, give a token in server.admin_token_file, or start with --no-admin-token"
        ) from error
    try:
        yield MadeToken(text, file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left(environment: Mapping[str, str] = os.environ) -> list[pathlib.Path]:
    """Remove the files of servers that were killed; returns which."""
    removed = []
    for file in _files("*", environment, are_left=True):
        with contextlib.suppress(OSError):  # another was quicker
            file.unlink()
            file.parent.rmdir()
            removed.append(file)
    return removed


def of_port(port: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token that a server of this user has made for its admin port on this machine; None: none is found."""
    for file in _files(str(port), environment, are_left=False):
        with contextlib.suppress(OSError, ValueError):  # the server has just ended
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, encoding="ascii") as opened:
                return opened.read(_LONGEST).strip()
    return None


def _files(port: str, environment: Mapping[str, str], *, are_left: bool) -> list[pathlib.Path]:
    """Files of this user's servers for a port (`*`: for any): of those that were killed, or of the others."""
    found = []
    for base in _bases(environment):
        for file in base.glob(f"luthier-*/admin-{port}.token"):
            maker = owner.of(file.parent.name)
            if maker is not None and maker.is_gone() is are_left and _is_mine(file.parent):
                found.append(file)
    return found


def _is_mine(folder: pathlib.Path) -> bool:
    """Whether a folder is this user's, and no link: in the temporary directory anybody can make one."""
    try:
        seen = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()


def _bases(environment: Mapping[str, str]) -> list[pathlib.Path]:
    """Where such folders may be: in the user's runtime directory, where there is one, before the temporary one."""
    temporary = pathlib.Path(tempfile.gettempdir())
    given = environment.get("XDG_RUNTIME_DIR")
    if given:
        with contextlib.suppress(OSError):
            seen = pathlib.Path(given).stat()
            # After `su` and `sudo` it may be somebody else's.
            if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
                return [pathlib.Path(given), temporary]
    return [temporary]
