"""What a configuration takes from the machine, so that of equally good ones the cheapest can be chosen.

In: a configuration of the serving core, and the machine's cores. Out: cores and memory that it
reserves. Knobs of other engines are not known here: their configurations all weigh the same. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.space.equivalence import THREAD_OVERHEAD_CORES
from tuner.values import Value


def footprint(configuration: Mapping[str, Value], *, cores: int) -> tuple[float, float, int]:
    """What is reserved, as values to compare in this order: cores, MiB, processes."""
    count = int(configuration.get("replica.count", 1))
    threads = int(configuration.get("replica.threads", 1))
    quota = float(configuration.get("replica.cpu", 0) or cores)
    memory_mb = float(configuration.get("replica.memory_mb", 0))
    used = min(quota, threads + THREAD_OVERHEAD_CORES)
    return min(float(cores), count * used), count * memory_mb, count


def differences(a: Mapping[str, Value], b: Mapping[str, Value]) -> int:
    """Number of knobs in which two configurations differ."""
    return sum(a.get(name) != b.get(name) for name in {*a, *b})
