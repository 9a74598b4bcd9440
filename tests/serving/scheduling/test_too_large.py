"""What both schedulers do with a batch that is too large for one message: its members go alone, and nothing is lost."""

from __future__ import annotations

import collections
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    Cancelled,
    ModelUp,
    Scheduler,
    Submitted,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

MODEL = ModelId("m", "1")
BATCH_S = {1: 0.001, 2: 0.0015, 4: 0.002, 8: 0.003}
LIMIT = 100


def scheduler_of(policy: str, most: int) -> Scheduler:
    """A scheduler with one model that it may load."""
    settings = ServingSettings().with_changes({"batching.max_size": most})
    if policy == "adaptive":
        return AdaptiveScheduler(MODEL, settings)
    scheduler = ClockworkScheduler.of(settings)
    scheduler.on(ModelUp(MODEL, 1, 0.01, BATCH_S), 0.0)
    return scheduler


@dataclasses.dataclass(kw_only=True)
class Asked:
    """A request, and what became of it."""

    items: int
    size: int
    """Of its frame, which each of its parts takes with it."""
    run: list[int] = dataclasses.field(default_factory=list)
    """Its items that were executed."""
    given_up: bool = False


class Sender:
    """What a dispatcher does: messages of up to `LIMIT`, to workers that answer in order."""

    def __init__(self, scheduler: Scheduler, workers: int, *, answers: bool) -> None:
        self.scheduler = scheduler
        self.answers = answers
        """Whether it is the answers that are too large, so that the batch was run in vain."""
        self.now_s = 0.0
        self.asked: dict[int, Asked] = {}
        self.apart: set[int] = set()
        self.told = collections.Counter[int]()
        self.sent: dict[int, list[Action]] = {number: [] for number in range(workers)}
        for number in self.sent:
            scheduler.on(WorkerUp(number, 2), 0.0)

    def ask(self, items: int, size: int) -> None:
        id_ = len(self.asked) + 1
        self.asked[id_] = Asked(items=items, size=size)
        self.scheduler.on(Submitted(id_, MODEL, items, self.now_s + 30.0), self.now_s)

    def turn(self) -> float | None:
        """One plan, and what follows at once; returns when the next one is due."""
        plan = self.scheduler.plan(self.now_s)
        assert not plan.refusals
        wake_s = plan.wake_at_s
        for action in plan.actions:
            if len(action.parts) > 1:
                assert self.apart.isdisjoint(id_ for id_, _, _ in action.parts), "it goes alone"
        for action in plan.actions:
            if self.answers or not self.is_too_large(action):
                self.sent[action.worker].append(action)
            else:
                self.too_large(action, None)
                wake_s = self.now_s
        return wake_s

    def is_too_large(self, action: Action) -> bool:
        return sum(self.asked[id_].size for id_, _, _ in action.parts) > LIMIT

    def too_large(self, action: Action, times: StageTimes | None) -> None:
        """As the dispatcher: one that is too large alone has its answer at once."""
        ids = {id_ for id_, _, _ in action.parts}
        if len(action.parts) == 1:
            (id_,) = ids
            if not self.asked[id_].given_up:
                self.asked[id_].given_up = True
                self.scheduler.on(Cancelled(id_), self.now_s)
        self.apart |= ids
        self.told.update(ids)
        self.scheduler.on(
            ActionResult(action.id, action.worker, False, times, too_large=True), self.now_s
        )

    def done(self, worker: int) -> None:
        """The worker's first action has ended."""
        action = self.sent[worker].pop(0)
        times = StageTimes(0.0, 0.0, 0.001, 0.0)
        if action.kind is ActionType.INFER and self.is_too_large(action):
            self.too_large(action, times)
            return
        for id_, start, stop in action.parts:
            self.asked[id_].run += range(start, stop)
        self.scheduler.on(ActionResult(action.id, worker, True, times), self.now_s)

    def drain(self) -> None:
        """Until nothing is left to be done; bounded, for nothing may go in circles."""
        for _ in range(20 * sum(one.items + 1 for one in self.asked.values()) + 100):
            wake_s = self.turn()
            busy = [worker for worker, actions in self.sent.items() if actions]
            if busy:
                self.now_s += 0.001
                self.done(busy[0])
            elif wake_s is not None and not self.ended:
                self.now_s = max(self.now_s, wake_s)
            elif self.ended:
                return
        pytest.fail("it goes in circles")

    @property
    def ended(self) -> bool:
        return all(one.given_up or len(one.run) >= one.items for one in self.asked.values())


@pytest.mark.parametrize("policy", ["adaptive", "clockwork"])
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, int(1.2 * LIMIT))), min_size=1, max_size=12
    ),
    pauses=st.sets(st.integers(0, 11)),
    workers=st.integers(1, 3),
    most=st.sampled_from([1, 3, 8]),
    answers=st.booleans(),
)
def test_what_is_too_large_together_goes_alone(
    policy: str,
    requests: list[tuple[int, int]],
    pauses: set[int],
    workers: int,
    most: int,
    answers: bool,
) -> None:
    """Each request that fits a message alone is run whole, once; the others are given up, and nothing waits."""
    sender = Sender(scheduler_of(policy, most), workers, answers=answers)
    for number, (items, size) in enumerate(requests):
        sender.ask(items, size)
        if number in pauses:
            sender.turn()
    sender.drain()
    for one in sender.asked.values():
        assert one.given_up == (one.size > LIMIT)
        if not one.given_up:
            assert sorted(one.run) == list(range(one.items)), "each item is run, and once"
    assert sender.scheduler._queue.items == 0
    for worker in sender.sent:
        while sender.sent[worker]:
            sender.done(worker)


@pytest.mark.parametrize("policy", ["adaptive", "clockwork"])
def test_a_batch_is_not_made_again_as_it_was(policy: str) -> None:
    """Two that are too large together: told so once, and then one after the other."""
    sender = Sender(scheduler_of(policy, 8), 1, answers=False)
    sender.turn()
    while sender.sent[0]:
        sender.done(0)
    for size in (60, 60, 10):
        sender.ask(1, size)
    sender.drain()
    assert max(sender.told.values()) == 1
    assert [one.run for one in sender.asked.values()] == [[0], [0], [0]]
