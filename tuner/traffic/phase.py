"""When the parts of a phase begin and end, and how many requests may be sent.

In: a plan, and again and again the time and the counts. Out: `warmup_end_s`, `measured_end_s` and
`limit`. Seconds count from the first send. It knows no socket and no clock.

    warming --(warm-up rule)--> measuring --(seconds over | enough sent | race lost)--> draining
    --(limit finished)--> over
"""

from __future__ import annotations

import math

from tuner.traffic.plan import LoadPlan, Warmup

MOST_BEHIND = 0.1
"""Of the requests that were due: a server that falls behind by more is overloaded."""


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


def fell_behind(due: int, more_waiting: int) -> float:
    """By which share of the requests that were due a server fell behind; 0 where it kept up.

    Of a server that keeps up about as many requests have no answer at the end of a part as at its
    beginning. What is counted as falling behind is more than a tenth of what was due, and more than three
    standard deviations of such a number (Poisson), so that a few requests decide nothing.

    Args:
        due: requests that were due in the part.
        more_waiting: requests without an answer at its end, less those at its beginning.
    """
    is_behind = more_waiting > max(MOST_BEHIND * due, 3 * math.sqrt(due))
    return more_waiting / due if is_behind else 0.0


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
        """Requests that may be sent in all: none that is due after the end of a timed open loop, however
        late the clock is looked at."""
        self.total: float = math.inf
        """`limit`, once it is time to end: with so many finished the phase is over."""
        self._lasts = False
        """Whether the measured part has gone on beyond its seconds."""
        self._finished_before = 0
        """Requests that had finished by the end of the warm-up."""
        self._looks = 0
        self.fell_behind = 0.0
        """Share of what was due by which the server fell behind in the measured part of an open loop, from
        its end on."""
        self._begun: tuple[int, int] | None = None
        """Requests due by the end of the warm-up, and those finished by then; None once it was looked at."""

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
            self._end(at_s, sent)

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
            self._finished_before = finished
            if plan.requests is not None:
                before = self.arrivals.belonging(0, now_s) if self.arrivals.is_open else finished
                self.limit = self.total = max(before + plan.requests, sent)
            if self.arrivals.is_open:
                self._begun = (self.arrivals.belonging(sent, now_s), finished)
                if plan.seconds is not None:
                    self.limit = self.arrivals.belonging(sent, now_s + plan.seconds)
        if self.warmup_end_s is None:
            return
        if plan.seconds is not None and self.measured_end_s is None:
            if now_s < self.warmup_end_s + plan.seconds:
                return
            if self._is_short(now_s, finished):
                self._lasts = True
                return
            seconds = plan.seconds
            if self._lasts:  # whole periods of the CPU quota
                seconds = max(seconds, math.floor(10 * (now_s - self.warmup_end_s) + 1e-9) / 10)
            self._end(self.warmup_end_s + seconds, sent)
        self._look_back(now_s, finished)

    def _is_short(self, now_s: float, finished: int) -> bool:
        """Whether a measured part goes on for the answers that it lacks."""
        if self.arrivals.is_open or finished - self._finished_before >= self.plan.answers:
            return False
        assert self.warmup_end_s is not None
        return now_s < self.warmup_end_s + self.plan.most_s

    def _end(self, at_s: float, sent: int) -> None:
        """The measured part is over; what was due by then belongs to it."""
        self.measured_end_s = at_s
        self.limit = self.total = self.arrivals.belonging(sent, at_s)

    def _look_back(self, now_s: float, finished: int) -> None:
        """Whether the server fell behind, as soon as all that is measured was due."""
        if self._begun is None or self.limit < 1:
            return
        last_due_s = self.arrivals.due_s(int(self.limit) - 1, finished, now_s)
        if last_due_s is None or last_due_s > now_s:
            return
        due_before, finished_before = self._begun
        self._begun = None
        due = int(self.limit) - due_before
        waiting = (int(self.limit) - finished) - (due_before - finished_before)
        self.fell_behind = fell_behind(due, waiting) if due > 0 else 0.0

    def close(self, last_finish_s: float) -> None:
        """Everything has finished."""
        if self.measured_end_s is None:
            self.measured_end_s = last_finish_s
