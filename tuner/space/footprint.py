"""Cores and memory that a Luthier configuration reserves, to rank equally good ones."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.space.equivalence import THREAD_OVERHEAD_CORES
from tuner.values.configuration import Value


def footprint(configuration: Mapping[str, Value], *, cores: int) -> tuple[float, float, int]:
    """Return reserved cores, MiB and processes, to be compared in this order."""
    count = int(configuration.get("replica.count", 1))
    threads = int(configuration.get("replica.threads", 1))
    quota = float(configuration.get("replica.cpu", 0) or cores)
    memory_mb = float(configuration.get("replica.memory_mb", 0))
    used = min(quota, threads + THREAD_OVERHEAD_CORES)
    return min(float(cores), count * used), count * memory_mb, count


def differences(a: Mapping[str, Value], b: Mapping[str, Value]) -> int:
    """Return the number of knobs in which two configurations differ."""
    return sum(a.get(name) != b.get(name) for name in {*a, *b})
