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
from collections.abc import Sequence
from typing import Literal, Protocol

Spread = Literal["constant", "poisson", "burst", "trace", "listed"]
"""How an open loop spreads its requests over time."""
BURST_PERIOD_S = 0.5
"""From the beginning of one burst to that of the next."""
BURST_S = 0.1
"""How long a burst lasts."""
BURST_FACTOR = 3.0
"""Rate within a burst over the mean rate; between bursts it is half of the mean rate, by these numbers."""
LEAST_OFFSETS = 2
"""Arrivals of a trace: fewer have no rate."""


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
    """Open loop: requests are due by a schedule, whatever becomes of them.

    The rules of `opened` differ in `_next_s` alone: what each draws is kept, so that the same number is
    always due at the same second.
    """

    is_open = True

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self._known_s = array("d")

    def due_s(self, sent: int, _finished: int, _now_s: float) -> float:
        """The same second whenever it is asked for."""
        while len(self._known_s) <= sent:
            self._known_s.append(self._next_s())
        return self._known_s[sent]

    def belonging(self, sent: int, end_s: float) -> int:
        """Those that were due, sent or not."""
        while not self._known_s or self._known_s[-1] <= end_s:
            self._known_s.append(self._next_s())
        return max(sent, bisect.bisect_right(self._known_s, end_s))

    def _next_s(self) -> float:
        """The second after those in `_known_s`."""
        raise NotImplementedError


class Constant(Open):
    """At equal distances, the first at once; they are not summed up, so that no rounding adds up."""

    def __init__(self, rate_per_s: float, connections: int) -> None:
        super().__init__(connections)
        self._rate_per_s = rate_per_s

    def _next_s(self) -> float:
        return len(self._known_s) / self._rate_per_s


class Poisson(Open):
    """At exponentially distributed distances, as of many users who do not know one another.

    Kingman, Poisson Processes, 1993.
    """

    def __init__(self, rate_per_s: float, connections: int, seed: int) -> None:
        super().__init__(connections)
        self._rate_per_s = rate_per_s
        self._random = random.Random(seed)  # noqa: S311  chance of a load, not of a secret

    def _next_s(self) -> float:
        last_s = self._known_s[-1] if self._known_s else 0.0
        return last_s + self._random.expovariate(self._rate_per_s)


class Burst(Open):
    """Poisson arrivals whose rate switches: a burst of `BURST_S` in every `BURST_PERIOD_S`.

    Their mean rate over whole periods is the given one. The seed also draws where in a period the
    schedule begins. Drawn by inversion: unit exponentials are summed up, and the sum is looked up in
    the integral of the rate (Cinlar, Introduction to Stochastic Processes, 1975, section 4.7).
    """

    def __init__(self, rate_per_s: float, connections: int, seed: int) -> None:
        super().__init__(connections)
        self._random = random.Random(seed)  # noqa: S311  chance of a load, not of a secret
        self._high_per_s = BURST_FACTOR * rate_per_s
        in_burst = self._high_per_s * BURST_S
        self._each = rate_per_s * BURST_PERIOD_S
        """Arrivals that are expected in one period, `in_burst` of them in its burst."""
        self._in_burst = in_burst
        self._low_per_s = (self._each - in_burst) / (BURST_PERIOD_S - BURST_S)
        self._begin_s = self._random.uniform(0.0, BURST_PERIOD_S)
        self._expected = self._expected_by(self._begin_s)

    def _next_s(self) -> float:
        self._expected += self._random.expovariate(1.0)
        periods, rest = divmod(self._expected, self._each)
        if rest < self._in_burst:
            inside_s = rest / self._high_per_s
        else:
            inside_s = BURST_S + (rest - self._in_burst) / self._low_per_s
        last_s = self._known_s[-1] if self._known_s else 0.0
        # Where two lie as close as a rounding error, the order is kept.
        return max(last_s, periods * BURST_PERIOD_S + inside_s - self._begin_s)

    def _expected_by(self, second: float) -> float:
        """Arrivals that are expected from the beginning of a period to a second of it."""
        high_s = min(second, BURST_S)
        return self._high_per_s * high_s + self._low_per_s * (second - high_s)


class Traced(Open):
    """As they were recorded, counted from the first, and again and again from there.

    The repetition keeps the trace's mean rate: between the last arrival of one round and the first of the
    next lies the mean distance.
    """

    def __init__(self, offsets_s: Sequence[float], rate_per_s: float, connections: int) -> None:
        super().__init__(connections)
        scale = traced_rate(offsets_s) / rate_per_s
        first_s = offsets_s[0]
        self._round_s = array("d", ((offset - first_s) * scale for offset in offsets_s))
        self._length_s = len(offsets_s) / rate_per_s

    def _next_s(self) -> float:
        rounds, place = divmod(len(self._known_s), len(self._round_s))
        return rounds * self._length_s + self._round_s[place]


class Listed(Open):
    """At exactly these seconds, and no more: the requests of a scenario, each with a place of its own."""

    def __init__(self, offsets_s: Sequence[float], connections: int) -> None:
        super().__init__(connections)
        self._known_s = array("d", offsets_s)

    def _next_s(self) -> float:
        return math.inf


def closed(concurrency: int) -> Closed:
    """The schedule of `concurrency` clients that wait for their answers."""
    return Closed(concurrency)


def opened(
    rate_per_s: float,
    connections: int,
    spread: Spread = "poisson",
    seed: int = 0,
    offsets_s: Sequence[float] = (),
) -> Open:
    """The schedule of so many requests a second on at most so many connections.

    Args:
        rate_per_s: mean rate, above 0.
        connections: most requests in flight; a request that is due while all are busy waits for one,
            and the wait counts.
        spread: a class of this file: `constant`, `poisson`, `burst`, `trace` or `listed`, which takes the
            offsets as they are and looks at no rate.
        seed: of the random distances.
        offsets_s: of a trace or list: seconds of its arrivals, ascending.

    Raises:
        ValueError: a value is out of its range.
    """
    if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
        raise ValueError(f"a rate of {rate_per_s} requests/s: expected more than 0")
    if connections < 1:
        raise ValueError(f"an open loop of {connections} connections: expected at least 1")
    if (spread in {"trace", "listed"}) != bool(offsets_s):
        raise ValueError(f"arrivals {spread!r} with {len(offsets_s)} offsets: a trace has some")
    if spread == "listed":
        return Listed(offsets_s, connections)
    if spread == "constant":
        return Constant(rate_per_s, connections)
    if spread == "poisson":
        return Poisson(rate_per_s, connections, seed)
    if spread == "burst":
        return Burst(rate_per_s, connections, seed)
    if spread == "trace":
        return Traced(offsets_s, rate_per_s, connections)
    raise ValueError(f"arrivals {spread!r}: expected constant, poisson, burst or trace")


def traced_rate(offsets_s: Sequence[float]) -> float:
    """Mean rate of a trace, from its first arrival to its last.

    Raises:
        ValueError: it has no two arrivals at different seconds.
    """
    length_s = offsets_s[-1] - offsets_s[0] if len(offsets_s) >= LEAST_OFFSETS else 0.0
    if length_s <= 0:
        raise ValueError("a trace needs at least two arrivals at different times")
    return (len(offsets_s) - 1) / length_s
