"""Readers of energy and GPU clock under load, through NVML and RAPL.

Only root may read RAPL (CVE-2020-8694; Linux, Documentation/power/powercap/powercap.rst).
"""

from __future__ import annotations

import contextlib
import logging
import math
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from serving.accelerator import nvml
from serving.accelerator.nvml import Gpu
from serving.errors import AcceleratorUnavailable
from tuner.measurement.energy import Trace

POWERCAP = pathlib.Path("/sys/class/powercap")
PERIOD_S = 0.04
"""Time between readings; a GPU updates its own values 10 to 50 times a second."""
_JOIN_S = 5.0
_log = logging.getLogger(__name__)


class GpuCounter:
    """Energy counter for the whole GPU board, starting at an arbitrary value."""

    name = "gpu"

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._is_counted = True
        self._sum_j = 0.0
        self._last: tuple[float, float] | None = None
        try:
            gpu.energy_j()
        except AcceleratorUnavailable:
            self._is_counted = False
            gpu.power_w()
        how = "its energy counter" if self._is_counted else "its power summed over time"
        self.text = f"{gpu.name} ({how})"

    def joules(self) -> float:
        """Return the GPU's own count, or its power integrated between readings."""
        if self._is_counted:
            return self.gpu.energy_j()
        now_s, power_w = time.monotonic(), self.gpu.power_w()
        if self._last is not None:
            before_s, before_w = self._last
            self._sum_j += (now_s - before_s) * (power_w + before_w) / 2
        self._last = now_s, power_w
        return self._sum_j


class PackageCounter:
    """Energy counter for all CPU packages, each of which wraps around separately."""

    name = "cpu"

    def __init__(self, domains: tuple[pathlib.Path, ...]) -> None:
        self._domains = domains
        self._ranges = [_number(domain / "max_energy_range_uj") for domain in domains]
        self._last = [_number(domain / "energy_uj") for domain in domains]
        self._sum_uj = 0
        count = len(domains)
        self.text = f"{count} CPU package{'s' * (count > 1)} (RAPL)"

    def joules(self) -> float:
        """Return the joules counted over all packages."""
        for place, domain in enumerate(self._domains):
            now = _number(domain / "energy_uj")
            self._sum_uj += (now - self._last[place]) % (self._ranges[place] + 1)
            self._last[place] = now
        return self._sum_uj / 1e6


EnergyCounter = GpuCounter | PackageCounter


class AvailableCounters(NamedTuple):
    """Readable counters, and an explanation for each unreadable device."""

    counters: tuple[EnergyCounter, ...]
    lacking: tuple[str, ...]


@contextlib.contextmanager
def open_counters(*, gpu: bool = True) -> Iterator[AvailableCounters]:
    """Open this machine's counters, without the GPU for a CPU model."""
    counters: list[EnergyCounter] = []
    lacking: list[str] = []
    with contextlib.ExitStack() as owns:
        if gpu:
            try:
                counters.append(GpuCounter(owns.enter_context(nvml.open_gpu())))
            except AcceleratorUnavailable as error:
                lacking.append(str(error))
        else:
            lacking.append("the model runs on the CPU, so the GPU is not counted")
        packages = _packages(POWERCAP)
        if isinstance(packages, str):
            lacking.append(packages)
        else:
            counters.append(packages)
        yield AvailableCounters(tuple(counters), tuple(lacking))


class EnergyMeter:
    """Context manager that reads counters in a thread; call `trace` after it."""

    def __init__(self, counters: tuple[EnergyCounter, ...], *, period_s: float = PERIOD_S) -> None:
        self._counters = counters
        self._period_s = period_s
        self._gpu = next((c.gpu for c in counters if isinstance(c, GpuCounter)), None)
        self._rows: list[tuple[float, ...]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="energy", daemon=True)
        self.failure = ""

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)
        self._take()

    def trace(self) -> Trace:
        """Return the readings taken so far."""
        width = 1 + len(self._counters) + 1
        rows = np.array(self._rows, dtype=float).reshape(-1, width)
        joules = {c.name: rows[:, place] for place, c in enumerate(self._counters, 1)}
        clock_mhz = None if self._gpu is None else rows[:, -1]
        return Trace(at_s=rows[:, 0], joules=joules, clock_mhz=clock_mhz)

    def _read(self) -> None:
        while not self._over.wait(self._period_s):
            self._take()

    def _take(self) -> None:
        if self.failure:
            return
        try:
            joules = [counter.joules() for counter in self._counters]
        except (AcceleratorUnavailable, OSError, ValueError) as error:
            self.failure = str(error)
            _log.warning("energy cannot be read", extra={"fields": {"error": self.failure}})
            return
        self._rows.append((time.monotonic(), *joules, self._clock_mhz()))

    def _clock_mhz(self) -> float:
        with contextlib.suppress(AcceleratorUnavailable):
            if self._gpu is not None:
                return float(self._gpu.clock_mhz())
        return math.nan


def _packages(powercap: pathlib.Path) -> PackageCounter | str:
    domains = tuple(
        path
        for path in sorted(powercap.glob("intel-rapl:*"))  # AMD uses this name, too
        if path.name.count(":") == 1 and _text(path / "name").startswith("package")
    )
    if not domains:
        return f"no energy counter of a CPU package in {powercap}"
    try:
        return PackageCounter(domains)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return f"the CPU's energy counter cannot be read ({reason}); that needs root"


def _number(path: pathlib.Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
