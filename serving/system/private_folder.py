"""Folders that no other user can change, for files that decide what is run and returned.

All parents up to the root are checked: whoever can write to one could replace the folder.
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
    """Return this user's folder for recreatable files, unchecked.

    Follows the XDG Base Directory Specification; without a home it is temporary.
    """
    if given := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(given, "luthier")
    try:
        return pathlib.Path.home() / ".cache" / "luthier"
    except RuntimeError:  # no home, as in many containers
        return temporary_cache() / "luthier"


def temporary_cache() -> pathlib.Path:
    """Return the parent of the cache folder for a user without a home."""
    return pathlib.Path(tempfile.gettempdir(), f"luthier-cache-{os.geteuid()}")


def ensure(folder: pathlib.Path, *, advice: str) -> pathlib.Path:
    """Create a private folder if it is missing, and return its path with links resolved.

    Raises OSError if another user can change it; its message ends with `advice`.
    """
    for one in (*reversed(folder.parents), folder):  # `parents=True` would follow the umask
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)
    real = folder.resolve()
    check(real, advice=advice)
    for above in real.parents:
        check(above, advice=advice, is_parent=True)
    return real


def check(folder: pathlib.Path, *, advice: str, is_parent: bool = False) -> None:
    """Raise OSError if a path is not a folder, or somebody else can change what is in it.

    With `is_parent`, it only holds the private folder, so it may belong to root, or others may
    write to it if its sticky bit protects its contents.
    """
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    writable = seen.st_mode & _OTHERS_WRITE
    if writable & stat.S_IWGRP and _is_of_one(seen.st_gid):
        writable &= ~stat.S_IWGRP
    others = writable and not (is_parent and seen.st_mode & stat.S_ISVTX)
    owners = {os.geteuid(), 0} if is_parent else {os.geteuid()}
    if others or seen.st_uid not in owners:
        raise PermissionError(
            f"{folder} belongs to user {seen.st_uid} with mode "
            f"{stat.S_IMODE(seen.st_mode):o}; expected user {os.geteuid()} and no write "
            f"permission for others: chown it, chmod go-w, or {advice}"
        )


def _is_of_one(group: int) -> bool:
    """Whether this user is the group's only member, as with user-private groups."""
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
    """Make a file inaccessible to other users, or raise OSError; create it empty if missing.

    An existing file is not opened, as closing it would drop this process's locks on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        path.chmod(0o600)
