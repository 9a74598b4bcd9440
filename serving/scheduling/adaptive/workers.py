"""Workers of a pool as the scheduler sees them, and the choice of the one that takes the next batch.

Late binding: a batch is bound to a worker only when that worker has a free slot. Pure;
`routing.policy` names the choice.
"""

from __future__ import annotations

from collections.abc import Iterable


class Worker:
    """State of one worker."""

    __slots__ = (
        "draining",
        "expected_s",
        "id",
        "last_turn",
        "loaded",
        "since_s",
        "slots",
        "unfinished",
    )

    def __init__(self, id_: int, slots: int) -> None:
        self.id = id_
        self.slots = slots
        self.unfinished = 0
        """INFER actions that it holds."""
        self.loaded = False
        self.draining = False
        self.last_turn = 0
        """Serial number of the last batch that it got."""
        self.expected_s = 0.0
        """Time that what it holds is expected to take, together."""
        self.since_s = 0.0
        """When it began to work on that."""

    def starts_s(self, now_s: float) -> float:
        """When it gets to a batch that it is given now, if it is done when it should be, or at once."""
        return max(now_s, self.since_s + self.expected_s) if self.unfinished else now_s

    def free_s(self, now_s: float) -> float:
        """When others can count on it: one that is overdue may hang, and is taken to be as late again."""
        if not self.unfinished:
            return now_s
        due_s = self.since_s + self.expected_s
        return due_s if due_s > now_s else 2.0 * now_s - due_s

    def hangs(self, now_s: float) -> bool:
        """Whether what it holds has taken twice as long as it should have."""
        return bool(self.unfinished) and now_s > self.since_s + 2.0 * self.expected_s

    def take(self, expected_s: float, now_s: float) -> None:
        """It is given a batch."""
        if not self.unfinished:
            self.since_s = now_s
            self.expected_s = 0.0
        self.unfinished += 1
        self.expected_s += expected_s

    def withdraw(self, expected_s: float) -> None:
        """A batch that it was given could not be sent."""
        self.unfinished -= 1
        self.expected_s -= expected_s

    def finish(self, expected_s: float, now_s: float) -> None:
        """A batch that was expected to take so long is done; the next one begins."""
        self.unfinished -= 1
        self.expected_s -= expected_s
        self.since_s = now_s

    @property
    def free(self) -> bool:
        """Whether it may get a batch now."""
        return self.loaded and not self.draining and self.unfinished < self.slots


def least_loaded(workers: Iterable[Worker], now_s: float) -> Worker | None:
    """The free worker with the fewest batches; among equals the one that gets to the next one soonest."""
    return min(
        (worker for worker in workers if worker.free),
        key=lambda worker: (worker.unfinished, worker.free_s(now_s), worker.last_turn),
        default=None,
    )


def round_robin(workers: Iterable[Worker], _now_s: float) -> Worker | None:
    """The free worker whose last batch is longest ago, however many it holds."""
    best: Worker | None = None
    for worker in workers:
        if worker.free and (best is None or worker.last_turn < best.last_turn):
            best = worker
    return best


ROUTING = {"least-loaded": least_loaded, "round-robin": round_robin}
