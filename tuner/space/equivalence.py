"""Which configurations behave the same, so that no trial is spent on telling them apart.

In: the values of the knobs and the environment. Out: `behaviour`, the values as far as the engine
can feel them; configurations of equal behaviour are one cell. Each rule has a name, and a
search-space file lists those that hold for its model (`equivalence:`; all of them unless it says
otherwise). The rules assume a closed loop (a request comes only after the answer to the one before
it) with N items in flight, that is concurrency x client batch, and the engine's way of batching: a
worker with a free slot takes a batch as soon as `batching.max_size` items wait or the oldest has
waited `batching.timeout_us`; 0 means at once. A request larger than `max_size` is split over batches,
a smaller one never.

`batch-timeout`: at `max_size` 1 every waiting item is a full batch and leaves at once. The timeout
is never waited for. Exact.

In an open loop N is the most that may be in flight, and what follows holds for it as well.

`batch-over-concurrency`: at most N items exist, so at most N wait (those with a worker do not;
retries after a lost worker stay within N as well). Two cases, both exact:

- timeout 0: a worker takes what waits, at most `max_size`. What waits is at most N, so all
  `max_size` >= N behave like N. With N = 1 that is `max_size` 1, and so the timeout 0 of each of
  them is the same cell as `max_size` 1 with any timeout.
- timeout T > 0: with `max_size` > N no batch ever fills, and each waits until its oldest item is T
  old. All `max_size` > N are the same *for the same T*: the timeout matters most here. `max_size` =
  N is another cell: when all N wait, it leaves at once. And none of them is like timeout 0.

In time, that is: a replica is warmed up with a full batch, so a larger size may need more memory to start.
The cell's representative is the smallest.

Not a rule, though it looks like one: with c workers of two slots each (one batch runs, one is
buffered) an item only waits at timeout 0 while 2c batches are out, so batches above N - 2c seem
impossible. But the gateway plans once per turn of its event loop: the answers of one batch wake
several clients, whose next requests arrive in one turn and leave as one batch, even where slots are
free. For the same reason `max_size` still matters where N <= 2c. Nor is a replica count above N the
same as N: batches rotate over all replicas, and each has a CPU quota of its own. And with a client
batch of B > 1, sizes between k B and (k + 1) B hold the same k requests; but few grids have two of
them, and with a timeout k B itself is another cell, as it fills.

`cpu-over-threads`: a replica computes in `replica.threads` threads, beside which it reads the next
batch. It cannot use more than `threads` + `THREAD_OVERHEAD_CORES` cores, and a quota from there on
never binds. Exact for models that keep to their threads (the bundled ones do; a Python model that
starts its own does not: leave this rule out of its file).

`cpu-over-machine`: once `count` x `cpu` reaches the machine's cores, the machine is short before
the quotas are. Nearly the same, not exactly: a quota is counted in periods of 100 ms, so it can
still bind when the work of one period falls on few replicas. Batches rotate (the next goes to the
worker that has been idle longest), so within a period each of c replicas gets its share but for one
batch: of service time s, a quota q can bind only while c x q < cores + c x s / 0.1 s. For s of a
few milliseconds that is a margin of some per cent, less than what the gateway and the client take
from the machine. A model whose batches take 25 ms and more should leave this rule out;
`tuner.space.derive` does.

The representative of a cell is the smallest value on the grid: the smallest batch, the shortest
timeout, the cheapest quota, the same answer in reports whichever twin was proposed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tuner.space.environment import Environment
from tuner.values import Value

RULES = ("batch-timeout", "batch-over-concurrency", "cpu-over-machine", "cpu-over-threads")
"""Names of the rules, as in a file's `equivalence`."""

TOUCHED = {
    "batch-timeout": ("batching.timeout_us",),
    "batch-over-concurrency": ("batching.max_size", "batching.timeout_us"),
    "cpu-over-machine": ("replica.cpu",),
    "cpu-over-threads": ("replica.cpu",),
}
"""Rule -> the knobs in which configurations of equal behaviour may differ."""

THREAD_OVERHEAD_CORES = 0.25
"""Cores that a replica may use beside its model's threads, to read the next batch."""

_MATTERS_NOT = "any"
_TOLERANCE = 1e-9


def behaviour(
    values: Mapping[str, Value], environment: Environment, rules: Collection[str]
) -> dict[str, Value]:
    """The values that the engine can feel: equal results mean configurations that behave the same.

    Args:
        values: knobs by name. One that is not searched is unknown, and rules that need it then do
            only what holds for each of its values.
        environment: machine, concurrency and client batch.
        rules: those of `RULES` that hold.

    Returns:
        A copy of `values`; a size or quota that cannot bind is replaced by the smallest that
        cannot, a timeout that is never waited for by a mark.
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
