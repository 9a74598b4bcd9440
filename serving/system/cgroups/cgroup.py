"""Common code for v1 and v2 control groups: their locations and base class."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Literal

from serving.errors import LimitsUnavailable

PERIOD_US = 100_000
"""The kernel's default period of CPU quotas; shorter ones throttle more often, for less time."""
MIB = 1024 * 1024
CONTROLLERS_V1 = ("cpu", "cpuacct", "memory")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A replica's resource usage; None means unknown."""

    peak_memory_mb: float | None = None
    cpu_s: float | None = None
    throttled_s: float | None = None
    """Time in which the replica was runnable but out of quota."""

    @classmethod
    def of(
        cls, peak_bytes: int | None, cpu: int | None, throttled: int | None, *, unit_s: float
    ) -> Usage:
        """Return the usage from the kernel's numbers, with times in units of `unit_s`."""
        return cls(
            peak_memory_mb=None if peak_bytes is None else peak_bytes / MIB,
            cpu_s=None if cpu is None else cpu * unit_s,
            throttled_s=None if throttled is None else throttled * unit_s,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Location for groups: parent directory by controller in v1, or by "unified" in v2."""

    kind: Literal["v1", "v2"]
    parents: Mapping[str, pathlib.Path]


class ControlGroup(abc.ABC):
    """Control group of a replica: in v1 a directory per controller, in v2 a single one."""

    def __init__(self, files: CgroupFiles) -> None:
        self._files = files
        self._limits: tuple[float | None, int | None] = (None, None)

    def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Set both limits (None: no limit) and read them back; on failure, restore the old ones.

        `cpu` is in cores, `memory_mb` in MiB without swap. Raises LimitsUnavailable if the kernel
        refuses a limit, such as memory below current use, or if another value is read back.
        """
        try:
            self._set_cpu(cpu)
            self._set_memory(memory_mb)
        except LimitsUnavailable:
            with contextlib.suppress(LimitsUnavailable):
                self._set_cpu(self._limits[0])
            with contextlib.suppress(LimitsUnavailable):
                self._set_memory(self._limits[1])
            raise
        self._limits = (cpu, memory_mb)

    @property
    @abc.abstractmethod
    def directories(self) -> tuple[pathlib.Path, ...]:
        """Directories of the group."""

    @property
    def procs_files(self) -> tuple[pathlib.Path, ...]:
        """Files into which a process writes 0 to join the group."""
        return tuple(directory / "cgroup.procs" for directory in self.directories)

    @abc.abstractmethod
    def usage(self) -> Usage:
        """Return the usage, including that of ended processes."""

    @abc.abstractmethod
    def oom_kills(self) -> int:
        """Return the number of processes killed for lack of memory."""

    @abc.abstractmethod
    def _set_cpu(self, cpu: float | None) -> None:
        """Write the CPU limit and read it back."""

    @abc.abstractmethod
    def _set_memory(self, memory_mb: int | None) -> None:
        """Write the memory limit and read it back."""


class CgroupFiles:
    """File operations on the kernel's cgroup file system."""

    def make(self, directory: pathlib.Path) -> None:
        """Create a group's directory; the kernel creates its files."""
        directory.mkdir()

    def remove(self, directory: pathlib.Path) -> None:
        """Remove an empty group, or raise OSError."""
        directory.rmdir()

    def read(self, file: pathlib.Path) -> str | None:
        """Return a file's text, or None if unreadable."""
        try:
            return file.read_text(encoding="ascii")
        except OSError:
            return None

    def write(self, file: pathlib.Path, text: str) -> None:
        """Write to one of the kernel's files, or raise LimitsUnavailable."""
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LimitsUnavailable(
                f"{file} does not accept {text!r}: {error.strerror or error}"
            ) from error

    def number(self, file: pathlib.Path) -> int | None:
        """Return a file's integer, or None if there is none."""
        text = (self.read(file) or "").strip()
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def table(self, file: pathlib.Path) -> dict[str, int]:
        """Return the `name number` lines of a file, or {} if unreadable."""
        pairs = (line.split() for line in (self.read(file) or "").splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def hierarchies(mountinfo: str, cgroup: str) -> list[Hierarchy]:
    """Return the places where this process may try to create groups, best first.

    A group below this process's own stays within its resources. If that is not allowed (v2 forbids
    processes next to limited subgroups; a container may show the mount without the group), the
    search goes up to the mount's root. The arguments are contents of files in /proc/self.
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
    """Return all mounts that may contain Luthier's groups."""
    return tuple(
        mount
        for _, mount, kind, options in _mounts(mountinfo)
        if kind == "cgroup2"
        or (kind == "cgroup" and not set(CONTROLLERS_V1).isdisjoint(options.split(",")))
    )


def _mounts(mountinfo: str) -> list[tuple[str, pathlib.Path, str, str]]:
    """Return (root in the file system, mount point, type, options) of each mount; see proc(5)."""
    mounts = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if separator and len(fields) >= 5 and len(kinds) >= 3:
            mounts.append((_plain(fields[3]), pathlib.Path(_plain(fields[4])), kinds[0], kinds[2]))
    return mounts


def _plain(text: str) -> str:
    r"""Decode the escapes of mountinfo (a blank is \040)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _own_paths(cgroup: str) -> dict[str, str]:
    """Return the path of this process's group by controller; v2 has the empty name."""
    paths = {}
    for line in cgroup.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return paths


def _directory(root: str, mount: pathlib.Path, path: str) -> pathlib.Path:
    relative = os.path.relpath(path, root)
    if relative.startswith(".."):
        return mount
    return mount / relative
