"""What the campaign asks of Linux: cores, control groups of version 1 and 2, and what processes hold."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import time
from collections.abc import Collection

_CGROUP = pathlib.Path("/sys/fs/cgroup")
MIB = 1 << 20


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def on_core(number: int) -> list[str]:
    """Words before a command that keep it on one core; none where there is only one."""
    if os.cpu_count() == 1 or shutil.which("taskset") is None:
        return []
    return ["taskset", "-c", str(number)]


def stay_on_core(number: int) -> None:
    """Keep this process, and what it starts, on one core, where there are several."""
    with contextlib.suppress(OSError):
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(0, {number})


def memory_group(name: str, memory_mib: int) -> pathlib.Path | None:
    """A control group below our own with this much memory; None: we may not make one."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent, file = _CGROUP / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        elif not controllers and (_CGROUP / "cgroup.controllers").exists():
            parent, file = _CGROUP / path.lstrip("/"), "memory.max"
        else:
            continue
        for folder in (parent, _CGROUP / "memory"):
            group = folder / name
            try:
                group.mkdir()
                (group / file).write_text(str(memory_mib * MIB))
            except OSError:
                with contextlib.suppress(OSError):
                    group.rmdir()
                continue
            return group
    return None


def remove_group(group: pathlib.Path) -> None:
    """Remove a group whose processes end."""
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        for inner in sorted(group.glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                inner.rmdir()
        if not group.exists():
            return
        time.sleep(0.05)


def out_of_memory_kills(group: pathlib.Path) -> int:
    """Processes of a group that the kernel killed for memory."""
    for file in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            for line in (group / file).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def marked(mark: str) -> list[int]:
    """Processes with this in their environment."""
    wanted = mark.encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed
        if name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in pathlib.Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
    return found


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """Of one process, 0 when it is gone; `VmHWM` is its peak."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return 0.0


def forget_peak(pid: int) -> None:
    """Let the peak of a process begin anew."""
    with contextlib.suppress(OSError):
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    """Open files of a process."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - likewise
    except OSError:
        return 0


def groups_of(pids: Collection[int]) -> int:
    """Control groups with one of these process numbers in their names."""
    wanted = tuple(f"luthier-{pid}-" for pid in pids)
    return sum(name.startswith(wanted) for _, names, _ in os.walk(_CGROUP) for name in names)
