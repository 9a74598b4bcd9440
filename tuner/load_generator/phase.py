"""Boundaries of a phase, in seconds since its first send, and how many requests it may send.

warming -> measuring -> draining (seconds over, enough sent, or race lost) -> over
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.load_generator.plan import PhasePlan, Warmup

MAX_BEHIND = 0.1
BATCH = 5
MIN_BATCHES, MAX_BATCHES = 8, 40
LOOK_S = 0.1


def is_warm(
    warmup: Warmup, connections: int, *, now_s: float, finished: int, min_round_trips: int
) -> bool:
    """Whether the warm-up is over by the rules in `Warmup`; `finished` includes lost requests."""
    if now_s < warmup.seconds:
        return False
    if min_round_trips >= warmup.round_trips:
        return True
    return now_s >= warmup.cap_s and finished >= warmup.round_trips * connections


def measured_s(plan: PhasePlan, enough_s: float) -> float:
    """Return the seconds to measure if there are enough answers after `enough_s`.

    A longer measured part ends with a whole period of the CPU quota, after the last answer that it
    waited for.
    """
    assert plan.seconds is not None
    periods = math.ceil(10 * enough_s - 1e-9)
    return max(plan.seconds, min(periods / 10, plan.most_s))


def fell_behind(due: int, more_waiting: int) -> float:
    """Return the share of the due requests by which a server fell behind, or 0.

    The backlog's growth, `more_waiting`, counts only above `MAX_BEHIND` and three Poisson standard
    deviations of the due requests.
    """
    is_behind = more_waiting > max(MAX_BEHIND * due, 3 * math.sqrt(due))
    return more_waiting / due if is_behind else 0.0


class Phase:
    """Progress of one phase."""

    def __init__(self, plan: PhasePlan) -> None:
        self.plan = plan
        self.arrivals = plan.arrivals
        self.is_warm = False
        self.begins_s = 0.0 if plan.share is None else math.inf
        """Time from which it measures, once it is warm; several clients are told a common one."""
        self.warmup_end_s: float | None = None
        self.measured_end_s: float | None = None
        self.limit: float = math.inf
        self.total: float = math.inf
        """Total number of requests: `limit` once the end is known, infinite before."""
        self.has_enough = False
        """Whether the measured part need not wait for more answers."""
        self.ends_s = math.inf
        """Time at which the measured part ends, once known; several clients are told a common one."""
        self._finished_before = 0
        self._looks = 0
        self.fell_behind = 0.0
        self._begun: tuple[int, int] | None = None

    @property
    def next_s(self) -> float:
        """Next time at which the phase advances regardless of requests, or infinity."""
        if self.warmup_end_s is None:
            return max(self.plan.warmup.seconds, self.begins_s)
        return math.inf if self.measured_end_s is not None else min(self.ends_s, self.next_look_s)

    @property
    def next_look_s(self) -> float:
        """Time of the next look at the mean, or infinity."""
        race = self.plan.race
        is_measuring = self.warmup_end_s is not None and self.measured_end_s is None
        if race is None or not is_measuring or self._looks >= len(race.limits_ms):
            return math.inf
        assert self.warmup_end_s is not None
        return self.warmup_end_s + race.look_s * (self._looks + 1)

    def look(self, mean_ms: float, *, sent: int) -> None:
        """End the measured part if the mean latency exceeds the race's limit."""
        assert self.plan.race is not None
        at_s, limit_ms = self.next_look_s, self.plan.race.limits_ms[self._looks]
        self._looks += 1
        if mean_ms > limit_ms:
            self._end(at_s, sent)

    def advance(self, now_s: float, *, sent: int, finished: int, min_round_trips: int) -> None:
        """Advance the phase to the given time and counts."""
        plan = self.plan
        self.is_warm = self.is_warm or is_warm(
            plan.warmup,
            self.arrivals.connections,
            now_s=now_s,
            finished=finished,
            min_round_trips=finished if self.arrivals.is_open else min_round_trips,
        )
        if self.warmup_end_s is None and self.is_warm and now_s >= self.begins_s:
            self._begin(now_s if plan.share is None else self.begins_s, sent, finished)
        if self.warmup_end_s is None:
            return
        if plan.seconds is not None and self.measured_end_s is None:
            self._count(now_s, finished)
            if now_s < self.ends_s:
                return
            self._end(self.ends_s, sent)
        self._look_back(now_s, finished)

    def _begin(self, at_s: float, sent: int, finished: int) -> None:
        plan = self.plan
        self.warmup_end_s = at_s
        self._finished_before = finished
        if plan.requests is not None:
            self.limit = self.total = max(self.arrivals.after(plan.requests, finished, at_s), sent)
        if self.arrivals.is_open:
            self._begun = (self.arrivals.belonging(sent, at_s), finished)
            if plan.seconds is not None:
                self.limit = self.arrivals.belonging(sent, at_s + plan.seconds)

    def _count(self, now_s: float, finished: int) -> None:
        plan = self.plan
        assert self.warmup_end_s is not None
        if self.has_enough:
            return
        after_s = now_s - self.warmup_end_s if plan.waits_for_answers else 0.0
        counted = finished - self._finished_before
        self.has_enough = (
            not plan.waits_for_answers or counted >= plan.answers or after_s >= plan.most_s
        )
        if self.has_enough and (plan.share is None or not plan.waits_for_answers):
            self.ends_s = self.warmup_end_s + measured_s(plan, after_s)

    def _end(self, at_s: float, sent: int) -> None:
        self.measured_end_s = at_s
        self.limit = self.total = self.arrivals.belonging(sent, at_s)

    def _look_back(self, now_s: float, finished: int) -> None:
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
        """Record the end of a finished phase."""
        if self.measured_end_s is None:
            self.measured_end_s = last_finish_s


class Settling:
    """Wait at the end of a warm-up until latencies have settled.

    They have settled if dropping at most the first half minimises the marginal standard error
    (MSER-5: White, Simulation 69:323, 1997).
    """

    def __init__(self, start_s: float, max_s: float) -> None:
        self._start_s, self._longest_s = start_s, max_s
        self._look_s = 0.0
        self._has_settled = False

    def is_waiting(
        self, now_s: float, intended_s: Sequence[float], finished_s: Sequence[float]
    ) -> bool:
        """Whether the warm-up continues, given all requests so far in order of completion."""
        if not self._longest_s:
            return False
        if not self._start_s <= now_s < self._start_s + self._longest_s:
            return now_s < self._start_s
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            took_s = [end - begin for end, begin in zip(finished_s, intended_s, strict=True)]
            self._has_settled = has_settled(took_s)
        return not self._has_settled


def has_settled(took: Sequence[float]) -> bool:
    """Whether latencies, in order of completion, are steady after their first half."""
    size = max(BATCH, len(took) // MAX_BATCHES)
    count = len(took) // size
    if count < MIN_BATCHES:
        return False
    means = [sum(took[size * place : size * (place + 1)]) / size for place in range(count)]
    return beginning(means) <= count // 2


def beginning(means: Sequence[float]) -> int:
    """Return how many initial values, at most three quarters, to drop for the smallest error."""
    best, least = 0, float("inf")
    total = squares = 0.0
    for place in range(len(means) - 1, -1, -1):
        total += means[place]
        squares += means[place] ** 2
        kept = len(means) - place
        if 4 * kept < len(means) or kept < 2:
            continue
        error = max(0.0, squares - total**2 / kept) / kept**2
        if error <= least:
            best, least = place, error
    return best
