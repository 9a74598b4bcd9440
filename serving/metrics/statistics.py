"""Statistics of one deployment, as in Triton's statistics extension.

An inference is an item, and an execution is a batch. Stages are summed over requests, each with the
whole duration of its batch, and `batches` are summed over executions. A split request counts once
in `success`; cached and shared responses count only there.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from serving.values import ModelId, StageTimes


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """Count and total duration."""

    count: int
    ns: int


class BatchTotals(NamedTuple):
    """Totals for batches of one size."""

    batch_size: int
    compute_input: Total
    compute_infer: Total
    compute_output: Total


class ModelStatistics(NamedTuple):
    """Statistics of one deployment since it started."""

    model: ModelId
    last_inference_ms: int
    """Unix time in milliseconds; 0 before any inference."""
    inference_count: int
    execution_count: int
    success: Total
    """Successful requests, timed from arrival to response."""
    fail: Total
    queue: Total
    """Time in the gateway's queue and the replica's buffer."""
    compute_input: Total
    compute_infer: Total
    compute_output: Total
    cache_hit: Total
    cache_miss: Total
    """Lookups that missed, and the time until the request was sent."""
    batches: tuple[BatchTotals, ...]


class _Sum:
    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, count: int, seconds: float) -> None:
        self.count += count
        self.seconds += seconds

    @property
    def total(self) -> Total:
        return _total(self.count, self.seconds)


class _Batches:
    __slots__ = ("count", "exec_s", "input_s", "output_s")

    def __init__(self) -> None:
        self.count = 0
        self.input_s = self.exec_s = self.output_s = 0.0


class StatisticsCollector:
    """Collects one deployment's statistics."""

    def __init__(self, model: ModelId) -> None:
        self._model = model
        self._last_inference_s = 0.0
        self._items = 0
        self._fail = _Sum()
        self._queue_s = 0.0
        self._parts = 0
        self._input_s = self._exec_s = self._output_s = 0.0
        self._cache_hit = _Sum()
        self._cache_miss = _Sum()
        self._batches: dict[int, _Batches] = {}

    def batch(
        self,
        times: StageTimes,
        *,
        items: int,
        parts: int,
        waited_s: float,
        wall_s: float,
    ) -> None:
        """Record a batch of `parts` requests, whole or in part, at the Unix time `wall_s`.

        `waited_s` is the sum of the requests' times from arrival to sending.
        """
        self._last_inference_s = wall_s
        self._items += items
        self._parts += parts
        self._queue_s += waited_s + parts * times.queue_s
        self._input_s += parts * times.input_s
        self._exec_s += parts * times.exec_s
        self._output_s += parts * times.output_s
        batches = self._batches.get(items)
        if batches is None:
            batches = self._batches[items] = _Batches()
        batches.count += 1
        batches.input_s += times.input_s
        batches.exec_s += times.exec_s
        batches.output_s += times.output_s

    def record_failure(self, seconds: float) -> None:
        """Record a request that failed `seconds` after its arrival."""
        self._fail.add(1, seconds)

    def looked_up(self, seconds: float, *, is_hit: bool) -> None:
        """Record a cache lookup."""
        (self._cache_hit if is_hit else self._cache_miss).add(1, seconds)

    def snapshot(self, *, successes: int, answered_s: float) -> ModelStatistics:
        """Return the statistics; `answered_s` sums the times of all requests, also failed ones."""
        parts = self._parts
        return ModelStatistics(
            model=self._model,
            last_inference_ms=round(self._last_inference_s * 1e3),
            inference_count=self._items,
            execution_count=sum([batches.count for batches in self._batches.values()]),
            success=_total(successes, max(0.0, answered_s - self._fail.seconds)),
            fail=self._fail.total,
            queue=_total(parts, self._queue_s),
            compute_input=_total(parts, self._input_s),
            compute_infer=_total(parts, self._exec_s),
            compute_output=_total(parts, self._output_s),
            cache_hit=self._cache_hit.total,
            cache_miss=self._cache_miss.total,
            batches=tuple(
                [
                    BatchTotals(
                        size,
                        _total(batches.count, batches.input_s),
                        _total(batches.count, batches.exec_s),
                        _total(batches.count, batches.output_s),
                    )
                    for size, batches in sorted(self._batches.items())
                ]
            ),
        )


def _total(count: int, seconds: float) -> Total:
    return Total(count, round(seconds * 1e9))
