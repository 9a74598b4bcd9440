"""More load than a model can bear, in virtual time: how much of what it can do is still done in time."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter

import pytest

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    RejectionReason,
    Submitted,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

MODEL = ModelId("m", "1")
DEADLINE_S = 0.08
TRANSIT_S = 0.0003
"""Between gateway and worker, each way."""


class World:
    """One scheduler, its workers and Poisson arrivals; a batch takes `base_s` + `item_s` an item.

    Args:
        sigma: standard deviation of the logarithm of a batch's time over its mean.
        senders: flow and priority -> weight in the load.
    """

    def __init__(
        self,
        *,
        base_s: float,
        item_s: float,
        max_size: int,
        workers: int = 1,
        sigma: float = 0.05,
        senders: dict[tuple[str, int], float] | None = None,
    ) -> None:
        settings = ServingSettings().with_changes({"batching.max_size": max_size})
        self.scheduler = AdaptiveScheduler(MODEL, settings)
        self.capacity_per_s = workers * max_size / (base_s + max_size * item_s)
        self.told: Counter[RejectionReason] = Counter()
        self.refused: Counter[tuple[str, int]] = Counter()
        self.answered: Counter[tuple[str, int]] = Counter()
        """In time."""
        self.seconds = 0.0
        self._base_s, self._item_s, self._sigma = base_s, item_s, sigma
        self._random = random.Random(5)
        self._events: list[tuple[float, int, object]] = []
        self._count = 0
        self._wake_at_s: float | None = None
        self._free_s = dict.fromkeys(range(1, workers + 1), 0.0)
        self._senders = senders or {("", 0): 1.0}
        self._deadline_s: dict[int, float] = {}
        self._sender: dict[int, tuple[str, int]] = {}
        self._refused: set[int] = set()
        for worker in self._free_s:
            self.scheduler.on(WorkerUp(worker, 2), 0.0)
        self._plan(0.0)

    def run(self, load: float, seconds: float) -> None:
        """So many times what it can do, for so long; then to the last answer."""
        at_s = 0.0
        while at_s < seconds:
            at_s += self._random.expovariate(load * self.capacity_per_s)
            self._push(at_s, "arrival")
        self.seconds = seconds
        while self._events:
            now_s, _, what = heapq.heappop(self._events)
            if what == "wake":
                if now_s != self._wake_at_s:
                    continue
                self._wake_at_s = None
            elif what == "arrival":
                self._submit(now_s)
            else:
                self._finish(*what, now_s)  # type: ignore[misc]
            self._plan(now_s)

    @property
    def goodput(self) -> float:
        """Answers in time, over what the model can do."""
        return self.answered.total() / self.seconds / self.capacity_per_s

    def _push(self, at_s: float, what: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, what))

    def _submit(self, now_s: float) -> None:
        id_ = len(self._deadline_s) + 1
        self._deadline_s[id_] = now_s + DEADLINE_S
        weights = self._senders.values()
        sender = flow, priority = self._random.choices([*self._senders], [*weights])[0]
        self._sender[id_] = sender
        submitted = Submitted(id_, MODEL, 1, now_s + DEADLINE_S, priority, flow)
        self.scheduler.on(submitted, now_s)

    def _finish(self, action: Action, took_s: float, now_s: float) -> None:
        times = StageTimes(0.0, 0.0, took_s, 0.0)
        self.scheduler.on(ActionResult(action.id, action.worker, True, times), now_s)
        for id_, _, _ in action.parts:
            if id_ not in self._refused and now_s <= self._deadline_s[id_]:
                self.answered[self._sender[id_]] += 1

    def _plan(self, now_s: float) -> None:
        plan = self.scheduler.plan(now_s)
        for action in plan.actions:
            took_s = 0.0
            if action.kind is ActionType.INFER:
                mean_s = self._base_s + self._item_s * len(action.parts)
                took_s = mean_s * math.exp(self._random.gauss(0.0, self._sigma))
            begins_s = max(now_s + TRANSIT_S, self._free_s[action.worker])
            self._free_s[action.worker] = begins_s + took_s
            self._push(begins_s + took_s + TRANSIT_S, (action, took_s))
        for refusal in plan.refusals:
            self._refused.add(refusal.id)
            self.told[refusal.reason] += 1
            self.refused[self._sender[refusal.id]] += 1
        if plan.wake_at_s is not None and plan.wake_at_s != self._wake_at_s:
            self._wake_at_s = max(now_s, plan.wake_at_s)
            self._push(self._wake_at_s, "wake")


MODELS = {
    "5 ms an item, no batches": {"base_s": 0.0, "item_s": 0.005, "max_size": 1},
    "resnet": {"base_s": 0.0003, "item_s": 0.00044, "max_size": 16},
    "a batch costs most": {"base_s": 0.004, "item_s": 0.0001, "max_size": 32},
    "two workers": {"base_s": 0.002, "item_s": 0.0005, "max_size": 8, "workers": 2},
    "a full batch takes longer than there is": {"base_s": 0.01, "item_s": 0.002, "max_size": 64},
}


@pytest.mark.parametrize("name", MODELS)
def test_twice_the_load_leaves_the_goodput_where_it_was(name: str) -> None:
    """Requests are refused so that batches stay long; hardly any is given up after work was put into it."""
    peak, twice = World(**MODELS[name]), World(**MODELS[name])
    seconds = min(1.5, 2000 / peak.capacity_per_s)  # the worlds' seed is fixed
    peak.run(1.0, seconds=seconds)
    twice.run(2.0, seconds=seconds)
    assert twice.goodput >= 0.95 * peak.goodput
    assert twice.told[RejectionReason.DEADLINE_IN_REPLICA] <= 0.1 * sum(twice.told.values())


@pytest.mark.parametrize("name", [name for name in MODELS if "longer" not in name])
def test_a_load_that_can_be_borne_is_refused_nothing(name: str) -> None:
    """At 70 % of what the model can do nobody is given up for the others' sake."""
    world = World(**MODELS[name])
    world.run(0.7, seconds=1.0)
    assert sum(world.told.values()) == 0


def test_an_urgent_request_is_not_given_up_for_patient_ones() -> None:
    """Its short batch costs those behind it nothing: they have time."""
    scheduler = AdaptiveScheduler(MODEL, ServingSettings().with_changes({"batching.max_size": 8}))
    scheduler.on(WorkerUp(1, 2), 0.0)
    (load,) = scheduler.plan(0.0).actions
    scheduler.on(ActionResult(load.id, 1, True, None), 0.0)
    for size in (1, 8):
        scheduler.profile.observe(size, 0.002 * size)
    scheduler.on(Submitted(1, MODEL, 1, 0.005), 0.0)
    for number in range(2, 12):
        scheduler.on(Submitted(number, MODEL, 1, 30.0), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.refusals == []
    assert [[id_ for id_, _, _ in action.parts] for action in plan.actions] == [
        [1, 2],
        [3, 4, 5, 6, 7, 8, 9, 10],
    ]


SENDERS = {
    "five floods": {(name, 0): 1.0 for name in "abcde"},
    "two levels": {("a", 1): 0.5, ("a", 2): 1.5},
}


@pytest.mark.parametrize("name", ["resnet", "a batch costs most", "two workers"])
@pytest.mark.parametrize("senders", SENDERS)
def test_several_senders_leave_the_goodput_where_it_was(name: str, senders: str) -> None:
    """Twice the load of several applications or priorities is borne as that of one; each gets its share."""
    twice = World(**MODELS[name], senders=SENDERS[senders])
    twice.run(2.0, seconds=0.7)
    assert twice.goodput >= 0.9
    if senders == "two levels":
        assert twice.refused["a", 1] == 0
    else:
        alike = twice.answered.total() / len(SENDERS[senders])
        assert all(abs(count - alike) < 0.1 * alike for count in twice.answered.values())


@pytest.mark.parametrize("name", [name for name in MODELS if "longer" not in name])
def test_a_flood_costs_another_application_nothing(name: str) -> None:
    """One that sends 80 % of its share loses no request to another's overload, which is shed."""
    world = World(**MODELS[name], senders={("flood", 0): 1.6, ("quiet", 0): 0.4})
    world.run(2.0, seconds=0.7)
    assert world.refused["quiet", 0] == 0
    assert world.refused["flood", 0] > 0
    assert world.goodput >= 0.95
