"""Derived features of a configuration in [0, 1], in addition to its knobs. Pure.

Knobs have Luthier's names here; `tuner.space.roles` translates those of other engines.

Where a quota stops binding or a batch stops filling, latency bends along one feature but across
several knobs. Each feature is on a log scale between constants:

    capacity                 cores that all replicas may use together, per core of the machine
    thread oversubscription  threads that all replicas run together, per core of the machine
    cores per batch          cores that one batch may use
    batch fill               items in flight divided by one batch per replica; in an open loop,
                             items arriving within the timeout divided by one batch
    batch wait               of a batch that cannot fill; in an open loop, until full or timed out
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tuner.space.environment import Environment
from tuner.space.equivalence import THREAD_OVERHEAD_CORES
from tuner.space.narrowing import ENGINE_CPU
from tuner.values.configuration import Value

_CAPACITY = (1 / 16, 1.0)
_THREAD_OVERSUBSCRIPTION = (1 / 4, 4.0)
_CORES_PER_BATCH = (1 / 8, 4.0)
_BATCH_FILL = (1 / 8, 8.0)
_BATCH_WAIT_US = (10.0, 1e5)


def features(configuration: Mapping[str, Value], environment: Environment) -> NDArray[np.float64]:
    """Return the features (5,) of a configuration in Luthier's names, in the order above."""
    cores = environment.machine.cores
    # Of another engine, 0 may mean that something is off.
    count = max(1, int(configuration.get("replica.count", 1)))
    threads = int(configuration.get("replica.threads", 1))
    quota = float(configuration.get("replica.cpu", 0) or cores)
    total = min(float(configuration.get(ENGINE_CPU, 0) or cores), float(cores))
    most = max(1, int(configuration.get("batching.max_size", 1)))
    timeout_us = float(configuration.get("batching.timeout_us", 0))
    used = min(quota, threads + THREAD_OVERHEAD_CORES, total)
    fill, waits_us = _batch(environment, count, most, timeout_us)
    return np.array(
        [
            _log_position(min(count * used, total) / cores, _CAPACITY),
            _log_position(count * threads / cores, _THREAD_OVERSUBSCRIPTION),
            _log_position(used, _CORES_PER_BATCH),
            _log_position(fill, _BATCH_FILL),
            _log_position(waits_us, _BATCH_WAIT_US) if waits_us else 0.0,
        ]
    )


def _batch(
    environment: Environment, count: int, most: int, timeout_us: float
) -> tuple[float, float]:
    if environment.rate_per_s is None:
        fill = environment.items / (count * most)
        return fill, timeout_us if most > 1 and fill < 1 else 0.0
    items_per_us = 1e-6 * environment.rate_per_s * environment.client_batch
    fill = items_per_us * timeout_us / most
    return fill, min(timeout_us, most / items_per_us) if most > 1 else 0.0


def _log_position(value: float, ends: tuple[float, float]) -> float:
    low, high = map(math.log, ends)
    return min(1.0, max(0.0, (math.log(max(value, 1e-9)) - low) / (high - low)))
