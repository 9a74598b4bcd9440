"""Arrival schedules: when each request is due, in seconds since the start of the phase.

They are modelled on vegeta's Pacer. In an open loop, latency includes the wait for a free
connection, which avoids coordinated omission.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import random
from array import array
from collections.abc import Iterator, Sequence
from typing import Literal

Spread = Literal["constant", "poisson", "burst", "trace", "listed"]
BURST_PERIOD_S = 0.5
BURST_S = 0.1
BURST_FACTOR = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Closed loop of `connections` clients, each waiting for its response."""

    connections: int
    is_open = False

    def due_s(self, sent: int, finished: int, now_s: float) -> float | None:
        """Return `now_s` while fewer than `connections` requests are in flight, otherwise None."""
        return now_s if sent - finished < self.connections else None

    def belonging(self, sent: int, _end_s: float) -> int:
        """Return `sent`, as every request that is due has been sent."""
        return sent

    def after(self, requests: int, finished: int, _now_s: float) -> int:
        """Return how many requests there are in all with so many after those that have finished."""
        return finished + requests


class OpenLoop:
    """Open loop with at most `connections` in flight; requests are due regardless of responses."""

    is_open = True

    def __init__(self, times_s: Iterator[float], connections: int) -> None:
        self.connections = connections
        self._times_s = times_s
        self._known_s = array("d")

    def due_s(self, sent: int, _finished: int, _now_s: float) -> float:
        """Return when request number `sent` (from 0) is due."""
        while len(self._known_s) <= sent:
            self._known_s.append(next(self._times_s))
        return self._known_s[sent]

    def belonging(self, sent: int, end_s: float) -> int:
        """Return how many requests were due by `end_s`, sent or not."""
        while not self._known_s or self._known_s[-1] <= end_s:
            self._known_s.append(next(self._times_s))
        return max(sent, bisect.bisect_right(self._known_s, end_s))

    def after(self, requests: int, _finished: int, now_s: float) -> int:
        """Return how many requests there are in all with so many after those due by `now_s`."""
        return self.belonging(0, now_s) + requests


class DealtOpenLoop:
    """Every k-th arrival of an open loop, for one of k clients."""

    is_open = True

    def __init__(self, whole: OpenLoop, number: int, clients: int) -> None:
        """`number` counts the clients from 0; `whole` has the connections of this one."""
        self.connections = whole.connections
        self._whole, self._number, self._clients = whole, number, clients

    def due_s(self, sent: int, finished: int, now_s: float) -> float:
        """See `OpenLoop.due_s`."""
        return self._whole.due_s(self._number + sent * self._clients, finished, now_s)

    def belonging(self, sent: int, end_s: float) -> int:
        """See `OpenLoop.belonging`."""
        return max(sent, self._own(self._whole.belonging(0, end_s)))

    def after(self, requests: int, finished: int, now_s: float) -> int:
        """See `OpenLoop.after`; `requests` is the number of all clients."""
        return self._own(self._whole.after(requests, finished, now_s))

    def _own(self, count: int) -> int:
        """Return how many of the first `count` arrivals are this client's."""
        return max(0, -((self._number - count) // self._clients))


def _constant(rate_per_s: float) -> Iterator[float]:
    for number in itertools.count():
        yield number / rate_per_s


def _poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield Poisson arrivals, as from many independent users (Kingman, Poisson Processes, 1993)."""
    rng = random.Random(seed)  # noqa: S311  chance of a load, not of a secret
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate_per_s)
        yield at_s


def _burst(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield Poisson arrivals with a burst of `BURST_S` in every `BURST_PERIOD_S`.

    `rate_per_s` is the mean over whole periods. Arrivals invert the integrated rate (Cinlar,
    Introduction to Stochastic Processes, 1975, section 4.7).
    """
    rng = random.Random(seed)  # noqa: S311  chance of a load, not of a secret
    high_per_s = BURST_FACTOR * rate_per_s
    in_burst = high_per_s * BURST_S
    each = rate_per_s * BURST_PERIOD_S
    low_per_s = (each - in_burst) / (BURST_PERIOD_S - BURST_S)
    begin_s = rng.uniform(0.0, BURST_PERIOD_S)
    high_s = min(begin_s, BURST_S)
    expected = high_per_s * high_s + low_per_s * (begin_s - high_s)
    at_s = 0.0
    while True:
        expected += rng.expovariate(1.0)
        periods, rest = divmod(expected, each)
        inside_s = BURST_S + (rest - in_burst) / low_per_s
        if rest < in_burst:
            inside_s = rest / high_per_s
        # Keeps the order of arrivals that are only a rounding error apart.
        at_s = max(at_s, periods * BURST_PERIOD_S + inside_s - begin_s)
        yield at_s


def _trace(offsets_s: Sequence[float], scale: float, length_s: float) -> Iterator[float]:
    round_s = [(offset - offsets_s[0]) * scale for offset in offsets_s]
    for number in itertools.count():
        yield from (number * length_s + offset_s for offset_s in round_s)


def make_open_loop(
    rate_per_s: float,
    connections: int,
    spread: Spread = "poisson",
    seed: int = 0,
    offsets_s: Sequence[float] = (),
) -> OpenLoop:
    """Make an open loop with a mean rate, or with the ascending `offsets_s` of a trace or list."""
    if spread == "listed":
        times_s: Iterator[float] = itertools.chain(offsets_s, itertools.repeat(math.inf))
    elif spread == "trace":
        # The mean distance separates the last arrival from the first.
        scale = traced_rate(offsets_s) / rate_per_s
        times_s = _trace(offsets_s, scale, len(offsets_s) / rate_per_s)
    elif spread == "constant":
        times_s = _constant(rate_per_s)
    else:
        times_s = (_poisson if spread == "poisson" else _burst)(rate_per_s, seed)
    return OpenLoop(times_s, connections)


def traced_rate(offsets_s: Sequence[float]) -> float:
    """Return a trace's mean rate, or raise ValueError unless it has two different times."""
    length_s = offsets_s[-1] - offsets_s[0] if offsets_s else 0.0
    if length_s <= 0:
        raise ValueError("a trace needs at least two arrivals at different times")
    return (len(offsets_s) - 1) / length_s
