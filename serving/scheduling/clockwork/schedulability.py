"""Test of whether a worker can do a request and all reserved work in time. Pure."""

from __future__ import annotations

from bisect import bisect_right

from serving.scheduling.clockwork.instances import NEVER_S, ModelInstance, PoolModel, PoolWorker
from serving.scheduling.clockwork.model_queue import BatchReservation
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.clockwork.shares import FlowShare, Shares

TOGETHER = 0.75
"""Share of a request's time after which a bundle must be due so that the request joins it."""
ASKED = 2
ALONE = 1.5
"""Factor on the margin of a request without a bundle, unless its flow is below its share."""


class SchedulabilityTest:
    """Schedulability test for one request."""

    __slots__ = (
        "_alone",
        "_durations",
        "_is_alone",
        "_others",
        "_share",
        "deadline_s",
        "items",
        "margin_s",
        "min_s",
        "now_s",
        "start_s",
    )

    def __init__(
        self,
        pool: PoolState,
        model: PoolModel,
        deadline_s: float,
        now_s: float,
        items: int = 1,
        *,
        is_alone: bool = False,
        flow: FlowShare | None = None,
    ) -> None:
        """Set up the test; a `flow` above its share must leave time for others."""
        self._durations = model.durations
        self._is_alone = is_alone
        shares = pool.shares
        self._others: Shares | None = None
        self._alone = ALONE
        if flow is not None and shares.level_s < NEVER_S:
            if flow.had_s >= shares.level_s:
                self._others = shares
            else:
                self._alone = 1.0
        self._share = pool.reserve.share
        self.items = items
        self.deadline_s = deadline_s
        self.now_s = now_s
        self.start_s = now_s + pool.parameters.message_latency_s
        self.min_s = model.durations.quickest_s(items)
        self.margin_s = self._reserved_s(1.0, deadline_s - now_s)

    def _reserved_s(self, times: float, within_s: float) -> float:
        held_s = times * self._share * within_s
        if self._others is None:
            return held_s
        return max(held_s, self._share * within_s + self._others.reserved_s(within_s))

    def is_in_time(
        self,
        worker: PoolWorker,
        *,
        free_s: float,
        ready_s: float,
        blocking_s: float,
        load_s: float = 0.0,
    ) -> bool:
        """Return whether a worker could do the work in time with all reserved work.

        Args:
            free_s: time at which its executor has finished the issued actions.
            ready_s: time at which the model is loaded.
            blocking_s: delay caused by unreserved work.
            load_s: seconds that a load takes on the same executor.
        """
        until_s = self.deadline_s
        if max(free_s, ready_s) + self.min_s > until_s:
            return False
        backlog = worker.backlog
        bucket_s = backlog.bucket_s(until_s, self.now_s)
        return backlog.fits(bucket_s, until_s, self.min_s + load_s, free_s=free_s + blocking_s)

    def place(
        self, holding: ModelInstance, *, free_s: float, ready_s: float, is_free: bool
    ) -> tuple[bool, BatchReservation | None]:
        """Return whether an instance could do the work in time, and the bundle to join.

        Args:
            holding: instance, loaded or not.
            is_free: whether the work would start at once.
        """
        worker, leave, now_s = holding.worker, holding.planned_eviction, self.now_s
        until_s = self.deadline_s
        if leave is not None and leave.at_s < until_s:
            until_s = leave.at_s
        from_s = max(free_s, ready_s)
        if from_s + self.min_s > until_s:
            return False, None
        backlog, promises = worker.backlog, holding.promises
        others = self._others
        if others is not None:
            is_free = is_free and free_s <= self.start_s
        share = 0.0 if is_free else self._share
        bucket_s = backlog.bucket_s(until_s, now_s)
        load_s = holding.load_before_s(bucket_s)
        place = 0 if self._is_alone else bisect_right(promises.buckets_s, bucket_s)
        if place:
            quickest_s, most = self._durations.quickest_s, self._durations.sizes[-1] - self.items
            soonest_s = now_s + TOGETHER * (until_s - now_s)
            for bundle in promises.bundles[max(0, place - ASKED) : place][::-1]:
                if bundle.count > most or bundle.entries[0].is_solo:
                    continue
                due_s = min(bundle.until_s, until_s)
                if due_s < soonest_s:
                    break
                took_s = quickest_s(bundle.count + self.items)
                held_s = share * (due_s - now_s)
                if others is not None and not is_free:
                    held_s = self._reserved_s(1.0, due_s - now_s)
                if from_s + took_s <= due_s and backlog.fits(
                    bundle.bucket_s,
                    due_s,
                    took_s - bundle.cost_s,
                    free_s=free_s + held_s,
                ):
                    return True, bundle
        held_up_s = 0.0 if is_free else self._reserved_s(self._alone, until_s - now_s)
        work_s = self.min_s + load_s
        return backlog.fits(bucket_s, until_s, work_s, free_s=free_s + held_up_s), None
