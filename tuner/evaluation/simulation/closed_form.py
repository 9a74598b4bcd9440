"""Closed-form prediction of a configuration's mean latency.

At a fixed concurrency, it follows from the throughput (Little's law), which every part limits
(operational bounds: Denning and Buzen, Computing Surveys 10:225, 1978):

    workers      replicas x batch / time of a batch under the quota
    cores        cores / CPU time of a request in replica, gateway and client
    gateway      one process: 1 / its CPU time per request
    latency      concurrency / latency of an idle server, with the wait for a batch to fill; if
                 all requests wait for a timeout, with the gateway's time for all of them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tuner.evaluation.simulation.model_costs import ModelCosts
from tuner.values.configuration import Value

SOFTNESS = 8.0
"""Exponent S that smooths nearby bounds: throughput = (sum of rate^-S)^(-1/S)."""
TOGETHER = 4.0
"""Ratio of the gateway's time for all requests to the timeout up to which all leave together."""
REQUEST_S = 1e-4
"""CPU time of a request in the gateway, and in the client: 0.1 ms, a typical value."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Workload and core count that a prediction assumes."""

    concurrency: int
    client_batch: int
    cores: float


def mean_ms(costs: ModelCosts, load: Workload, candidate: Mapping[str, Value]) -> float:
    """Predict the mean latency; missing knobs take the engine's defaults."""
    replicas = int(candidate.get("replica.count", 1))
    threads = int(candidate.get("replica.threads", 1))
    quota = float(candidate.get("replica.cpu", 0) or threads)
    most = int(candidate.get("batching.max_size", 8))
    timeout_s = 1e-6 * float(candidate.get("batching.timeout_us", 0))
    items = load.concurrency * load.client_batch
    full_s = costs.service_s(most, threads)
    batch, groups = _batch(items, replicas, most, timeout_s, full_s)
    cpu_s = costs.cpu_s(batch, threads)
    own = quota * replicas / groups  # idle replicas save their quota
    taken_s = max(costs.service_s(batch, threads), cpu_s / min(own, load.cores))
    per_batch = batch / load.client_batch
    own_s = 2 * REQUEST_S
    fill_s = _fill_s(items, groups, batch, most, timeout_s, own_s / load.client_batch)
    if timeout_s > 0 and batch < most:
        # All requests wait for the same timeouts, so they leave and return together, and replicas
        # idle while the gateway takes one after another.
        together_s = (load.concurrency - 1) * REQUEST_S
        own_s += together_s * min(1.0, TOGETHER * timeout_s / max(together_s, 1e-9))
    requests_per_s = (
        groups * per_batch / (taken_s + fill_s),
        load.cores / (cpu_s / per_batch + 2 * REQUEST_S),
        1 / REQUEST_S,
        load.concurrency / (taken_s + fill_s + own_s),
    )
    throughput: float = sum(rate**-SOFTNESS for rate in requests_per_s) ** (-1 / SOFTNESS)
    return 1e3 * load.concurrency / throughput


def _batch(
    items: int, replicas: int, most: int, timeout_s: float, full_s: float
) -> tuple[float, int]:
    """Return the items in a typical batch, and the number of replicas that have one.

    Without a timeout, a batch forms during the previous one, from half of the replica's share of
    the items in flight. With a timeout, it waits until it is full; other replicas idle, and
    returning requests fill a batch if the timeout is long enough.
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
    """Return how long a replica waits for a batch; `item_s` is an item's cost outside it."""
    if timeout_s <= 0 or most == 1:
        return 0.0
    if batch < most:
        return timeout_s
    missing = max(0.0, most - (items - groups * most))
    return min(timeout_s, missing * item_s / groups)
