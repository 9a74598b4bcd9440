"""Control groups of both versions.

Source: kernel documentation, admin-guide/cgroup-v1/memory, scheduler/sched-bwc and
admin-guide/cgroup-v2.

Version 1 has one directory per controller (cpu, cpuacct, memory). Memory, and memory plus swap, get
the same limit, so no replica swaps. The limit with swap must never be the lower one, which decides
the order of writes.

Version 2 has one directory for all controllers. A group delegates controllers only if its parent
does (`cgroup.subtree_control`), and only the root may both have processes and delegate; so
replicas' groups live in a group without processes. A memory limit below current use would kill the
replica, so it is rejected, as in version 1.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from serving.errors import LimitsUnavailable
from serving.system.cgroups.cgroup import MIB, PERIOD_US, CgroupFiles, ControlGroup, Usage

CONTROLLERS_V2 = ("cpu", "memory")


class GroupV1(ControlGroup):
    """Control group of version 1, with one directory per controller."""

    def __init__(self, directories: Mapping[str, pathlib.Path], files: CgroupFiles) -> None:
        super().__init__(files)
        self._cpu = directories["cpu"]
        self._cpuacct = directories["cpuacct"]
        self._memory = directories["memory"]

    @property
    def directories(self) -> tuple[pathlib.Path, ...]:
        """Directories of the group; cpu and cpuacct may share one."""
        return tuple(dict.fromkeys((self._cpu, self._cpuacct, self._memory)))

    def usage(self) -> Usage:
        """Return the group's usage."""
        peak_bytes = self._files.number(self._memory / "memory.max_usage_in_bytes")
        cpu_ns = self._files.number(self._cpuacct / "cpuacct.usage")
        throttled_ns = self._files.table(self._cpu / "cpu.stat").get("throttled_time")
        return Usage.of(peak_bytes, cpu_ns, throttled_ns, unit_s=1e-9)

    def oom_kills(self) -> int:
        """Return the number of processes killed for lack of memory."""
        return self._files.table(self._memory / "memory.oom_control").get("oom_kill", 0)

    def _set_cpu(self, cpu: float | None) -> None:
        quota_us = -1 if cpu is None else round(cpu * PERIOD_US)
        self._files.write(self._cpu / "cpu.cfs_period_us", str(PERIOD_US))
        self._write(self._cpu / "cpu.cfs_quota_us", quota_us)

    def _set_memory(self, memory_mb: int | None) -> None:
        memory = self._memory / "memory.limit_in_bytes"
        with_swap = self._memory / "memory.memsw.limit_in_bytes"
        limit = -1 if memory_mb is None else memory_mb * MIB
        order = [memory]
        swap_limit = self._files.number(with_swap)
        if swap_limit is not None:
            raised = limit == -1 or limit > swap_limit
            order = [with_swap, memory] if raised else [memory, with_swap]
        for file in order:
            self._write(file, limit)

    def _write(self, file: pathlib.Path, value: int) -> None:
        try:
            self._files.write(file, str(value))
        except LimitsUnavailable as error:
            used = self._files.number(self._memory / "memory.usage_in_bytes") or 0
            if file.parent == self._memory and 0 <= value < used:
                raise LimitsUnavailable(
                    f"a replica that uses {used / MIB:.0f} MiB cannot be limited to "
                    f"{value / MIB:g} MiB, because the kernel takes nothing away; start a "
                    "new replica"
                ) from error
            raise
        taken = self._files.number(file)
        if taken != value and not (value == -1 and taken is not None and taken >= 2**62):
            raise LimitsUnavailable(f"{file} was set to {value}, but reads {taken}")


class GroupV2(ControlGroup):
    """Control group of version 2, with a single directory."""

    def __init__(self, directory: pathlib.Path, files: CgroupFiles) -> None:
        super().__init__(files)
        self._directory = directory

    @property
    def directories(self) -> tuple[pathlib.Path, ...]:
        """Directory of the group."""
        return (self._directory,)

    def usage(self) -> Usage:
        """Return the group's usage."""
        peak_bytes = self._files.number(self._directory / "memory.peak")  # from Linux 5.19
        cpu = self._files.table(self._directory / "cpu.stat")
        used_us, throttled_us = cpu.get("usage_usec"), cpu.get("throttled_usec")
        return Usage.of(peak_bytes, used_us, throttled_us, unit_s=1e-6)

    def oom_kills(self) -> int:
        """Return the number of processes killed for lack of memory."""
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
    """Delegate the controllers to a group's subgroups, or raise LimitsUnavailable."""
    offered = (files.read(directory / "cgroup.controllers") or "").split()
    missing = [name for name in CONTROLLERS_V2 if name not in offered]
    if missing:
        raise LimitsUnavailable(
            f"{directory} does not offer the controller {' and '.join(missing)}"
        )
    active = (files.read(directory / "cgroup.subtree_control") or "").split()
    wanted = " ".join(f"+{name}" for name in CONTROLLERS_V2 if name not in active)
    if wanted:
        files.write(directory / "cgroup.subtree_control", wanted)
