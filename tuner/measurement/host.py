"""What else happened to the machine: steal and CPU time, read around a phase.

In: process ids. Out: `HostReading`s, and the `HostNoise` between two of them. Reads /proc (Linux);
where that cannot be read, on another system or for a process that is gone, the figure is None. The
only file of this room that touches the machine.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping

from tuner.values import HostNoise

PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """Counters at one moment, in seconds since the machine or the process began."""

    steal_s: float | None
    """Time that the hypervisor gave to other machines while this one had work, all cores together."""
    cpu_s: Mapping[int, float]
    """Per process id: user and system time. Processes that cannot be read are left out."""


def read(pids: Iterable[int] = (), *, proc: pathlib.Path = PROC) -> HostReading:
    """Read the counters now.

    Args:
        pids: processes of the server, gateway and replicas.
        proc: where procfs is mounted.
    """
    ticks_per_s = float(os.sysconf("SC_CLK_TCK"))
    times = {pid: _process_ticks(proc, pid) for pid in pids}
    steal = _steal_ticks(proc)
    return HostReading(
        steal_s=None if steal is None else steal / ticks_per_s,
        cpu_s={pid: ticks / ticks_per_s for pid, ticks in times.items() if ticks is not None},
    )


def noise_between(
    before: HostReading,
    after: HostReading,
    *,
    client_cpu_s: float | None = None,
    throttled_s: float | None = None,
    peak_memory_mb: float | None = None,
) -> HostNoise:
    """What happened between two readings, with what others have measured.

    Server time is of the processes in both readings; None if there are none.
    """
    both = before.cpu_s.keys() & after.cpu_s.keys()
    return HostNoise(
        steal_s=(
            None
            if before.steal_s is None or after.steal_s is None
            else max(0.0, after.steal_s - before.steal_s)
        ),
        throttled_s=throttled_s,
        client_cpu_s=client_cpu_s,
        server_cpu_s=sum(after.cpu_s[pid] - before.cpu_s[pid] for pid in both) if both else None,
        peak_memory_mb=peak_memory_mb,
    )


def _steal_ticks(proc: pathlib.Path) -> int | None:
    # cpu user nice system idle iowait irq softirq steal ... (proc(5))
    try:
        fields = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        return int(fields[8]) if fields[0] == "cpu" else None
    except (OSError, ValueError, IndexError):
        return None


def _process_ticks(proc: pathlib.Path, pid: int) -> int | None:
    # pid (name, which may hold anything) state ppid ...; utime and stime are fields 14 and 15.
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
