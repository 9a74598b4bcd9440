"""Facts about this machine: cores, memory, processor, kernel, versions.

Cores and memory respect affinity and cgroup limits, as a replica inherits both.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.metadata
import math
import os
import pathlib
import platform
import socket
import sys
from collections.abc import Iterable
from typing import Any

from serving.system.machine import cpu_model

CGROUP = pathlib.Path("/sys/fs/cgroup")
PACKAGES = (
    "luthier",
    "numpy",
    "onnxruntime",
    "optuna",
    "GPy",
    "scikit-optimize",
    "scikit-learn",
    "uvloop",
    "httptools",
)
"""Packages whose version may change a measurement or a proposal."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Resources for a process started from here."""

    cores: int
    memory_mb: int


def read(*, cgroup: pathlib.Path = CGROUP) -> MachineFacts:
    """Return the cores and memory available here."""
    cores = float(len(os.sched_getaffinity(0)))
    cores = min([cores, *_cpu_limits(cgroup)])
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory_bytes = min([memory_bytes, *_memory_limits(cgroup)])
    return MachineFacts(cores=max(1, math.floor(cores + 0.5)), memory_mb=max(1, memory_bytes >> 20))


def free_mb(
    *, cgroup: pathlib.Path = CGROUP, meminfo: pathlib.Path = pathlib.Path("/proc/meminfo")
) -> float:
    """Return the MiB free for new processes; infinite if unknown."""
    found = [math.inf]
    words = _words(meminfo)
    if "MemAvailable:" in words:
        found.append(int(words[words.index("MemAvailable:") + 1]) / 1024)
    for folder, limit_file, used_file in (
        (cgroup, "memory.max", "memory.current"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = _words(folder / limit_file), _words(folder / used_file)
        if limit and used and limit[0] != "max":
            told = _words(folder / "memory.stat")
            cached = told[told.index("inactive_file") + 1] if "inactive_file" in told else 0
            found.append((int(limit[0]) - int(used[0]) + int(cached)) / (1 << 20))
    return min(found)


def held_mb(pids: Iterable[int], *, proc: pathlib.Path = pathlib.Path("/proc")) -> float:
    """Return the private MiB of processes, without mapped files and shared memory."""
    pages = 0
    for pid in pids:
        words = _words(proc / str(pid) / "statm")  # size resident shared ... (proc(5))
        pages += int(words[1]) - int(words[2]) if words else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def describe(machine: MachineFacts) -> dict[str, Any]:
    """Return facts of host and software for `environment.json`."""
    return {
        "recorded_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "host": {
            "name": socket.gethostname(),
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "cpu": cpu_model(),
            "cores": machine.cores,
            "cores_of_host": os.cpu_count(),
            "memory_mb": machine.memory_mb,
        },
        "versions": {"python": sys.version.split()[0], **_versions()},
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_limits(cgroup: pathlib.Path) -> list[float]:
    limits = []
    unified = _words(cgroup / "cpu.max")
    if len(unified) == 2 and unified[0] != "max":
        limits.append(int(unified[0]) / int(unified[1]))
    quota, period = (
        _words(cgroup / "cpu/cpu.cfs_quota_us"),
        _words(cgroup / "cpu/cpu.cfs_period_us"),
    )
    if quota and period and int(quota[0]) > 0:
        limits.append(int(quota[0]) / int(period[0]))
    return limits


def _memory_limits(cgroup: pathlib.Path) -> list[int]:
    limits = []
    for path in (cgroup / "memory.max", cgroup / "memory/memory.limit_in_bytes"):
        words = _words(path)
        if words and words[0] != "max":
            limits.append(int(words[0]))
    return limits


def _words(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
