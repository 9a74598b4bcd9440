"""A pool's workers, and the policies that route the next batch to one of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MAX_UNFINISHED = 16
"""Maximum number of batches with a far worker, which are lost with it."""


class AdaptiveWorker:
    """A worker with its slots and the expected end of its batches."""

    def __init__(self, id_: int, slots: int, way_s: float = 0.0) -> None:
        self.id = id_
        self.slots = slots
        self.way_s = way_s
        self.unfinished = 0
        self.loaded = False
        self.draining = False
        self.last_turn = 0
        self.expected_s = 0.0
        self.since_s = 0.0

    def starts_s(self, now_s: float) -> float:
        """Return when a new batch would start; an overdue worker counts as free."""
        return max(now_s, self.since_s + self.expected_s) if self.unfinished else now_s

    def free_s(self, now_s: float) -> float:
        """Return when the worker should be free; an overdue worker's delay counts twice."""
        if not self.unfinished:
            return now_s
        due_s = self.since_s + self.expected_s
        return due_s if due_s > now_s else 2.0 * now_s - due_s

    def hangs(self, now_s: float) -> bool:
        """Return whether the worker's batches are taking over twice as long as expected."""
        return bool(self.unfinished) and now_s > self.since_s + 2.0 * self.expected_s

    def take(self, expected_s: float, now_s: float) -> None:
        """Record a batch given to the worker."""
        if not self.unfinished:
            self.since_s = now_s
            self.expected_s = 0.0
        self.unfinished += 1
        self.expected_s += expected_s

    def withdraw(self, expected_s: float) -> None:
        """Remove a batch that could not be sent."""
        self.unfinished -= 1
        self.expected_s -= expected_s

    def finish(self, expected_s: float, now_s: float) -> None:
        """Record the end of a batch."""
        self.unfinished -= 1
        self.expected_s -= expected_s
        self.since_s = now_s

    @property
    def free(self) -> bool:
        """Whether the worker may get a batch now."""
        if not self.loaded or self.draining:
            return False
        return self.unfinished < self.slots or (self.way_s > 0.0 and self._runs_dry())

    def _runs_dry(self) -> bool:
        """Whether a far worker's batches end before a response and the next batch are on the way.

        All but one batch must last as long as both ways together.
        """
        if self.unfinished >= MAX_UNFINISHED:
            return False
        return self.expected_s - self.expected_s / self.unfinished < 2.0 * self.way_s


def least_loaded(workers: Iterable[AdaptiveWorker], now_s: float) -> AdaptiveWorker | None:
    """Return the free worker with the fewest unfinished batches; among equals, the nearest."""
    free = [worker for worker in workers if worker.free]
    if len(free) < 2:
        return free[0] if free else None
    return min(
        free,
        key=lambda worker: (
            worker.unfinished,
            worker.free_s(now_s),
            worker.way_s,
            worker.last_turn,
        ),
    )


def round_robin(workers: Iterable[AdaptiveWorker], _now_s: float) -> AdaptiveWorker | None:
    """Return the free worker that has gone longest without a new batch."""
    best: AdaptiveWorker | None = None
    for worker in workers:
        if worker.free and (best is None or worker.last_turn < best.last_turn):
            best = worker
    return best


ROUTING = {"least-loaded": least_loaded, "round-robin": round_robin}
