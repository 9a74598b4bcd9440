"""When the parts of a phase begin and end, and how many requests may be sent.

In: a plan, and again and again the time and the counts. Out: `warmup_end_s`, `measured_end_s` and
`limit`. Seconds count from the first send. It knows no socket and no clock.

    warming --(warm-up rule)--> measuring --(seconds over | enough sent | race lost)--> draining
    --(limit finished)--> over
"""

from __future__ import annotations

import math

from tuner.traffic.plan import LoadPlan, Warmup


def is_warm(
    warmup: Warmup, connections: int, *, now_s: float, finished: int, least_round_trips: int
) -> bool:
    """Whether the warm-up is over (the rule stands at `Warmup`).

    Args:
        warmup: the rule.
        connections: how many there are.
        now_s: seconds since the first send.
        finished: requests answered or lost by all connections.
        least_round_trips: the same of the connection that has had the fewest.
    """
    if now_s < warmup.seconds:
        return False
    if least_round_trips >= warmup.round_trips:
        return True
    return now_s >= warmup.cap_s and finished >= warmup.round_trips * connections


class Phase:
    """Where one phase stands."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.arrivals = plan.arrivals
        self.warmup_end_s: float | None = None
        self.measured_end_s: float | None = None
        """With `seconds`, exactly that long after the warm-up; with `requests`, when the last one
        finished."""
        self.limit: float = math.inf
        """Requests that may be sent in all."""
        self._looks = 0

    @property
    def next_s(self) -> float:
        """The next moment that time alone decides; infinite where counts decide."""
        if self.warmup_end_s is None:
            return self.plan.warmup.seconds
        if self.plan.seconds is None or self.measured_end_s is not None:
            return math.inf
        return min(self.warmup_end_s + self.plan.seconds, self.next_look_s)

    @property
    def next_look_s(self) -> float:
        """When the mean so far is to be looked at; infinite where it is not."""
        race = self.plan.race
        if race is None or self.warmup_end_s is None or self.measured_end_s is not None:
            return math.inf
        if self._looks >= len(race.limits_ms):
            return math.inf
        return self.warmup_end_s + race.look_s * (self._looks + 1)

    def look(self, mean_ms: float, *, sent: int) -> None:
        """Take note of the mean round trip up to the look that is due, and end where the race is lost."""
        assert self.plan.race is not None
        at_s, limit_ms = self.next_look_s, self.plan.race.limits_ms[self._looks]
        self._looks += 1
        if mean_ms > limit_ms:
            self.measured_end_s = at_s
            self.limit = self.arrivals.belonging(sent, at_s)

    def advance(self, now_s: float, *, sent: int, finished: int, least_round_trips: int) -> None:
        """Take note of the time and the counts."""
        plan = self.plan
        if self.warmup_end_s is None and is_warm(
            plan.warmup,
            self.arrivals.connections,
            now_s=now_s,
            finished=finished,
            least_round_trips=finished if self.arrivals.is_open else least_round_trips,
        ):
            self.warmup_end_s = now_s
            if plan.requests is not None:
                before = self.arrivals.belonging(0, now_s) if self.arrivals.is_open else finished
                self.limit = max(before + plan.requests, sent)
        if self.warmup_end_s is None or plan.seconds is None or self.measured_end_s is not None:
            return
        if now_s >= self.warmup_end_s + plan.seconds:
            self.measured_end_s = self.warmup_end_s + plan.seconds
            self.limit = self.arrivals.belonging(sent, self.measured_end_s)

    def close(self, last_finish_s: float) -> None:
        """Everything has finished."""
        if self.measured_end_s is None:
            self.measured_end_s = last_finish_s
