"""Equivalence rules: configurations that behave the same count as one candidate.

A search-space file lists its model's rules (`equivalence:`; all by default). They assume at most N
= concurrency x client batch items in flight, and that a free worker takes a batch once
`batching.max_size` items wait or the oldest has waited `batching.timeout_us`.

`batch-timeout`: at `max_size` 1 every item is a full batch, so the timeout has no effect. Exact.

`batch-over-concurrency` (fixed policy only): at most N items can wait. Exact in time; memory may
differ, as warm-up runs a full batch.

- Timeout 0: all `max_size` >= N behave like N. N = 1 is like `max_size` 1 with any timeout.
- Timeout T > 0: no batch fills at `max_size` > N, so these sizes are alike *for the same T*; at
  `max_size` = N, a batch leaves once all N wait.

These only look like rules:

- Sizes above N - 2c at timeout 0, with c workers of two slots: the gateway plans once per event
  loop turn, so clients woken by one batch form one batch.
- Replica counts above N: batches rotate over all replicas, each with its own quota.
- Sizes between k B and (k + 1) B for client batch B > 1: with a timeout, k B fills.

`cpu-over-threads`: a replica uses at most `threads` + `THREAD_OVERHEAD_CORES` cores. Exact; leave
it out if a Python model starts its own threads.

`cpu-over-machine`: once `count` x `cpu` reaches the machine's cores, cores run short before quotas.
Approximate: batches of service time s rotate over c replicas, so a quota q binds only while c x q <
cores + c x s / 0.1 s. Leave it out for batches of 25 ms or more, as `tuner.space.derive` does.

The representative has the smallest values on the grid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tuner.space.environment import Environment
from tuner.values.configuration import Value

RULES = ("batch-timeout", "batch-over-concurrency", "cpu-over-machine", "cpu-over-threads")

TOUCHED = {
    "batch-timeout": ("batching.timeout_us",),
    "batch-over-concurrency": ("batching.max_size", "batching.timeout_us"),
    "cpu-over-machine": ("replica.cpu",),
    "cpu-over-threads": ("replica.cpu",),
}
"""Knobs in which configurations that are equivalent by a rule may differ."""

THREAD_OVERHEAD_CORES = 0.25
"""Cores that a replica uses in addition to its threads, to read the next batch."""

_MATTERS_NOT = "any"
_TOLERANCE = 1e-9


def behaviour(
    values: Mapping[str, Value], environment: Environment, rules: Collection[str]
) -> dict[str, Value]:
    """Return values that are the same for configurations that behave the same.

    If a knob is not searched, rules apply only where they hold for any of its values. A size or
    quota that cannot bind becomes the smallest such value, an unused timeout a marker.
    """
    felt = dict(values)
    _batching(felt, environment.items, rules)
    _cpu(felt, environment.machine.cores, rules)
    return felt


def _batching(felt: dict[str, Value], in_flight: int, rules: Collection[str]) -> None:
    size = felt.get("batching.max_size")
    timeout_us = felt.get("batching.timeout_us")
    if not isinstance(size, int):
        return
    is_fixed = felt.get("batching.policy", "fixed") == "fixed"
    if "batch-over-concurrency" in rules and is_fixed:
        most = in_flight if timeout_us == 0 else in_flight + 1
        felt["batching.max_size"] = size = min(size, most)
    if "batch-timeout" in rules and size == 1 and timeout_us is not None:
        felt["batching.timeout_us"] = _MATTERS_NOT


def _cpu(felt: dict[str, Value], cores: int, rules: Collection[str]) -> None:
    quota = felt.get("replica.cpu")
    if not isinstance(quota, int | float):
        return
    count, threads = felt.get("replica.count", 1), felt.get("replica.threads")
    enough = float("inf")
    if "cpu-over-machine" in rules and isinstance(count, int):
        enough = cores / count
    if "cpu-over-threads" in rules and isinstance(threads, int):
        enough = min(enough, threads + THREAD_OVERHEAD_CORES)
    if quota >= enough - _TOLERANCE:
        felt["replica.cpu"] = enough
