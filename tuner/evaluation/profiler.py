"""Profile of a model, measured on one unlimited replica with full batches.

Batch times come from the replica's report, since a rate would include a slow gateway. Each size
takes half a second per thread count, and at most five sizes are measured, as batch time is nearly
linear in size.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tuner.errors import LaunchFailed, LoadGeneratorFailed, TunerError
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.probe import observe_batches
from tuner.evaluation.simulation.profile import BatchCost, CostProfile
from tuner.launching.statistics import BatchTimes

SIZES = (1, 4, 16, 64)
SECONDS = 0.3
WARMUP_S = 0.1


def profile_model(
    evaluator: Evaluator, *, most: int, client_batch: int, threads: Iterable[int]
) -> CostProfile:
    """Measure batches of up to `most` items at each thread count.

    Raise TunerError if single items fail.
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
    sizes = [size for size in SIZES if size <= max(1, most)]
    return [*sizes, most] if sizes[-1] * 2 <= most else sizes


def _cost(evaluator: Evaluator, threads: int, size: int, client_batch: int) -> BatchCost:
    before = evaluator.batch_times()
    found = observe_batches(
        evaluator, size, client_batch, threads=threads, seconds=SECONDS, warmup_s=WARMUP_S
    )
    finished = max(1, len(found.load.records))
    service_s = _batch_s(before, evaluator.batch_times(), size)
    if service_s is None:
        service_s = size * found.load.measured_s / (found.answered * client_batch)
    replica_s = found.replica_cpu_s
    return BatchCost(
        threads=threads,
        size=size,
        service_s=service_s,
        # Both CPU time and this count include the warm-up.
        cpu_s=service_s if replica_s is None else replica_s * size / (finished * client_batch),
        gateway_s=None if found.gateway_cpu_s is None else found.gateway_cpu_s / finished,
        client_s=found.load.client_cpu_s / finished,
    )


def _batch_s(before: BatchTimes, after: BatchTimes, size: int) -> float | None:
    count, seconds = after.get(size, (0, 0.0))
    count_before, seconds_before = before.get(size, (0, 0.0))
    if count <= count_before:
        return None
    return (seconds - seconds_before) / (count - count_before)
