"""Reads energy and clock while a load runs: of the GPU through NVML, of the CPU's packages through RAPL.

In: which devices count. Out: a `Trace` of readings, 25 a second, taken by a thread of its own. Where the GPU
keeps no count of its energy, its power is summed up over time.

Source: Linux, Documentation/power/powercap/powercap.rst; since 2020 only root may read its counters
(CVE-2020-8694). The only file of this room beside `host` that touches the machine.
"""

from __future__ import annotations

import contextlib
import logging
import math
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol, Self

import numpy as np

from serving.accelerator import nvml
from serving.accelerator.nvml import Gpu
from serving.errors import AcceleratorUnavailable
from tuner.measurement.energy import Trace

POWERCAP = pathlib.Path("/sys/class/powercap")
PERIOD_S = 0.04
"""Between two readings: a GPU's own figures change 10 to 50 times a second."""
_JOIN_S = 5.0
_log = logging.getLogger(__name__)


class Counter(Protocol):
    """What counts the energy of one device."""

    name: str
    text: str
    """What it is and how it counts, for people."""

    def joules(self) -> float:
        """Used so far, from any beginning.

        Raises:
            AcceleratorUnavailable, OSError, ValueError: it cannot be read any more.
        """
        ...


class GpuCounter:
    """The whole board of the GPU that the server uses."""

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
        """By the GPU's own count; where it has none, power times time, from one reading to the next."""
        if self._is_counted:
            return self.gpu.energy_j()
        now_s, power_w = time.monotonic(), self.gpu.power_w()
        if self._last is not None:
            before_s, before_w = self._last
            self._sum_j += (now_s - before_s) * (power_w + before_w) / 2
        self._last = now_s, power_w
        return self._sum_j


class PackageCounter:
    """All CPU packages of the machine; each counts in microjoules up to its own range, then from 0."""

    name = "cpu"

    def __init__(self, domains: tuple[pathlib.Path, ...]) -> None:
        self._domains = domains
        self._ranges = [_number(domain / "max_energy_range_uj") for domain in domains]
        self._last = [_number(domain / "energy_uj") for domain in domains]
        self._sum_uj = 0
        count = len(domains)
        self.text = f"{count} CPU package{'s' * (count > 1)} (RAPL)"

    def joules(self) -> float:
        """Of all packages together."""
        for place, domain in enumerate(self._domains):
            now = _number(domain / "energy_uj")
            self._sum_uj += (now - self._last[place]) % (self._ranges[place] + 1)
            self._last[place] = now
        return self._sum_uj / 1e6


class Found(NamedTuple):
    """Counters that can be read, and a line for each device whose cannot."""

    counters: tuple[Counter, ...]
    lacking: tuple[str, ...]


@contextlib.contextmanager
def opened(*, gpu: bool = True) -> Iterator[Found]:
    """The counters of this machine, until the block is left; without the GPU for a model that runs on the CPU."""
    counters: list[Counter] = []
    lacking: list[str] = []
    with contextlib.ExitStack() as owns:
        if gpu:
            try:
                counters.append(GpuCounter(owns.enter_context(nvml.opened())))
            except AcceleratorUnavailable as error:
                lacking.append(str(error))
        else:
            lacking.append("the model runs on the CPU, so the GPU does not count")
        packages = _packages(POWERCAP)
        if isinstance(packages, str):
            lacking.append(packages)
        else:
            counters.append(packages)
        yield Found(tuple(counters), tuple(lacking))


class Meter:
    """Reads counters in a thread, for one load: a context manager; then `trace`."""

    def __init__(self, counters: tuple[Counter, ...], *, period_s: float = PERIOD_S) -> None:
        self._counters = counters
        self._period_s = period_s
        self._gpu = next((c.gpu for c in counters if isinstance(c, GpuCounter)), None)
        self._rows: list[tuple[float, ...]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="energy", daemon=True)
        self.failure = ""
        """Why reading ended early, in a line; empty where it did not."""

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)
        self._take()

    def trace(self) -> Trace:
        """What was read."""
        width = 1 + len(self._counters) + 1
        rows = np.array(self._rows, dtype=float).reshape(-1, width)
        joules = {c.name: rows[:, place] for place, c in enumerate(self._counters, 1)}
        clock_mhz = None if self._gpu is None else rows[:, -1]
        return Trace(at_s=rows[:, 0], joules=joules, clock_mhz=clock_mhz)

    def _read(self) -> None:
        while not self._over.wait(self._period_s):
            self._take()

    def _take(self) -> None:
        """One row: time, joules of each counter, clock. A device that fails once is not asked again."""
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
        """NaN where there is no GPU, or one that counts its energy and does not tell its clock."""
        with contextlib.suppress(AcceleratorUnavailable):
            if self._gpu is not None:
                return float(self._gpu.clock_mhz())
        return math.nan


def _packages(powercap: pathlib.Path) -> PackageCounter | str:
    """The counter of all CPU packages, or why there is none."""
    domains = tuple(
        path
        for path in sorted(powercap.glob("intel-rapl:*"))  # AMD's are called so, too
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
