"""Fair shares at admission: what a flow that has had its share must leave to others.

Such a flow gets only the spare time of workers, as in trunk reservation (Kelly, Loss Networks,
Annals of Applied Probability 1, 1991). The share is max-min fair and applies only while work is
rejected: if A asks for 4.0 s of work, B for 0.5 s and C for 0.2 s, and 2 s can be admitted, the
share is 1.3 s. It is recomputed after one request per flow on average, or after `ANEW_S`. Pure.
"""

from __future__ import annotations

import dataclasses
import math
import operator

MAX_FLOWS = 256
"""Number of flows beyond which new ones are treated as a single flow."""
_UNNAMED = ""
REMEMBERS_S = 2.0
"""Time constant for the decay of a flow's work; it limits the lead of a new flow."""
FORGOTTEN_S = 16.0
"""Time without requests after which a flow is dropped."""
ANEW_S = 0.05
SCARCE = 0.05
"""Rejected fraction of the requested work below which shares do not apply."""
FIRST_S = 0.5
"""Seconds of work per worker added to the requested work when testing for scarcity."""
BURST = 0.1
ALIKE = 0.98
"""Fraction of its share at which a flow counts as having had it."""
MAX_ROOM = 0.5
"""Maximum fraction of the time until a deadline kept free for another flow's request."""


@dataclasses.dataclass(slots=True, eq=False)
class FlowShare:
    """One flow's requested and admitted work."""

    name: str = ""
    asked_at_s: float = -math.inf
    requested_s: float = 0.0
    had_s: float = 0.0
    reserved_s: float = 0.0
    request_s: float = 0.0
    """Seconds that its last request takes in a batch of its own."""


class Shares:
    """The shares of a pool's flows."""

    def __init__(self) -> None:
        self._flows: dict[str, FlowShare] = {}
        self._requested_s = self._refused_s = 0.0
        self._count = 0
        self._since_s = self._anew_s = 0.0
        self.level_s = math.inf
        """Recent work at which a flow has had its share; infinite while shares do not apply."""
        self.room_s = 0.0
        """Seconds of the largest request by a flow below its share."""
        self.part = 0.0
        self.behind_s = 0.0

    def flow(self, name: str, now_s: float, workers: int) -> FlowShare:
        """Return the flow of a new request."""
        flows = self._flows
        if name not in flows and len(flows) >= MAX_FLOWS:
            name = _UNNAMED
        flow = flows.get(name)
        if flow is None:
            flow = flows[name] = FlowShare(name)
        flow.asked_at_s = now_s
        self._count -= 1
        if self._count < 0 or now_s > self._anew_s:
            self._work_out(now_s, workers)
        return flow

    def record_admitted(self, flow: FlowShare, work_s: float, alone_s: float) -> None:
        """Record an admitted request's work, in the largest batches and in one of its own."""
        flow.had_s += work_s
        flow.requested_s += work_s
        flow.request_s = alone_s
        self._requested_s += work_s

    def record_rejected(self, flow: FlowShare, work_s: float, alone_s: float) -> None:
        """Record work rejected because of other reservations."""
        flow.requested_s += work_s
        flow.request_s = alone_s
        self._requested_s += work_s
        self._refused_s += work_s

    def reserved_places(self, items: int, item_s: float) -> float:
        """Return how many of `items` queue places a flow above its share must leave to others."""
        return BURST * items + max(0.0, self.part * items - self.behind_s / item_s)

    def reserved_s(self, within_s: float) -> float:
        """Return how much of `within_s` a flow above its share must leave to others."""
        room_s = min(self.room_s, MAX_ROOM * within_s)
        return max(room_s, self.part * within_s - self.behind_s)

    def _work_out(self, now_s: float, workers: int) -> None:
        flows = self._flows
        self._count, self._anew_s = len(flows), now_s + ANEW_S
        left = math.exp((self._since_s - now_s) / REMEMBERS_S)
        self._since_s = now_s
        self._requested_s *= left
        self._refused_s *= left
        for flow in flows.values():
            flow.requested_s *= left
            flow.had_s *= left
        self.level_s = math.inf
        if len(flows) == 1:
            return
        for flow in [one for one in flows.values() if one.asked_at_s < now_s - FORGOTTEN_S]:
            del flows[flow.name]
        if self._refused_s > SCARCE * (self._requested_s + FIRST_S * workers):
            self._share(workers)

    def _share(self, workers: int) -> None:
        """Compute the share, and what flows below it need."""
        flows = sorted(self._flows.values(), key=operator.attrgetter("requested_s"))
        left_s, count = sum(flow.had_s for flow in flows), len(flows)
        for flow in flows:
            if flow.requested_s * count >= left_s:
                break
            left_s -= flow.requested_s
            count -= 1
        if not count:
            return
        share_s = left_s / count
        level_s = ALIKE * share_s
        behind = [flow for flow in flows if flow.had_s < level_s]
        if not behind:
            return
        self.level_s = level_s
        self.room_s = max(flow.request_s for flow in behind)
        asked_s = sum(min(flow.requested_s, share_s) for flow in behind)
        self.part = min(1.0, asked_s / (REMEMBERS_S * workers))
        self.behind_s = sum(flow.reserved_s for flow in behind) / workers
