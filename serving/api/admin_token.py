"""Generated admin tokens: one file per admin port, readable only by the server's user.

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


class TokenPlace(NamedTuple):
    """A token, and the folder for its files: one for each port that asks for it."""

    text: str
    folder: pathlib.Path


@contextlib.contextmanager
def make_place(environment: Mapping[str, str] = os.environ) -> Iterator[TokenPlace]:
    """Make a token and a folder that exists until the block is left, or raise NotReady."""
    remove_left(environment)
    folder = _bases(environment)[0] / process_identity.this_process().new_name()
    try:
        folder.mkdir(mode=0o700)  # the name is unpredictable, so nobody else made it
    except OSError as error:
        raise _not_written(folder, error) from error
    try:
        yield TokenPlace(secrets.token_urlsafe(_BYTES), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def generate(
    port: int, environment: Mapping[str, str] = os.environ, *, place: TokenPlace | None = None
) -> Iterator[GeneratedToken]:
    """Write a token to a file that exists until the block is left, or raise NotReady.

    Args:
        place: token and folder of several ports; None makes one for this port.
    """
    with contextlib.ExitStack() as owns:
        if place is None:
            place = owns.enter_context(make_place(environment))
        file = place.folder / f"admin-{port}.token"
        file.unlink(missing_ok=True)  # of a killed server of this port
        owns.callback(file.unlink, missing_ok=True)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as written:
                written.write(f"{place.text}\n")
        except OSError as error:
            raise _not_written(file, error) from error
        yield GeneratedToken(place.text, file)


def _not_written(path: pathlib.Path, error: OSError) -> NotReady:
    return NotReady(
        f"the admin port's token cannot be written to {path}: {error.strerror or error}; name another "
        "folder in XDG_RUNTIME_DIR, set server.admin_token_file, or start with --no-admin-token"
    )


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
