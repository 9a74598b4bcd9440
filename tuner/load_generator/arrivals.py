"""Arrival schedules as pure functions of request counts and time.

Seconds count from the start of the phase. A schedule returns when the next request is due, or None
if it first needs a response (after vegeta's Pacer). An open loop counts the wait for a free
connection, which avoids coordinated omission.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import random
from array import array
from collections.abc import Sequence
from typing import Literal

Spread = Literal["constant", "poisson", "burst", "trace", "listed"]
BURST_PERIOD_S = 0.5
BURST_S = 0.1
BURST_FACTOR = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Closed loop of `connections` clients that wait for each response."""

    connections: int
    is_open = False

    def due_s(self, sent: int, finished: int, now_s: float) -> float | None:
        """`now_s` while fewer than `connections` requests are in flight."""
        return now_s if sent - finished < self.connections else None

    def belonging(self, sent: int, _end_s: float) -> int:
        """Return `sent`: nothing is due and unsent."""
        return sent


class OpenLoop:
    """Open loop of at most `connections` in flight: requests are due regardless of responses."""

    is_open = True

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self._known_s = array("d")

    def due_s(self, sent: int, _finished: int, _now_s: float) -> float:
        """Second at which request number `sent` (from 0) is due."""
        while len(self._known_s) <= sent:
            self._known_s.append(self._next_s())
        return self._known_s[sent]

    def belonging(self, sent: int, end_s: float) -> int:
        """How many requests of a phase that ends at `end_s` were due, sent or not."""
        while not self._known_s or self._known_s[-1] <= end_s:
            self._known_s.append(self._next_s())
        return max(sent, bisect.bisect_right(self._known_s, end_s))

    def _next_s(self) -> float:
        raise NotImplementedError


class Constant(OpenLoop):
    """Arrivals at equal distances, without the rounding errors of a running sum."""

    def __init__(self, rate_per_s: float, connections: int) -> None:
        super().__init__(connections)
        self._rate_per_s = rate_per_s

    def _next_s(self) -> float:
        return len(self._known_s) / self._rate_per_s


class Poisson(OpenLoop):
    """Poisson arrivals, as of many independent users (Kingman, Poisson Processes, 1993)."""

    def __init__(self, rate_per_s: float, connections: int, seed: int) -> None:
        super().__init__(connections)
        self._rate_per_s = rate_per_s
        self._random = random.Random(seed)  # noqa: S311  chance of a load, not of a secret

    def _next_s(self) -> float:
        last_s = self._known_s[-1] if self._known_s else 0.0
        return last_s + self._random.expovariate(self._rate_per_s)


class Burst(OpenLoop):
    """Poisson arrivals with a burst of `BURST_S` in every `BURST_PERIOD_S`.

    `rate_per_s` is the mean over whole periods. Drawn by inversion: a sum of unit exponentials is
    looked up in the integral of the rate (Cinlar, Introduction to Stochastic Processes, 1975,
    section 4.7).
    """

    def __init__(self, rate_per_s: float, connections: int, seed: int) -> None:
        super().__init__(connections)
        self._random = random.Random(seed)  # noqa: S311  chance of a load, not of a secret
        self._high_per_s = BURST_FACTOR * rate_per_s
        in_burst = self._high_per_s * BURST_S
        self._each = rate_per_s * BURST_PERIOD_S
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
        # Keeps the order of arrivals that are only a rounding error apart.
        return max(last_s, periods * BURST_PERIOD_S + inside_s - self._begin_s)

    def _expected_by(self, second: float) -> float:
        high_s = min(second, BURST_S)
        return self._high_per_s * high_s + self._low_per_s * (second - high_s)


class TraceArrivals(OpenLoop):
    """Recorded arrivals, scaled to `rate_per_s` and repeated at the mean distance."""

    def __init__(self, offsets_s: Sequence[float], rate_per_s: float, connections: int) -> None:
        super().__init__(connections)
        scale = traced_rate(offsets_s) / rate_per_s
        first_s = offsets_s[0]
        self._round_s = array("d", ((offset - first_s) * scale for offset in offsets_s))
        self._length_s = len(offsets_s) / rate_per_s

    def _next_s(self) -> float:
        rounds, place = divmod(len(self._known_s), len(self._round_s))
        return rounds * self._length_s + self._round_s[place]


class ScheduledArrivals(OpenLoop):
    """Arrivals at exactly these seconds."""

    def __init__(self, offsets_s: Sequence[float], connections: int) -> None:
        super().__init__(connections)
        self._known_s = array("d", offsets_s)

    def _next_s(self) -> float:
        return math.inf


def make_open_loop(
    rate_per_s: float,
    connections: int,
    spread: Spread = "poisson",
    seed: int = 0,
    offsets_s: Sequence[float] = (),
) -> OpenLoop:
    """Open loop with at most `connections` in flight.

    Args:
        rate_per_s: mean rate; ignored by `listed`.
        offsets_s: ascending seconds of a trace or list.

    Raises:
        ValueError: a trace without two arrivals at different seconds.
    """
    if spread == "listed":
        return ScheduledArrivals(offsets_s, connections)
    if spread == "trace":
        return TraceArrivals(offsets_s, rate_per_s, connections)
    if spread == "constant":
        return Constant(rate_per_s, connections)
    kind = Poisson if spread == "poisson" else Burst
    return kind(rate_per_s, connections, seed)


def traced_rate(offsets_s: Sequence[float]) -> float:
    """Mean rate of a trace, from first to last arrival.

    Raises:
        ValueError: no two arrivals at different seconds.
    """
    length_s = offsets_s[-1] - offsets_s[0] if offsets_s else 0.0
    if length_s <= 0:
        raise ValueError("a trace needs at least two arrivals at different times")
    return (len(offsets_s) - 1) / length_s
