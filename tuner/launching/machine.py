"""Facts about this machine: cores, memory, processor, kernel, versions.

Cores and memory respect affinity and cgroup limits, since replicas inherit both.
"""

from __future__ import annotations

import contextlib
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
"""Packages whose versions may affect a measurement or a proposal."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Resources available to processes started from here."""

    cores: int
    memory_mb: int


def read(*, cgroup: pathlib.Path = CGROUP) -> MachineFacts:
    """Return the cores and the memory available here."""
    cores = [float(len(os.sched_getaffinity(0)))]
    cpu = cgroup / "cpu"
    old = _words(cpu / "cpu.cfs_quota_us") + _words(cpu / "cpu.cfs_period_us")
    for quota in (_words(cgroup / "cpu.max"), old):
        if len(quota) == 2 and quota[0] not in {"max", "0", "-1"}:
            cores += [int(quota[0]) / int(quota[1])]
    memory_bytes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        memory_bytes += [int(word) for word in _words(cgroup / limit)[:1] if word != "max"]
    return MachineFacts(
        cores=max(1, math.floor(min(cores) + 0.5)), memory_mb=max(1, min(memory_bytes) >> 20)
    )


def free_mb(
    *, cgroup: pathlib.Path = CGROUP, meminfo: pathlib.Path = pathlib.Path("/proc/meminfo")
) -> float:
    """Return the MiB of memory free for new processes, or infinity if unknown."""
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
    """Return the private memory of processes in MiB, without mapped files and shared memory."""
    pages = 0
    for pid in pids:
        words = _words(proc / str(pid) / "statm")  # size resident shared ... (proc(5))
        pages += int(words[1]) - int(words[2]) if words else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def describe(machine: MachineFacts) -> dict[str, Any]:
    """Return facts about host and software for `environment.json`."""
    versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
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
        "versions": versions,
    }


def _words(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
