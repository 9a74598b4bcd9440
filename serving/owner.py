"""Whose control group, directory or lock is this? The name of a thing tells the process that made it.

    luthier-<pid>-<start time>-<pid namespace>-<random>

The start time (clock ticks since boot) tells a process from a later one of the same number; the
namespace keeps a process of one container from judging those of another, whom it cannot see. What a
killed process left behind can so be told from what a living one uses.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import secrets

_NAME = re.compile(r"luthier-(\d+)-(\d+)-(\d+)-[0-9a-f]{8}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, told from all others of this boot."""

    pid: int
    started_ticks: int
    """0 where the system does not tell."""
    namespace: int
    """Inode of its pid namespace, 0 where the system has none."""

    def new_name(self) -> str:
        """A name for something of this owner, unlike all others."""
        return f"luthier-{self.pid}-{self.started_ticks}-{self.namespace}-{secrets.token_hex(4)}"

    def is_gone(self) -> bool:
        """Whether the process has surely ended; False where this process cannot know."""
        if self.namespace != _namespace():
            return False
        if self.started_ticks:
            return _started_ticks(self.pid) != self.started_ticks
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def this_process() -> Owner:
    """The calling process as an owner."""
    pid = os.getpid()
    return Owner(pid=pid, started_ticks=_started_ticks(pid) or 0, namespace=_namespace())


def of(name: str) -> Owner | None:
    """The owner that a name tells, None: the name is not one of ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    pid, started_ticks, namespace = map(int, match.groups())
    return Owner(pid=pid, started_ticks=started_ticks, namespace=namespace)


def _started_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat; None for no process, or one that only waits to be reaped."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the command's name may hold blanks and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def _namespace() -> int:
    try:
        return pathlib.Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
