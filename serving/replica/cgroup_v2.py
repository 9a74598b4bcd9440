"""Control groups, version 2: one directory, all controllers.

Source: the kernel's documentation, admin-guide/cgroup-v2. A group hands controllers down only when its
parent does (`cgroup.subtree_control`), and below the root of the machine no group may both have
processes and hand controllers down; hence the groups of replicas live in a group without processes.

The kernel would kill processes if their memory limit fell below what they use, where version 1 refuses;
that is checked before, so that both behave alike.
"""

from __future__ import annotations

import pathlib

from serving.errors import LimitsUnavailable
from serving.replica.cgroups import MIB, PERIOD_US, CgroupFiles, Usage, set_both

CONTROLLERS = ("cpu", "memory")


class GroupV2:
    """A group that exists."""

    def __init__(self, directory: pathlib.Path, files: CgroupFiles) -> None:
        self._directory = directory
        self._files = files
        self._limits: tuple[float | None, int | None] = (None, None)

    @property
    def directories(self) -> tuple[pathlib.Path, ...]:
        """The one directory of the group."""
        return (self._directory,)

    @property
    def procs_files(self) -> tuple[pathlib.Path, ...]:
        """File into which a process writes 0 to join."""
        return (self._directory / "cgroup.procs",)

    def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Set both limits and read them back; on failure neither has changed.

        Raises:
            LimitsUnavailable: the kernel refused, or memory would be lowered below what is used.
        """
        wanted = (cpu, memory_mb)
        set_both(self._set_cpu, self._set_memory, wanted, before=self._limits)
        self._limits = wanted

    def usage(self) -> Usage:
        """What its processes have used, those that ended included."""
        peak_bytes = self._files.number(self._directory / "memory.peak")  # from Linux 5.19 on
        cpu = self._files.table(self._directory / "cpu.stat")
        used_us, throttled_us = cpu.get("usage_usec"), cpu.get("throttled_usec")
        return Usage(
            peak_memory_mb=None if peak_bytes is None else peak_bytes / MIB,
            cpu_s=None if used_us is None else used_us * 1e-6,
            throttled_s=None if throttled_us is None else throttled_us * 1e-6,
        )

    def oom_kills(self) -> int:
        """Processes that the kernel killed for memory."""
        return self._files.table(self._directory / "memory.events").get("oom_kill", 0)

    def _set_cpu(self, cpu: float | None) -> None:
        quota = "max" if cpu is None else str(round(cpu * PERIOD_US))
        self._write("cpu.max", f"{quota} {PERIOD_US}")

    def _set_memory(self, memory_mb: int | None) -> None:
        used = self._files.number(self._directory / "memory.current") or 0
        if memory_mb is not None and memory_mb * MIB < used:
            raise LimitsUnavailable(
                f"a replica that uses {used / MIB:.0f} MiB cannot be limited to {memory_mb} MiB: "
                f"the kernel would kill it; start a new replica"
            )
        self._write("memory.max", "max" if memory_mb is None else str(memory_mb * MIB))
        if self._files.read(self._directory / "memory.swap.max") is not None:
            self._write("memory.swap.max", "max" if memory_mb is None else "0")

    def _write(self, name: str, value: str) -> None:
        file = self._directory / name
        self._files.write(file, value)
        taken = (self._files.read(file) or "").strip()
        if taken != value:
            raise LimitsUnavailable(f"{file} was set to {value}, but reads {taken}")


def hand_down(directory: pathlib.Path, files: CgroupFiles) -> None:
    """Let subgroups of a group have limits.

    Raises:
        LimitsUnavailable: the group lacks a controller, has processes, or may not be changed.
    """
    offered = (files.read(directory / "cgroup.controllers") or "").split()
    missing = [name for name in CONTROLLERS if name not in offered]
    if missing:
        raise LimitsUnavailable(
            f"{directory} does not offer the controller {' and '.join(missing)}"
        )
    active = (files.read(directory / "cgroup.subtree_control") or "").split()
    wanted = " ".join(f"+{name}" for name in CONTROLLERS if name not in active)
    if wanted:
        files.write(directory / "cgroup.subtree_control", wanted)
