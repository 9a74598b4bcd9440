"""The mean round trip of a configuration from a profile, in a closed form: microseconds for each cell.

At a fixed number of requests in flight the mean follows from the throughput (Little's law), and the
throughput is the smallest of what any part lets through (operational bounds: Denning and Buzen,
Computing Surveys 10:225, 1978):

    workers      replicas x batch / time of a batch under the quota
    cores        cores / CPU time of a request in replica, gateway and client together
    gateway      one process: 1 / its CPU time of a request
    round trip   requests in flight / round trip of an idle server, with the wait for a batch to fill,
                 and where all wait for a timeout, with what the gateway needs for all of them

In: a profile, the machine, the load, a cell. Out: ms. Knows what knobs mean and nothing of how they are
searched. It is a guess: `sampling.structured` weighs it against what was measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.simulation.profile import BatchCost, Profile
from tuner.values import Value

SOFTNESS = 8.0
"""Bounds that are near one another are not quite reached: the throughput is their power mean with this
exponent, negative."""
TOGETHER = 4.0
"""Requests that wait for a timeout leave together where it lasts a quarter of what the gateway needs for all."""
UNKNOWN_REQUEST_S = 1e-4
"""CPU time of a request in gateway or client where it could not be measured: 0.1 ms, about what they take."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Under which it is predicted, and on what."""

    concurrency: int
    client_batch: int
    cores: int


def mean_ms(profile: Profile, load: Load, cell: Mapping[str, Value]) -> float:
    """Predicted mean round trip; knobs that the cell lacks have the engine's defaults."""
    replicas = int(cell.get("replica.count", 1))
    threads = int(cell.get("replica.threads", 1))
    quota = float(cell.get("replica.cpu", 0) or threads)
    most = int(cell.get("batching.max_size", 8))
    timeout_s = 1e-6 * float(cell.get("batching.timeout_us", 0))
    costs = profile.of(threads)
    items = load.concurrency * load.client_batch
    batch, groups = _batch(items, replicas, most, timeout_s, interpolated(costs, most)[0])
    service_s, cpu_s = interpolated(costs, batch)
    own = quota * replicas / groups  # those that stand idle meanwhile save their quota
    taken_s = max(service_s, cpu_s / min(own, load.cores))
    request_s = per_request(costs, batch)
    per_batch = batch / load.client_batch
    fill_s = _fill_s(items, groups, batch, most, timeout_s, sum(request_s) / load.client_batch)
    own_s = sum(request_s)
    if timeout_s > 0 and batch < most:
        # All wait for the same timeouts: they leave together and come back together, and the gateway
        # takes one after another while replicas stand idle.
        together_s = (load.concurrency - 1) * request_s[0]
        own_s += together_s * min(1.0, TOGETHER * timeout_s / max(together_s, 1e-9))
    requests_per_s = (
        groups * per_batch / (taken_s + fill_s),
        load.cores / (cpu_s / per_batch + request_s[0] + request_s[1]),
        1 / request_s[0],
        load.concurrency / (taken_s + fill_s + own_s),
    )
    throughput: float = sum(rate**-SOFTNESS for rate in requests_per_s) ** (-1 / SOFTNESS)
    return 1e3 * load.concurrency / throughput


def all_ms(
    profile: Profile, load: Load, cells: Sequence[Mapping[str, Value]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Predicted mean round trips (m,) of cells."""
    return np.array([mean_ms(profile, load, cell) for cell in cells])


def _batch(
    items: int, replicas: int, most: int, timeout_s: float, full_s: float
) -> tuple[float, int]:
    """Items of a typical batch, and how many replicas have one.

    Without a timeout a batch gathers while the one before it runs: half of a replica's share of what is
    in flight. With one it waits until it is full. What is in flight fills so many batches at once; where
    there are more replicas than that, the others stand idle, and a batch is filled by those who return
    from another, if the timeout lasts as long.
    """
    share = items / replicas
    if timeout_s <= 0 or most == 1:
        return min(float(most), max(1.0, share / 2)), replicas
    groups = items // most
    if groups >= replicas:
        return float(most), replicas
    if groups and timeout_s >= full_s / groups:
        return float(most), groups
    return max(1.0, min(share, most)), replicas


def _fill_s(
    items: int, groups: int, batch: float, most: int, timeout_s: float, item_s: float
) -> float:
    """How long a replica waits for its next batch: for the timeout, or for those who return from another.

    Args:
        items: in flight.
        groups: replicas that have a batch.
        batch: items of a typical one.
        most: items of a full one.
        timeout_s: of a batch.
        item_s: what an item costs in gateway and client on its way back and forth.
    """
    if timeout_s <= 0 or most == 1:
        return 0.0
    if batch < most:
        return timeout_s
    missing = max(0.0, most - (items - groups * most))
    return min(timeout_s, missing * item_s / groups)


def interpolated(costs: Sequence[BatchCost], size: float) -> tuple[float, float]:
    """Service and CPU time of a batch, linear in its size between those that were measured, and beyond them."""
    sizes = [cost.size for cost in costs]
    found = []
    for values in ([cost.service_s for cost in costs], [cost.cpu_s for cost in costs]):
        if size > sizes[-1] and len(sizes) > 1:
            slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
            found.append(values[-1] + max(slope, 0.0) * (size - sizes[-1]))
        elif size > sizes[-1]:
            found.append(values[-1] * size / sizes[-1])
        else:
            found.append(float(np.interp(size, sizes, values)))
    return found[0], found[1]


def per_request(costs: Sequence[BatchCost], size: float) -> tuple[float, float]:
    """CPU time of a request in gateway and client; a tenth of a millisecond where it is not known."""
    found = []
    for values in ([cost.gateway_s for cost in costs], [cost.client_s for cost in costs]):
        known = [
            (math.log(cost.size), value) for cost, value in zip(costs, values, strict=True) if value
        ]
        if not known:
            found.append(UNKNOWN_REQUEST_S)
            continue
        sizes, seconds = zip(*known, strict=True)
        found.append(float(np.interp(math.log(size), sizes, seconds)))
    return found[0], found[1]
