"""When requests are due: schedules as pure functions of counts and time.

In: how many requests were sent and how many have finished (answered or lost), and the time. Out:
the second at which the next one is due, or None when only another answer can make one due. Seconds
count from the start of the phase. A schedule knows no clock, socket or payload, so it is tested
without them (the idea is vegeta's `Pacer`).

The client asks whenever a connection is free. The second that a schedule gives is the request's
*intended* time: a schedule that does not wait for answers therefore counts the wait for a free
connection too, and coordinated omission cannot hide a slow server.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol


class Arrivals(Protocol):
    """One schedule; `connections` is the number of requests that may be in flight."""

    @property
    def connections(self) -> int:
        """Connections that the client opens."""

    def due_s(self, sent: int, finished: int, now_s: float) -> float | None:
        """Second at which request number `sent` (from 0) is due.

        Args:
            sent: requests sent so far.
            finished: requests answered or lost so far, at most `sent`.
            now_s: seconds since the start of the phase.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    """Closed loop: `connections` clients that each wait for their answer, then send again."""

    connections: int

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise ValueError(
                f"a closed loop of {self.connections} connections: expected at least 1"
            )

    def due_s(self, sent: int, finished: int, now_s: float) -> float | None:
        """At once while fewer than `connections` requests are in flight."""
        return now_s if sent - finished < self.connections else None


def closed(concurrency: int) -> Closed:
    """The schedule of `concurrency` clients that wait for their answers."""
    return Closed(concurrency)
