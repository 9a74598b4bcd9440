"""Counts and durations of one model version since it was loaded, as Triton's statistics extension has them.

In: one call per batch, failed request or cache look-up, with durations in seconds; out: a snapshot
with nanoseconds. Pure: the time of day is an argument. Nothing here is called once per request that
succeeds: what waited for a batch is summed by whoever completes it, and the counters know how many
requests were answered.

Meaning, as in that extension: an inference is one item; an execution is one batch. The stages of
`inference` sum over requests (a request is counted with the whole duration of its batch), those of
`batches` over executions. A request that was split counts once in `success` and in the stages with
every part; one that was answered from the cache, or with an equal one, is in `success` alone.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from serving.values import ModelId, StageTimes


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """How often, and how long together."""

    count: int
    ns: int


class BatchTotals(NamedTuple):
    """All batches of one size."""

    batch_size: int
    compute_input: Total
    compute_infer: Total
    compute_output: Total


class ModelStatistics(NamedTuple):
    """A snapshot."""

    model: ModelId
    last_inference_ms: int
    """Milliseconds since 1970; 0: never."""
    inference_count: int
    """Items."""
    execution_count: int
    """Batches."""
    success: Total
    """Requests from their arrival to their answer."""
    fail: Total
    queue: Total
    """Requests until their batch began: in the gateway's queue and in the replica's buffer."""
    compute_input: Total
    compute_infer: Total
    compute_output: Total
    cache_hit: Total
    """Look-ups that found an answer."""
    cache_miss: Total
    """Look-ups that found none, with what it took to send the request on."""
    batches: tuple[BatchTotals, ...]
    """By size."""


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


class StatisticsOf:
    """Collects the statistics of one model version."""

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
        """One batch came back.

        Args:
            times: of the batch in its replica.
            items: in it.
            parts: requests in it, whole or in part.
            waited_s: of these requests together, from their arrival until the batch was sent.
            wall_s: the time of day, in seconds since 1970.
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

    def failed(self, seconds: float) -> None:
        """One request was refused or failed, so long after its arrival."""
        self._fail.add(1, seconds)

    def looked_up(self, seconds: float, *, is_hit: bool) -> None:
        """One request was looked for in the cache."""
        (self._cache_hit if is_hit else self._cache_miss).add(1, seconds)

    def snapshot(self, *, successes: int, answered_s: float) -> ModelStatistics:
        """What was collected until now.

        Args:
            successes: requests that were answered without an error.
            answered_s: of all requests together, failed ones included, from their arrival to their answer.
        """
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
