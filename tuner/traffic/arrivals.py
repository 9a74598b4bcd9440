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

import bisect
import dataclasses
import math
import random
from array import array
from typing import Literal, Protocol

Spread = Literal["constant", "poisson"]
"""How an open loop spreads its requests over time."""


class Arrivals(Protocol):
    """One schedule; `connections` is the number of requests that may be in flight."""

    @property
    def connections(self) -> int:
        """Connections that the client opens."""

    @property
    def is_open(self) -> bool:
        """Whether requests are due without regard to answers (open loop)."""

    def due_s(self, sent: int, finished: int, now_s: float) -> float | None:
        """Second at which request number `sent` (from 0) is due.

        Args:
            sent: requests sent so far.
            finished: requests answered or lost so far, at most `sent`.
            now_s: seconds since the start of the phase.
        """

    def belonging(self, sent: int, end_s: float) -> int:
        """Requests of a phase that ends at `end_s`, by when `sent` were sent: those that were due."""


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    """Closed loop: `connections` clients that each wait for their answer, then send again."""

    connections: int
    is_open = False

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise ValueError(
                f"a closed loop of {self.connections} connections: expected at least 1"
            )

    def due_s(self, sent: int, finished: int, now_s: float) -> float | None:
        """At once while fewer than `connections` requests are in flight."""
        return now_s if sent - finished < self.connections else None

    def belonging(self, sent: int, _end_s: float) -> int:
        """Those that were sent: what is due waits for answers."""
        return sent


class Open:
    """Open loop: so many requests a second, whatever becomes of them.

    `constant`: at equal distances, the first at once. `poisson`: at exponentially distributed ones,
    as those of many users who do not know one another are (Kingman, Poisson Processes, 1993).
    """

    is_open = True

    def __init__(self, rate_per_s: float, connections: int, spread: Spread, seed: int) -> None:
        self.connections = connections
        self._rate_per_s = rate_per_s
        self._is_random = spread == "poisson"
        self._random = random.Random(seed)  # noqa: S311  chance of a load, not of a secret
        self._due_s = array("d")

    def due_s(self, sent: int, _finished: int, _now_s: float) -> float:
        """The same second whenever it is asked for."""
        while len(self._due_s) <= sent:
            self._draw()
        return self._due_s[sent]

    def belonging(self, sent: int, end_s: float) -> int:
        """Those that were due, sent or not."""
        while not self._due_s or self._due_s[-1] <= end_s:
            self._draw()
        return max(sent, bisect.bisect_right(self._due_s, end_s))

    def _draw(self) -> None:
        """One arrival more; those of a constant load are not summed up, so that no rounding adds up."""
        known = self._due_s
        if self._is_random:
            last_s = known[-1] if known else 0.0
            known.append(last_s + self._random.expovariate(self._rate_per_s))
        else:
            known.append(len(known) / self._rate_per_s)


def closed(concurrency: int) -> Closed:
    """The schedule of `concurrency` clients that wait for their answers."""
    return Closed(concurrency)


def opened(rate_per_s: float, connections: int, spread: Spread = "poisson", seed: int = 0) -> Open:
    """The schedule of so many requests a second on at most so many connections.

    Args:
        rate_per_s: mean rate, above 0.
        connections: most requests in flight; a request that is due while all are busy waits for one,
            and the wait counts.
        spread: `constant` or `poisson`.
        seed: of the random distances.

    Raises:
        ValueError: a value is out of its range.
    """
    if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
        raise ValueError(f"a rate of {rate_per_s} requests/s: expected more than 0")
    if connections < 1:
        raise ValueError(f"an open loop of {connections} connections: expected at least 1")
    if spread not in {"constant", "poisson"}:
        raise ValueError(f"arrivals {spread!r}: expected constant or poisson")
    return Open(rate_per_s, connections, spread, seed)
