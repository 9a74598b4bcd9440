"""Generated admin tokens: one file per server, readable only by its user.

$XDG_RUNTIME_DIR/luthier-<pid>-<start time>-<pid namespace>-<random>/admin-<port>.token

Each server removes the files of killed servers. Without a runtime directory, the folder is in the
temporary directory.
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

from serving.errors import NotReady
from serving.system import process_identity

_BYTES = 24
_MAX_CHARACTERS = 4096


class GeneratedToken(NamedTuple):
    """A token and its file."""

    text: str
    file: pathlib.Path


@contextlib.contextmanager
def generate(port: int, environment: Mapping[str, str] = os.environ) -> Iterator[GeneratedToken]:
    """Write a token to a file that exists until the block is left, or raise NotReady."""
    remove_left(environment)
    folder = _bases(environment)[0] / process_identity.this_process().new_name()
    file = folder / f"admin-{port}.token"
    text = secrets.token_urlsafe(_BYTES)
    try:
        folder.mkdir(mode=0o700)  # the name is unpredictable, so nobody else made it
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as written:
            written.write(f"{text}\n")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NotReady(
            f"the admin port's token cannot be written to {file}: "
            f"{error.strerror or error}; name another folder in XDG_RUNTIME_DIR, set "
            "server.admin_token_file, or start with --no-admin-token"
        ) from error
    try:
        yield GeneratedToken(text, file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left(environment: Mapping[str, str] = os.environ) -> list[pathlib.Path]:
    """Remove the token files of killed servers, and return their paths."""
    removed = []
    for file in _files("*", environment, are_left=True):
        with contextlib.suppress(OSError):  # another process was quicker
            file.unlink()
            file.parent.rmdir()
            removed.append(file)
    return removed


def of_port(port: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token of this user's server on a port, if found."""
    for file in _files(str(port), environment, are_left=False):
        with contextlib.suppress(OSError, ValueError):  # the server has just ended
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, encoding="ascii") as opened:
                return opened.read(_MAX_CHARACTERS).strip()
    return None


def _files(port: str, environment: Mapping[str, str], *, are_left: bool) -> list[pathlib.Path]:
    found: list[pathlib.Path] = []
    for base in _bases(environment):
        for folder in base.glob("luthier-*"):
            maker = process_identity.of(folder.name)
            if maker is not None and _is_mine(folder) and maker.is_gone() is are_left:
                with contextlib.suppress(FileNotFoundError):  # its server has just ended
                    found += folder.glob(f"admin-{port}.token")
    return found


def _is_mine(folder: pathlib.Path, *, follows: bool = False) -> bool:
    """Whether this user owns the folder, which may be reached through a link if `follows`."""
    try:
        seen = folder.stat(follow_symlinks=follows)
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()


def _bases(environment: Mapping[str, str]) -> list[pathlib.Path]:
    temporary = pathlib.Path(tempfile.gettempdir())
    given = environment.get("XDG_RUNTIME_DIR")
    # After `su` or `sudo` it may belong to another user.
    if given and _is_mine(pathlib.Path(given), follows=True):
        return [pathlib.Path(given), temporary]
    return [temporary]
