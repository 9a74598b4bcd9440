"""CPU time of machine, server and neighbours during a phase, from Linux's /proc."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from tuner.values.measurement import HostNoise, Measurement

PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """CPU counters in seconds since the machine or process started; None if unreadable."""

    steal_s: float | None
    """Time that the hypervisor gave to other machines, over all cores."""
    cpu_s: Mapping[int, float]
    """User and system time of server processes, by process id, where readable."""
    busy_s: float | None = None
    beside_s: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """User and system time of the measuring processes, by process id."""


def read(
    pids: Iterable[int] = (), beside: Iterable[int] = (), *, proc: pathlib.Path = PROC
) -> HostReading:
    """Read the counters of server processes (`pids`) and measuring processes (`beside`)."""
    ticks_per_s = float(os.sysconf("SC_CLK_TCK"))

    def used_s(pids: Iterable[int]) -> dict[int, float]:
        times = {pid: _process_ticks(proc, pid) for pid in pids}
        return {pid: ticks / ticks_per_s for pid, ticks in times.items() if ticks is not None}

    machine = _machine_ticks(proc)
    busy_s, steal_s = (None, None) if machine is None else [one / ticks_per_s for one in machine]
    return HostReading(steal_s=steal_s, cpu_s=used_s(pids), busy_s=busy_s, beside_s=used_s(beside))


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
    """Return what the host did between two readings.

    Server time covers processes alive at the second reading. Neighbours took the busy time left by
    servers and measuring processes, known only if the readings cover every local server process
    (`knows_server`). `share` is the measured requests' share of the server's work.
    """
    foreign_s: float | None = None
    if knows_server and before.busy_s is not None and after.busy_s is not None:
        own_s = _used_s(before.cpu_s, after.cpu_s) + _used_s(before.beside_s, after.beside_s)
        foreign_s = max(0.0, after.busy_s - before.busy_s - own_s)
    stolen_s: float | None = None
    if before.steal_s is not None and after.steal_s is not None:
        stolen_s = max(0.0, after.steal_s - before.steal_s)
    return HostNoise(
        steal_s=stolen_s,
        throttled_s=throttled_s,
        client_cpu_s=client_cpu_s,
        server_cpu_s=share * _used_s(before.cpu_s, after.cpu_s) if after.cpu_s else None,
        peak_memory_mb=peak_memory_mb,
        neighbour_cpu_s=foreign_s,
    )


def together(parts: Sequence[HostNoise], *, share: float) -> HostNoise:
    """Combine the readings of several phases; a value that any phase lacks is None.

    Peak memory is the highest known. `share` is the measured share of the phases' time; client time
    already excludes the rest.
    """

    def total(name: str, share: float = share) -> float | None:
        values = [getattr(part, name) for part in parts]
        return None if None in values else share * sum(values)

    peaks_mb = [part.peak_memory_mb for part in parts if part.peak_memory_mb is not None]
    return HostNoise(
        steal_s=total("steal_s"),
        throttled_s=total("throttled_s"),
        client_cpu_s=total("client_cpu_s", 1.0),
        server_cpu_s=total("server_cpu_s"),
        peak_memory_mb=max(peaks_mb, default=None),
        neighbour_cpu_s=total("neighbour_cpu_s"),
    )


def log_cpu_per_request(measurement: Measurement) -> float | None:
    """Return the log of core-seconds per request in gateway, replicas and client, or None.

    It distinguishes machine drift from a slow configuration. Server time counts from the start of
    the warm-up, client time from its end.
    """
    noise, rate = measurement.noise, measurement.throughput_per_s
    if not noise.server_cpu_s or not noise.client_cpu_s or rate <= 0 or measurement.seconds <= 0:
        return None
    server = noise.server_cpu_s / (rate * (measurement.warmup_s + measurement.seconds))
    return math.log(server + noise.client_cpu_s / (rate * measurement.seconds))


def _used_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    return sum(used_s - before.get(pid, 0.0) for pid, used_s in after.items())


def _machine_ticks(proc: pathlib.Path) -> tuple[int, int] | None:
    # cpu user nice system idle iowait irq softirq steal ... (proc(5))
    try:
        fields = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        if fields[0] != "cpu":
            return None
        user, nice, system, *_, steal = map(int, fields[1:9])
        return user + nice + system, steal
    except (OSError, ValueError, IndexError):
        return None


def _process_ticks(proc: pathlib.Path, pid: int) -> int | None:
    # pid (name, may contain anything) state ppid ...; utime and stime are fields 14 and 15.
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
