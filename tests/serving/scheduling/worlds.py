"""A scheduler and workers in virtual time, and disturbances that befall them."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Sequence

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.interface import Action, ActionResult, ActionType, Submitted, WorkerUp
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

MODEL = ModelId("m", "1")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request."""

    at_s: float
    within_s: float
    items: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What befalls batches that begin within a time: some of them take longer."""

    from_s: float
    until_s: float
    more_s: float = 0.0
    factor: float = 1.0
    from_items: int = 1
    worker: int | None = None
    """Which one it befalls; None: any."""
    times: int = 1_000_000
    """How many batches it befalls at most."""


class World:
    """A scheduler and workers in virtual time, where a batch takes exactly `base_s` and `item_s` for each item.

    Messages take no time, and a worker runs what it is given in order. With a `lag`, a time and seconds, each
    begins the first batch that it is given after that time so much later, and all others at other moments.
    """

    def __init__(
        self,
        *,
        base_s: float,
        item_s: float,
        workers: int = 1,
        disturbances: Sequence[Disturbance] = (),
        lag: tuple[float, float] = (math.inf, 0.0),
        **knobs: object,
    ) -> None:
        values = {name.replace("__", "."): value for name, value in knobs.items()}
        self.scheduler = AdaptiveScheduler(MODEL, ServingSettings().with_changes(values))
        self._base_s, self._item_s = base_s, item_s
        self._disturbances = disturbances
        self._left_times = [one.times for one in disturbances]
        self._befell_until_s = 0.0
        self._events: list[tuple[float, int, Action, float]] = []
        self._lag = lag
        self._lagged: set[int] = set()
        self._count = 0
        self._free_s = dict.fromkeys(range(1, workers + 1), 0.0)
        self.asks: list[Ask] = []
        self._left: list[int] = []
        self.done_s: dict[int, float] = {}
        """When each request was answered that was."""
        self.refused: set[int] = set()
        for worker in self._free_s:
            self.scheduler.on(WorkerUp(worker, 2), 0.0)
        for action in self.scheduler.plan(0.0).actions:
            self.scheduler.on(ActionResult(action.id, action.worker, True, None), 0.0)

    def took_s(self, items: int) -> float:
        return self._base_s + self._item_s * items

    @property
    def disturbed_until_s(self) -> float:
        """When the last batch ends that something befell, or the time is over in which something still may."""
        pairs = zip(self._disturbances, self._left_times, strict=True)
        return max([self._befell_until_s, *(one.until_s for one, left in pairs if left)])

    def run(self, asks: Iterable[Ask]) -> None:
        """To the last answer; the requests in the order of their times, each taken when it is due."""
        coming = iter(asks)
        ask = next(coming, None)
        wake_s = math.inf
        events = self._events
        while ask is not None or events or wake_s < math.inf:
            now_s = min(
                wake_s,
                events[0][0] if events else math.inf,
                ask.at_s if ask is not None else math.inf,
            )
            while ask is not None and ask.at_s <= now_s:
                self._submit(ask, now_s)
                ask = next(coming, None)
            while events and events[0][0] <= now_s:
                _, _, action, took_s = heapq.heappop(events)
                self._finish(action, took_s, now_s)
            plan = self.scheduler.plan(now_s)
            for action in plan.actions:
                assert action.kind is ActionType.INFER
                self._begin(action, now_s)
            self.refused.update(refusal.id for refusal in plan.refusals)
            assert plan.wake_at_s is None or plan.wake_at_s > now_s
            wake_s = math.inf if plan.wake_at_s is None else plan.wake_at_s

    def in_time(self, id_: int) -> bool:
        if id_ in self.refused or id_ not in self.done_s:
            return False
        ask = self.asks[id_]
        return self.done_s[id_] <= ask.at_s + ask.within_s + 1e-9

    def goodput(self, from_s: float, until_s: float) -> int:
        """Answers in time in a span."""
        return sum(
            from_s <= done_s < until_s and self.in_time(id_) for id_, done_s in self.done_s.items()
        )

    def served(self, from_s: float, until_s: float) -> int:
        """Answers in time to what came in a span."""
        return sum(
            from_s <= ask.at_s < until_s and self.in_time(id_) for id_, ask in enumerate(self.asks)
        )

    def _submit(self, ask: Ask, now_s: float) -> None:
        id_ = len(self.asks)
        self.asks.append(ask)
        self._left.append(ask.items)
        self.scheduler.on(Submitted(id_, MODEL, ask.items, now_s + ask.within_s), now_s)

    def _begin(self, action: Action, now_s: float) -> None:
        items = sum(stop - start for _, start, stop in action.parts)
        begin_s = max(now_s, self._free_s[action.worker])
        lag_from_s, lag_s = self._lag
        if now_s >= lag_from_s and action.worker not in self._lagged:
            self._lagged.add(action.worker)
            begin_s += lag_s
        took_s = self.took_s(items)
        for place, one in enumerate(self._disturbances):
            if (
                one.from_s <= begin_s < one.until_s
                and items >= one.from_items
                and one.worker in (None, action.worker)
                and self._left_times[place]
            ):
                self._left_times[place] -= 1
                took_s = took_s * one.factor + one.more_s
                self._befell_until_s = max(self._befell_until_s, begin_s + took_s)
        self._free_s[action.worker] = begin_s + took_s
        self._count += 1
        heapq.heappush(self._events, (begin_s + took_s, self._count, action, took_s))

    def _finish(self, action: Action, took_s: float, now_s: float) -> None:
        times = StageTimes(0.0, 0.0, took_s, 0.0)
        self.scheduler.on(ActionResult(action.id, action.worker, True, times), now_s)
        for id_, start, stop in action.parts:
            self._left[id_] -= stop - start
            if not self._left[id_]:
                self.done_s[id_] = now_s
