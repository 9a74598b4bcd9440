"""Whether a worker can do a piece of work by a deadline, with all that it has promised: asked in one place.

Pure; times are in seconds on the controller's clock.
"""

from __future__ import annotations

from serving.scheduling.clockwork.holdings import Model, Pool, Worker


class Demand:
    """What a request asks of a worker."""

    __slots__ = (
        "_items",
        "_pool",
        "deadline_s",
        "least_s",
        "now_s",
        "reserve_s",
        "start_s",
        "work_s",
    )

    def __init__(
        self,
        pool: Pool,
        model: Model,
        deadline_s: float,
        work_s: float,
        now_s: float,
        items: int = 1,
    ) -> None:
        self._pool = pool
        self._items = items
        self.deadline_s = deadline_s
        self.work_s = work_s
        """Of an executor, all its items together."""
        self.now_s = now_s
        self.start_s = now_s + pool.parameters.lag_s
        """When a worker could have been told."""
        self.least_s = (
            model.durations.quickest_s(items) if items > 1 else model.durations.worth_s[0]
        )
        """What the batches take at least that answer it."""
        self.reserve_s = pool.reserve.share * (deadline_s - now_s)
        """Of its time, to be kept free."""

    def is_in_time(
        self,
        worker: Worker,
        *,
        free_s: float,
        ready_s: float,
        held_up_s: float,
        load_s: float = 0.0,
    ) -> bool:
        """Whether a worker could do the work in time, and all that it has promised with it.

        Args:
            worker: which.
            free_s: when its executor has done what it was given, and could be told of more.
            ready_s: when the model is there.
            held_up_s: by how much the executor may be held up besides.
            load_s: what it would have to do for the model before.
        """
        if max(free_s, ready_s) + self.least_s > self.deadline_s:
            return False
        return worker.backlog.fits(
            self.deadline_s, self.work_s + load_s, free_s=free_s + held_up_s, now_s=self.now_s
        )

    def by(self, model: Model, deadline_s: float) -> Demand:
        """The same, to be done earlier."""
        return Demand(self._pool, model, deadline_s, self.work_s, self.now_s, self._items)
