"""Boundaries of a phase, and how many requests may be sent; seconds from the first send.

warming --(warm-up rule)--> measuring --(seconds over | enough sent | race lost)--> draining
--(limit finished)--> over
"""

from __future__ import annotations

import math

from tuner.load_generator.plan import PhasePlan, Warmup

MAX_BEHIND = 0.1


def is_warm(
    warmup: Warmup, connections: int, *, now_s: float, finished: int, min_round_trips: int
) -> bool:
    """Whether the warm-up is over by the rule of `Warmup`.

    `finished` are requests answered or lost, `min_round_trips` the fewest on one connection.
    """
    if now_s < warmup.seconds:
        return False
    if min_round_trips >= warmup.round_trips:
        return True
    return now_s >= warmup.cap_s and finished >= warmup.round_trips * connections


def fell_behind(due: int, more_waiting: int) -> float:
    """Share of due requests by which a server fell behind, or 0.

    The backlog's growth counts if it exceeds `MAX_BEHIND` and three standard deviations (Poisson)
    of the due requests.

    Args:
        due: requests due in the part.
        more_waiting: unanswered requests at its end, less those at its start.
    """
    is_behind = more_waiting > max(MAX_BEHIND * due, 3 * math.sqrt(due))
    return more_waiting / due if is_behind else 0.0


class Phase:
    """Progress of one phase."""

    def __init__(self, plan: PhasePlan) -> None:
        self.plan = plan
        self.arrivals = plan.arrivals
        self.warmup_end_s: float | None = None
        self.measured_end_s: float | None = None
        self.limit: float = math.inf
        self.total: float = math.inf
        """Set to `limit` once the end is due; reaching it ends the phase."""
        self._lasts = False
        self._finished_before = 0
        self._looks = 0
        self.fell_behind = 0.0
        self._begun: tuple[int, int] | None = None

    @property
    def next_s(self) -> float:
        """Next moment that time alone decides; infinite without one."""
        if self.warmup_end_s is None:
            return self.plan.warmup.seconds
        if self.plan.seconds is None or self.measured_end_s is not None:
            return math.inf
        return min(self.warmup_end_s + self.plan.seconds, self.next_look_s)

    @property
    def next_look_s(self) -> float:
        """Time of the next look at the mean; infinite without one."""
        race = self.plan.race
        if race is None or self.warmup_end_s is None or self.measured_end_s is not None:
            return math.inf
        if self._looks >= len(race.limits_ms):
            return math.inf
        return self.warmup_end_s + race.look_s * (self._looks + 1)

    def look(self, mean_ms: float, *, sent: int) -> None:
        """Compare the mean latency with the race's limit, and end a lost race."""
        assert self.plan.race is not None
        at_s, limit_ms = self.next_look_s, self.plan.race.limits_ms[self._looks]
        self._looks += 1
        if mean_ms > limit_ms:
            self._end(at_s, sent)

    def advance(self, now_s: float, *, sent: int, finished: int, min_round_trips: int) -> None:
        """Update the phase with time and counts."""
        plan = self.plan
        if self.warmup_end_s is None and is_warm(
            plan.warmup,
            self.arrivals.connections,
            now_s=now_s,
            finished=finished,
            min_round_trips=finished if self.arrivals.is_open else min_round_trips,
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
            if self._lasts:  # in whole periods of the CPU quota
                seconds = max(seconds, math.floor(10 * (now_s - self.warmup_end_s) + 1e-9) / 10)
            self._end(self.warmup_end_s + seconds, sent)
        self._look_back(now_s, finished)

    def _is_short(self, now_s: float, finished: int) -> bool:
        if self.arrivals.is_open or finished - self._finished_before >= self.plan.answers:
            return False
        assert self.warmup_end_s is not None
        return now_s < self.warmup_end_s + self.plan.most_s

    def _end(self, at_s: float, sent: int) -> None:
        self.measured_end_s = at_s
        self.limit = self.total = self.arrivals.belonging(sent, at_s)

    def _look_back(self, now_s: float, finished: int) -> None:
        """Judge whether the server fell behind, once all measured requests were due."""
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
        """Close the finished phase."""
        if self.measured_end_s is None:
            self.measured_end_s = last_finish_s
