"""Folders in which nobody else can change what is there: what is read from them decides what is run and answered.

In: a folder, such as this user's cache. Out: the same, made where there is none, without links on its way; or why it is
not safe. Whoever can write a folder above can put another one in its place, so all of them count, up to the root.
"""

from __future__ import annotations

import grp
import os
import pathlib
import pwd
import stat
import tempfile

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> pathlib.Path:
    """Where this user's files are that can be made again; nothing is checked.

    With those of the user's other programs (XDG Base Directory Specification); in the temporary directory for a
    user without a home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given:
        folder = pathlib.Path(given)
    else:
        try:
            folder = pathlib.Path.home() / ".cache"
        except RuntimeError:  # no home, as in many containers
            folder = temporary_cache()
    return folder / "luthier"


def temporary_cache() -> pathlib.Path:
    """Above the cache of a user without a home."""
    return pathlib.Path(tempfile.gettempdir(), f"luthier-cache-{os.geteuid()}")


def made(folder: pathlib.Path, *, advice: str) -> pathlib.Path:
    """A folder that this user alone can change, made for this user alone where there is none.

    Args:
        folder: its path.
        advice: what else can be done where it is not safe.

    Returns:
        Its path without links.

    Raises:
        OSError: somebody else can change it, or it cannot be made.
    """
    for one in (
        *reversed(folder.parents),
        folder,
    ):  # `parents=True` makes those above as the umask says
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)
    real = folder.resolve()
    check(real, advice=advice)
    for above in real.parents:
        check(above, advice=advice, owners=(0, os.geteuid()), sticky=True)
    return real


def check(
    folder: pathlib.Path,
    *,
    advice: str,
    owners: tuple[int, ...] | None = None,
    sticky: bool = False,
) -> None:
    """Check that nobody else can change what is in a folder.

    Args:
        folder: no link.
        advice: what else can be done where it is not safe.
        owners: whose it may be; None: this user's alone.
        sticky: whether others may have their own files in it, where they cannot touch these.

    Raises:
        OSError: somebody can, or it is no folder.
    """
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode):
        raise NotADirectoryError(f"{folder} is no folder")
    writable = seen.st_mode & _OTHERS_WRITE
    if writable & stat.S_IWGRP and _is_of_one(seen.st_gid):
        writable &= ~stat.S_IWGRP
    others = writable and not (sticky and seen.st_mode & stat.S_ISVTX)
    if others or seen.st_uid not in (owners or (os.geteuid(),)):
        raise PermissionError(
            f"{folder} belongs to user {seen.st_uid} with mode {stat.S_IMODE(seen.st_mode):o}; expected user "
            f"{os.geteuid()} and no right to write for others: chown it, chmod go-w, or {advice}"
        )


def _is_of_one(group: int) -> bool:
    """Whether a group has this user alone, as each user has one where new folders belong to the group, too."""
    try:
        user, known = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return (
        group == user.pw_gid
        and known.gr_name == user.pw_name
        and not {*known.gr_mem} - {user.pw_name}
    )


def close_file(path: pathlib.Path) -> None:
    """Close a file to other users; where there is none, an empty one is made.

    A file that is there is not opened: to close it again would take away the locks that this process has on it.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        path.chmod(0o600)
