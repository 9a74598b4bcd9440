"""Profile of a model, measured on one unlimited replica.

Enough clients fill every batch. Its time is the replica's report, since a rate would include a slow
gateway. Half a second per size and number of threads, at most five sizes: batch time is nearly
linear in size.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tuner.errors import LaunchFailed, LoadGeneratorFailed, TunerError
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.probe import FILL_US
from tuner.evaluation.simulation.profile import BatchCost, CostProfile
from tuner.launching.statistics import BatchTimes
from tuner.values.configuration import Configuration

SIZES = (1, 4, 16, 64)
SECONDS = 0.3
WARMUP_S = 0.1


def profile_model(
    evaluator: Evaluator, *, most: int, client_batch: int, threads: Iterable[int]
) -> CostProfile:
    """Measure the costs.

    Args:
        most: items in the largest batch.

    Raises:
        TunerError: single items fail.
    """
    begun_s = time.monotonic()
    found: list[BatchCost] = []
    for count in sorted(set(threads)):
        for size in _sizes(most):
            try:
                found.append(_cost(evaluator, count, size, client_batch))
            except (LaunchFailed, LoadGeneratorFailed) as error:
                if not found:
                    raise TunerError(f"the model cannot be profiled: {error}") from error
                break  # too large to serve
    return CostProfile(
        batches=tuple(found), client_batch=client_batch, seconds=time.monotonic() - begun_s
    )


def _sizes(most: int) -> list[int]:
    """Return a few batch sizes, and the largest if well beyond them."""
    sizes = [size for size in SIZES if size <= max(1, most)]
    return [*sizes, most] if sizes[-1] * 2 <= most else sizes


def _cost(evaluator: Evaluator, threads: int, size: int, client_batch: int) -> BatchCost:
    configuration = Configuration(
        {
            "replica.count": 1,
            "replica.threads": threads,
            "batching.max_size": size,
            "batching.timeout_us": FILL_US if size > 1 else 0,
        }
    )
    clients = max(2, -(-2 * size // client_batch))
    before = evaluator.batch_times()
    found = evaluator.observe_phase(
        configuration, concurrency=clients, seconds=SECONDS, warmup_s=WARMUP_S
    )
    batches = _since(before, evaluator.batch_times()).get(size)
    answered, finished = found.answered, max(1, len(found.load.records))
    if not answered:
        raise LoadGeneratorFailed(f"no request was answered at batch size {size} in {SECONDS:g} s")
    items = answered * client_batch
    replica_s = _between(found.before.cpu_s, found.after.cpu_s)
    service_s = size * found.load.measured_s / items if batches is None else batches
    return BatchCost(
        threads=threads,
        size=size,
        service_s=service_s,
        # Both CPU time and this count include the warm-up.
        cpu_s=service_s if replica_s is None else replica_s * size / (finished * client_batch),
        gateway_s=None if found.gateway_cpu_s is None else found.gateway_cpu_s / finished,
        client_s=found.load.client_cpu_s / finished,
    )


def _since(before: BatchTimes, after: BatchTimes) -> dict[int, float]:
    """Return the mean seconds of batches between, by size."""
    found = {}
    for size, (count, seconds) in after.items():
        count_before, seconds_before = before.get(size, (0, 0.0))
        if count > count_before:
            found[size] = (seconds - seconds_before) / (count - count_before)
    return found


def _between(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
