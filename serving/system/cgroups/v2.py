"""Control groups version 2: one directory for all controllers.

Source: kernel documentation, admin-guide/cgroup-v2. A group delegates controllers only if its
parent does (`cgroup.subtree_control`), and no group except the root may have processes and
delegate; so replicas' groups live in a group without processes. A memory limit below current use
would kill, so it is rejected first, as in version 1.
"""

from __future__ import annotations

import pathlib

from serving.errors import LimitsUnavailable
from serving.system.cgroups.cgroup import MIB, PERIOD_US, CgroupFiles, ControlGroup, Usage

CONTROLLERS = ("cpu", "memory")


class GroupV2(ControlGroup):
    """Group of version 2, in one directory."""

    def __init__(self, directory: pathlib.Path, files: CgroupFiles) -> None:
        super().__init__(files)
        self._directory = directory

    @property
    def directories(self) -> tuple[pathlib.Path, ...]:
        """Directory of the group."""
        return (self._directory,)

    def usage(self) -> Usage:
        """Return the usage, including ended processes."""
        peak_bytes = self._files.number(self._directory / "memory.peak")  # from Linux 5.19
        cpu = self._files.table(self._directory / "cpu.stat")
        used_us, throttled_us = cpu.get("usage_usec"), cpu.get("throttled_usec")
        return Usage.of(peak_bytes, used_us, throttled_us, unit_s=1e-6)

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed for memory."""
        return self._files.table(self._directory / "memory.events").get("oom_kill", 0)

    def _set_cpu(self, cpu: float | None) -> None:
        quota = "max" if cpu is None else str(round(cpu * PERIOD_US))
        self._write("cpu.max", f"{quota} {PERIOD_US}")

    def _set_memory(self, memory_mb: int | None) -> None:
        used = self._files.number(self._directory / "memory.current") or 0
        if memory_mb is not None and memory_mb * MIB < used:
            raise LimitsUnavailable(
                f"a replica that uses {used / MIB:.0f} MiB cannot be limited to "
                f"{memory_mb} MiB, because the kernel would kill it; start a new replica"
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
    """Delegate the controllers to subgroups.

    Raises:
        LimitsUnavailable: the group lacks a controller, has processes, or cannot be changed.
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
