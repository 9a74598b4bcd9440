"""Process identity in the names of control groups, folders and locks.

    luthier-<pid>-<start time>-<pid namespace>-<random>

Such names reveal what killed processes left behind. The start time (clock ticks since boot) tells
apart processes with the same pid; the namespace excludes processes of other containers, which are
invisible here.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import secrets
import tempfile

_NAME = re.compile(r"luthier-([0-9]{1,7})-([0-9]+)-([0-9]+)-[0-9a-f]{8}")
"""A pid has at most seven digits; names with longer ones are not Luthier's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process, unique within this boot."""

    pid: int
    started_ticks: int
    """Clock ticks from boot to start; 0 if unknown."""
    namespace: int
    """Inode of the pid namespace; 0 if unknown."""

    def new_name(self) -> str:
        """Return a unique name for something that this process owns."""
        return f"luthier-{self.pid}-{self.started_ticks}-{self.namespace}-{secrets.token_hex(4)}"

    def is_gone(self) -> bool:
        """Whether the process has certainly ended; False if unknown."""
        if self.namespace != _namespace():
            return False
        if self.started_ticks:
            return _started_ticks(self.pid) != self.started_ticks
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it is another user's
        return False


def make_directory(name: str) -> pathlib.Path:
    """Create this user's temporary directory with an owner's name."""
    directory = pathlib.Path(tempfile.gettempdir(), name)
    directory.mkdir(mode=0o700)
    return directory


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    pid = os.getpid()
    return ProcessIdentity(pid=pid, started_ticks=_started_ticks(pid) or 0, namespace=_namespace())


def of(name: str) -> ProcessIdentity | None:
    """Return the owner that a name contains, or None."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    pid, started_ticks, namespace = map(int, match.groups())
    return ProcessIdentity(pid=pid, started_ticks=started_ticks, namespace=namespace)


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    return _started_ticks(pid) is None


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third (state) on, or [] without a process."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the command's name may hold blanks and brackets


def _started_ticks(pid: int) -> int | None:
    fields = stat_fields(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _namespace() -> int:
    try:
        return pathlib.Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
