"""Whose work the workers do: what a flow that has had its share must leave free for those that have not.

In: what flows ask for and get, in seconds of work. Out: who has had its share, and the time that a worker must have
free besides for one more request of it to be admitted. What was admitted is never dropped for a share: shares are
kept at the door, as telephone exchanges keep lines free for calls that have no other way (trunk reservation: Kelly,
Loss Networks, Annals of Applied Probability 1, 1991).

    asked for of late   A: 4.0 s   B: 0.5 s   C: 0.2 s       of 2.0 s that could be admitted
    the share           1.3 s: B and C get what they ask for, and A what is left

The share is the level up to which all get what they ask for (max-min fairness). Nobody has had it while nearly all
that is asked for is admitted: what a flow leaves unused the others get. Flows that all ask for more get equal work in
the end, for one that is behind is let in before others. Work counts as it is in the largest batches: what is run in
smaller ones, because there is time, costs nobody anything.

A request costs a few steps, and the share is worked out anew after as many requests as there are flows, or after
`ANEW_S`: O(log flows) for each. Clients choose the names, so these are bounded.
Pure; times are in seconds on the controller's clock. Knows nothing of models, workers or deadlines.
"""

from __future__ import annotations

import math

MAX_FLOWS = 256
"""Flows with a share of their own; those beyond share the one without a name, so that names cost nothing."""
_UNNAMED = ""
REMEMBERS_S = 2.0
"""What flows had counts for about so long: a flow that comes is given no more than that before others."""
FORGOTTEN_S = 16.0
"""A flow that has asked for nothing for so long is none."""
ANEW_S = 0.05
"""The share is worked out anew after so long at the latest."""
SCARCE = 0.05
"""Share of what is asked for that is refused, below which there is enough for all."""
FIRST_S = 0.5
"""So many seconds of work are taken to have been asked for and admitted before all: a few refusals tell nothing."""
BURST = 0.1
"""Of the items that may wait, kept for those that come together."""
ALIKE = 0.98
"""Of its share a flow has had enough with so much."""
MOST_ROOM = 0.5
"""Of the time up to a deadline that is kept for one request of others."""


class Flow:
    """What one flow asks for and gets."""

    __slots__ = ("asked_at_s", "asked_s", "had_s", "name", "promised_s", "request_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked_at_s = -math.inf
        """When it asked last."""
        self.asked_s = 0.0
        """Work that it asked for of late."""
        self.had_s = 0.0
        """Work of it that was admitted of late."""
        self.promised_s = 0.0
        """Work of it that waits."""
        self.request_s = 0.0
        """What its last request takes in batches of its own."""


class Shares:
    """The flows of a pool."""

    __slots__ = (
        "_anew_s",
        "_asked_s",
        "_count",
        "_flows",
        "_refused_s",
        "_since_s",
        "behind_s",
        "level_s",
        "part",
        "room_s",
    )

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}
        self._asked_s = self._refused_s = 0.0
        """Work that all have asked for of late, and what of it was refused."""
        self._count = 0
        """Requests until the share is worked out anew."""
        self._since_s = self._anew_s = 0.0
        self.level_s = math.inf
        """Work of late with which a flow has had its share; infinity: there is enough for all."""
        self.room_s = 0.0
        """The largest request of those that have not."""
        self.part = 0.0
        """Of a worker's time, what these are going to ask for."""
        self.behind_s = 0.0
        """What of that waits already, with each worker."""

    def __len__(self) -> int:
        return len(self._flows)

    def flow(self, name: str, now_s: float, workers: int) -> Flow:
        """Who asks now, of so many workers."""
        flows = self._flows
        flow = flows.get(name)
        if flow is None:
            if len(flows) >= MAX_FLOWS:
                name = _UNNAMED
                flow = flows.get(name)
            if flow is None:
                flow = flows[name] = Flow(name)
        flow.asked_at_s = now_s
        self._count -= 1
        if self._count < 0 or now_s > self._anew_s:
            self._work_out(now_s, workers)
        return flow

    def admitted(self, flow: Flow, work_s: float, alone_s: float) -> None:
        """What it asked for was admitted: so much work in the largest batches, and in batches of its own."""
        flow.had_s += work_s
        flow.asked_s += work_s
        flow.request_s = alone_s
        self._asked_s += work_s

    def refused(self, flow: Flow, work_s: float, alone_s: float) -> None:
        """It was refused, and what was promised to others stood in its way."""
        flow.asked_s += work_s
        flow.request_s = alone_s
        self._asked_s += work_s
        self._refused_s += work_s

    def kept(self, items: int, item_s: float) -> float:
        """Of so many items that may wait, those that one that has had its share leaves to others.

        An item takes so long.
        """
        return BURST * items + max(0.0, self.part * items - self.behind_s / item_s)

    def held_s(self, within_s: float) -> float:
        """Seconds up to a deadline that is so far, which one that has had its share leaves to others."""
        room_s = min(self.room_s, MOST_ROOM * within_s)
        return max(room_s, self.part * within_s - self.behind_s)

    def _work_out(self, now_s: float, workers: int) -> None:
        """What the share is; what is old counts less."""
        flows = self._flows
        self._count, self._anew_s = len(flows), now_s + ANEW_S
        left = math.exp((self._since_s - now_s) / REMEMBERS_S)
        self._since_s = now_s
        self._asked_s *= left
        self._refused_s *= left
        for flow in flows.values():
            flow.asked_s *= left
            flow.had_s *= left
        self.level_s = math.inf
        if len(flows) == 1:
            return
        for flow in [one for one in flows.values() if one.asked_at_s < now_s - FORGOTTEN_S]:
            del flows[flow.name]
        if self._refused_s > SCARCE * (self._asked_s + FIRST_S * workers):
            self._share(workers)

    def _share(self, workers: int) -> None:
        """As much as each can get of what all have got."""
        flows = sorted(self._flows.values(), key=_asked_s)
        left_s, count = sum(flow.had_s for flow in flows), len(flows)
        for flow in flows:
            if flow.asked_s * count >= left_s:
                break
            left_s -= flow.asked_s
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
        asked_s = sum(min(flow.asked_s, share_s) for flow in behind)
        self.part = min(1.0, asked_s / (REMEMBERS_S * workers))
        self.behind_s = sum(flow.promised_s for flow in behind) / workers


def _asked_s(flow: Flow) -> float:
    return flow.asked_s
