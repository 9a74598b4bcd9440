"""What an engineer would compute of a configuration before trying it: shares that knobs only make together.

In: a configuration of the serving core and the environment. Out: a few numbers in [0, 1], which a
model of the latency gets beside the knobs. They say nothing that the knobs do not, but where a quota stops
binding or a batch stops filling is a bend along them, and a curve across the knobs' own axes. Pure.

    capacity        cores that all replicas may use together, over the machine's
    crowd           threads that all replicas run together, over the machine's cores
    pace            cores that one batch may use
    fill            items in flight over what fits into one batch of each replica; in an open loop, items
                    that arrive within the timeout over what fits into one batch
    patience        how long a batch waits that cannot fill; in an open loop, until it is full or the timeout

On a logarithmic scale between the ends that are given beside each. Knobs of other engines are not
known here: their configurations have features only as far as they use the same names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tuner.space.environment import Environment
from tuner.space.equivalence import THREAD_OVERHEAD_CORES
from tuner.values import Value

NAMES = ("capacity", "crowd", "pace", "fill", "patience")
_CAPACITY = (1 / 16, 1.0)
_CROWD = (1 / 4, 4.0)
_PACE = (1 / 8, 4.0)
_FILL = (1 / 8, 8.0)
_PATIENCE_US = (10.0, 1e5)


def features(configuration: Mapping[str, Value], environment: Environment) -> NDArray[np.float64]:
    """The numbers (5,) of a configuration, in the order of `NAMES`."""
    cores = environment.machine.cores
    count = int(configuration.get("replica.count", 1))
    threads = int(configuration.get("replica.threads", 1))
    quota = float(configuration.get("replica.cpu", 0) or cores)
    most = int(configuration.get("batching.max_size", 1))
    timeout_us = float(configuration.get("batching.timeout_us", 0))
    used = min(quota, threads + THREAD_OVERHEAD_CORES, float(cores))
    fill, waits_us = _batch(environment, count, most, timeout_us)
    return np.array(
        [
            _placed(count * used / cores, _CAPACITY),
            _placed(count * threads / cores, _CROWD),
            _placed(used, _PACE),
            _placed(fill, _FILL),
            _placed(waits_us, _PATIENCE_US) if waits_us else 0.0,
        ]
    )


def _batch(
    environment: Environment, count: int, most: int, timeout_us: float
) -> tuple[float, float]:
    """How full a batch gets by what there is, and how many microseconds it waits.

    In an open loop what there is for a batch is what arrives while its oldest item waits: by Little's law
    rate x wait items, whichever replica takes them. So it fills sooner or later, and waits until then or for
    the timeout.
    """
    if environment.rate_per_s is None:
        fill = environment.items / (count * most)
        return fill, timeout_us if most > 1 and fill < 1 else 0.0
    items_per_us = 1e-6 * environment.rate_per_s * environment.client_batch
    fill = items_per_us * timeout_us / most
    return fill, min(timeout_us, most / items_per_us) if most > 1 else 0.0


def _placed(value: float, ends: tuple[float, float]) -> float:
    """Where a value lies between two ends, on a logarithmic scale; at the end where it is beyond it."""
    low, high = map(math.log, ends)
    return min(1.0, max(0.0, (math.log(max(value, 1e-9)) - low) / (high - low)))
