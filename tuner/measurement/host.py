"""What else happened to the machine: steal, CPU time, and what other processes took of it, read around a phase.

In: process ids. Out: `HostReading`s, and the `HostNoise` between two of them. Reads /proc (Linux);
where that cannot be read, on another system or for a process that is gone, the figure is None. The
only file of this room that touches the machine.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tuner.values import HostNoise

PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """Counters at one moment, in seconds since the machine or the process began."""

    steal_s: float | None
    """Time that the hypervisor gave to other machines while this one had work, all cores together."""
    cpu_s: Mapping[int, float]
    """Per process id of the server: user and system time. Processes that cannot be read are left out."""
    busy_s: float | None = None
    """User and system time of all processes of the machine."""
    beside_s: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Per process id of what measures the server: user and system time."""


def read(
    pids: Iterable[int] = (), beside: Iterable[int] = (), *, proc: pathlib.Path = PROC
) -> HostReading:
    """Read the counters now.

    Args:
        pids: processes of the server, gateway and replicas.
        beside: processes that measure it.
        proc: where procfs is mounted.
    """
    ticks_per_s = float(os.sysconf("SC_CLK_TCK"))

    def used_s(pids: Iterable[int]) -> dict[int, float]:
        times = {pid: _process_ticks(proc, pid) for pid in pids}
        return {pid: ticks / ticks_per_s for pid, ticks in times.items() if ticks is not None}

    machine = _machine_ticks(proc)
    return HostReading(
        steal_s=None if machine is None else machine.steal / ticks_per_s,
        cpu_s=used_s(pids),
        busy_s=None if machine is None else machine.busy / ticks_per_s,
        beside_s=used_s(beside),
    )


def noise_between(
    before: HostReading,
    after: HostReading,
    *,
    client_cpu_s: float | None = None,
    throttled_s: float | None = None,
    peak_memory_mb: float | None = None,
    knows_server: bool = True,
    share: float = 1.0,
) -> HostNoise:
    """What happened between two readings, with what others have measured.

    Server time is of the processes that are there at the second reading; None if there are none. Foreign
    time is what all processes of the machine used, less the server's and those that measure it.

    Args:
        before: the first reading.
        after: the second one.
        client_cpu_s: of the load generator in the measured part.
        throttled_s: of the server.
        peak_memory_mb: of any one replica.
        knows_server: whether the readings have all processes of the server that are on this machine; else
            nobody can tell what is foreign.
        share: of the server's work that was for what is measured; the rest was for answers behind its end.
    """
    foreign_s: float | None = None
    if knows_server and before.busy_s is not None and after.busy_s is not None:
        own_s = _used_s(before.cpu_s, after.cpu_s) + _used_s(before.beside_s, after.beside_s)
        foreign_s = max(0.0, after.busy_s - before.busy_s - own_s)
    return HostNoise(
        steal_s=(
            None
            if before.steal_s is None or after.steal_s is None
            else max(0.0, after.steal_s - before.steal_s)
        ),
        throttled_s=throttled_s,
        client_cpu_s=client_cpu_s,
        server_cpu_s=share * _used_s(before.cpu_s, after.cpu_s) if after.cpu_s else None,
        peak_memory_mb=peak_memory_mb,
        foreign_cpu_s=foreign_s,
    )


def together(parts: Sequence[HostNoise], *, share: float) -> HostNoise:
    """What happened in the measured parts of several phases; None where one of them does not tell.

    Args:
        parts: at least one.
        share: of their time that was measured: the client's time is of that alone, all else of the whole.
    """

    def total(values: Sequence[float | None], share: float = share) -> float | None:
        known = [value for value in values if value is not None]
        return share * sum(known) if len(known) == len(values) else None

    peaks_mb = [part.peak_memory_mb for part in parts if part.peak_memory_mb is not None]
    return HostNoise(
        steal_s=total([part.steal_s for part in parts]),
        throttled_s=total([part.throttled_s for part in parts]),
        client_cpu_s=total([part.client_cpu_s for part in parts], 1.0),
        server_cpu_s=total([part.server_cpu_s for part in parts]),
        peak_memory_mb=max(peaks_mb, default=None),
        foreign_cpu_s=total([part.foreign_cpu_s for part in parts]),
    )


def _used_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """By the processes of both readings; one that began meanwhile has used what it has."""
    return sum(used_s - before.get(pid, 0.0) for pid, used_s in after.items())


class _MachineTicks(NamedTuple):
    """Of all cores together, since the machine began."""

    busy: int
    """User, nice and system time: not the interrupts, which belong to no process."""
    steal: int


def _machine_ticks(proc: pathlib.Path) -> _MachineTicks | None:
    # cpu user nice system idle iowait irq softirq steal ... (proc(5))
    try:
        fields = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        if fields[0] != "cpu":
            return None
        user, nice, system, *_, steal = map(int, fields[1:9])
        return _MachineTicks(busy=user + nice + system, steal=steal)
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
