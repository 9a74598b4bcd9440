"""Control groups of Linux, as far as both versions agree: where they are, and what a group can do.

In: /proc/self/mountinfo and /proc/self/cgroup as text. Out: `Hierarchy` values, the places where this
process may try to make groups, best first. `Group` is what `cgroup_v1` and `cgroup_v2` implement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from serving.errors import LimitsUnavailable

PERIOD_US = 100_000
"""Period of the CPU quota: the kernel's default. Shorter ones stop a replica more often, but briefly."""
MIB = 1024 * 1024
CONTROLLERS_V1 = ("cpu", "cpuacct", "memory")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a replica has used so far; None: unknown."""

    peak_memory_mb: float | None = None
    cpu_s: float | None = None
    throttled_s: float | None = None
    """Time during which it wanted to run and its quota was spent."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Where groups can be made: a parent directory per v1 controller, or the one of v2 ("unified")."""

    kind: Literal["v1", "v2"]
    parents: Mapping[str, pathlib.Path]


class Group(Protocol):
    """One control group (v1: one per controller) and the processes in it."""

    def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Set both limits and read them back; on failure neither has changed.

        Args:
            cpu: cores, None: no limit.
            memory_mb: MiB of memory without swap, None: no limit.

        Raises:
            LimitsUnavailable: the kernel refused, or did not take what was written.
        """
        ...

    def usage(self) -> Usage:
        """What its processes have used, those that ended included."""
        ...

    def oom_kills(self) -> int:
        """Processes that the kernel killed for memory."""
        ...

    @property
    def procs_files(self) -> tuple[pathlib.Path, ...]:
        """Files into which a process writes 0 to join."""
        ...

    @property
    def directories(self) -> tuple[pathlib.Path, ...]:
        """Directories that make up the group."""
        ...


def set_both(
    set_cpu: Callable[[float | None], None],
    set_memory: Callable[[int | None], None],
    wanted: tuple[float | None, int | None],
    *,
    before: tuple[float | None, int | None],
) -> None:
    """Set both limits, or put back what can be of those before.

    Raises:
        LimitsUnavailable: one was refused.
    """
    try:
        set_cpu(wanted[0])
        set_memory(wanted[1])
    except LimitsUnavailable:
        with contextlib.suppress(LimitsUnavailable):
            set_cpu(before[0])
        with contextlib.suppress(LimitsUnavailable):
            set_memory(before[1])
        raise


class CgroupFiles:
    """The file operations that the kernel offers on its control groups."""

    def make(self, directory: pathlib.Path) -> None:
        """Make a group; the kernel fills it with files."""
        directory.mkdir()

    def remove(self, directory: pathlib.Path) -> None:
        """Remove a group without processes and subgroups; OSError while it has some."""
        directory.rmdir()

    def read(self, file: pathlib.Path) -> str | None:
        """A file's text, None where there is no such file."""
        try:
            return file.read_text(encoding="ascii")
        except OSError:
            return None

    def write(self, file: pathlib.Path, text: str) -> None:
        """Write to a file that the kernel made.

        Raises:
            LimitsUnavailable: there is no such file, or the kernel refuses the value.
        """
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LimitsUnavailable(
                f"{file} does not take {text!r}: {error.strerror or error}"
            ) from error

    def number(self, file: pathlib.Path) -> int | None:
        """A file's text as a whole number; None where it is missing or another text."""
        text = (self.read(file) or "").strip()
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def table(self, file: pathlib.Path) -> dict[str, int]:
        """The lines `name number` of a file; empty where it is missing."""
        pairs = (line.split() for line in (self.read(file) or "").splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def hierarchies(mountinfo: str, cgroup: str) -> list[Hierarchy]:
    """Places where this process may try to make groups, best first.

    A group below one's own is best: it stays within what was given to this process. Where that is not
    allowed (v2 lets no group have both processes and limited subgroups; a container may show the mount
    without the group), the way leads up to the root of the mount.

    Args:
        mountinfo: text of /proc/self/mountinfo.
        cgroup: text of /proc/self/cgroup.
    """
    found: list[Hierarchy] = []
    own = _own_paths(cgroup)
    controllers_v1: dict[str, tuple[pathlib.Path, pathlib.Path]] = {}
    for root, mount, kind, options in _mounts(mountinfo):
        if kind == "cgroup2":
            own_directory = _directory(root, mount, own.get("", "/"))
            found += [
                Hierarchy(kind="v2", parents={"unified": directory})
                for directory in (own_directory, *own_directory.parents)
                if directory == mount or mount in directory.parents
            ]
        elif kind == "cgroup":
            for name in CONTROLLERS_V1:
                if name in options.split(","):
                    controllers_v1[name] = (_directory(root, mount, own.get(name, "/")), mount)
    if len(controllers_v1) == len(CONTROLLERS_V1):
        owns = {name: directory for name, (directory, _) in controllers_v1.items()}
        mounts = {name: mount for name, (_, mount) in controllers_v1.items()}
        found.append(Hierarchy(kind="v1", parents=owns))
        if owns != mounts:
            found.append(Hierarchy(kind="v1", parents=mounts))
    return found


def mount_points(mountinfo: str) -> tuple[pathlib.Path, ...]:
    """All mounts of control groups that groups of ours can be in."""
    return tuple(
        mount
        for _, mount, kind, options in _mounts(mountinfo)
        if kind == "cgroup2"
        or (kind == "cgroup" and not set(CONTROLLERS_V1).isdisjoint(options.split(",")))
    )


def _mounts(mountinfo: str) -> list[tuple[str, pathlib.Path, str, str]]:
    """(root within the file system, mount point, type, options) of each mount; see proc(5)."""
    mounts = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if separator and len(fields) >= 5 and len(kinds) >= 3:
            mounts.append((_plain(fields[3]), pathlib.Path(_plain(fields[4])), kinds[0], kinds[2]))
    return mounts


def _plain(text: str) -> str:
    r"""A path without the escapes of mountinfo (blank is \040)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _own_paths(cgroup: str) -> dict[str, str]:
    """Controller -> path of this process's group; v2 is the controller without a name."""
    paths = {}
    for line in cgroup.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return paths


def _directory(root: str, mount: pathlib.Path, path: str) -> pathlib.Path:
    """Where a group of this path shows in a mount; the mount itself when it does not."""
    relative = os.path.relpath(path, root)
    if relative.startswith(".."):
        return mount
    return mount / relative
