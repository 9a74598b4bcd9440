"""Laws of the adaptive scheduler, in virtual time, under any order of events."""

import dataclasses

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.adaptive.sizing import POLICIES
from serving.scheduling.interface import (
    MAX_LOSSES,
    ActionResult,
    ActionType,
    Cancelled,
    RejectionReason,
    SettingsChanged,
    Submitted,
    WarmupMeasured,
    WorkerDraining,
    WorkersDown,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

pytestmark = pytest.mark.slow

MODEL = ModelId("m", "1")
FLOWS = ["", "a", "b"]


@dataclasses.dataclass
class Request:
    items: int
    deadline_s: float
    submitted_s: float
    done: int = 0
    losses: int = 0
    level: int = 2
    flow: str = ""
    refused: bool = False
    cancelled: bool = False

    @property
    def over(self) -> bool:
        return self.refused or self.cancelled or self.done == self.items


class SchedulerMachine(RuleBasedStateMachine):
    """Plays dispatcher, workers and clients against one scheduler, and keeps its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.settings = ServingSettings().with_changes(
            {"batching.max_size": 4, "batching.timeout_us": 2000, "scheduling.queue_capacity": 12}
        )
        self.scheduler = AdaptiveScheduler(MODEL, self.settings)
        self.requests: dict[int, Request] = {}
        self.actions: dict[int, object] = {}
        self.loaded: set[int] = set()
        self.draining: set[int] = set()
        self.up: set[int] = set()
        self.slots: dict[int, int] = {}
        self.workers = 0
        self.wake_at_s: float | None = None

    def tell(self, event: object) -> None:
        self.scheduler.on(event, self.now_s)  # type: ignore[arg-type]

    def look(self) -> None:
        plan = self.scheduler.plan(self.now_s)
        for action in plan.actions:
            self.check(action)
            self.actions[action.id] = action
        for refusal in plan.refusals:
            request = self.requests[refusal.id]
            assert not request.over, "refused after it was over"
            request.refused = True
            if refusal.reason in {
                RejectionReason.DEADLINE_IN_QUEUE,
                RejectionReason.DEADLINE_IN_REPLICA,
            }:
                assert request.deadline_s <= self.now_s
            if refusal.reason is RejectionReason.WORKER_LOST:
                assert request.losses > MAX_LOSSES
        self.wake_at_s = plan.wake_at_s

    def check(self, action) -> None:
        assert action.worker in self.up, "sent to a worker that is down"
        assert action.worker not in self.draining, "sent to a draining worker"
        if action.kind is ActionType.LOAD:
            assert action.worker not in self.loaded
            return
        assert action.worker in self.loaded, "sent before the model is loaded"
        held = [a for a in self.actions.values() if a.worker == action.worker]
        assert len(held) < self.slots[action.worker], "more actions than slots"
        sizes = [stop - start for _, start, stop in action.parts]
        assert 0 < sum(sizes) <= self.settings.batching.max_size, "batch over its size"
        for id_, _, _ in action.parts:
            request = self.requests[id_]
            assert not request.over, "executed after it was over"
            assert request.deadline_s > self.now_s, "started after its deadline"
            if request.losses:
                assert len(action.parts) == 1, "a suspect shares a batch"
        for flow in FLOWS:
            places = [
                (request.level, request.deadline_s, id_)
                for id_, _, _ in action.parts
                if (request := self.requests[id_]).flow == flow
            ]
            assert places == sorted(places), "a flow's requests out of order"

    @rule(
        items=st.integers(1, 9) | st.integers(11, 14),
        limit_s=st.sampled_from([0.001, 0.01, 0.5, 30.0]),
        priority=st.sampled_from([0, 0, 0, 1, 3]),
        flow=st.sampled_from(FLOWS),
    )
    def submit(self, items: int, limit_s: float, priority: int, flow: str) -> None:
        id_ = len(self.requests) + 1
        self.requests[id_] = Request(
            items, self.now_s + limit_s, self.now_s, level=priority or 2, flow=flow
        )
        before = self.scheduler._queue.items
        self.tell(Submitted(id_, MODEL, items, self.now_s + limit_s, priority, flow))
        capacity = self.settings.scheduling.queue_capacity
        waiting = self.scheduler._queue.items
        assert waiting <= max(before, capacity), "over the queue's capacity"

    @rule()
    def plan(self) -> None:
        self.look()

    @rule(seconds=st.sampled_from([0.0001, 0.001, 0.003, 0.02, 1.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, with a plan at every wake-up on the way."""
        until_s = self.now_s + seconds
        for _ in range(1000):
            self.look()
            if self.wake_at_s is None or self.wake_at_s > until_s:
                break
            assert self.wake_at_s > self.now_s, "a wake-up that brings nothing"
            self.now_s = self.wake_at_s
        else:
            raise AssertionError("wakes for ever")
        self.now_s = until_s
        self.look()

    @rule(slots=st.integers(1, 3))
    def worker_up(self, slots: int) -> None:
        self.workers += 1
        self.up.add(self.workers)
        self.slots[self.workers] = slots
        self.tell(WorkerUp(self.workers, slots))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def worker_draining(self, data) -> None:
        worker = data.draw(st.sampled_from(sorted(self.up)))
        self.look()
        self.draining.add(worker)
        self.tell(WorkerDraining(worker))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def workers_down(self, data) -> None:
        """One worker or several are lost at once: for a request it is one loss."""
        gone = data.draw(st.sets(st.sampled_from(sorted(self.up)), min_size=1, max_size=3))
        self.look()
        running = []
        for worker in gone:
            self.up.discard(worker)
            held = [action for action in self.actions.values() if action.worker == worker]
            for action in held:
                del self.actions[action.id]
            # What is buffered behind the first was not touched.
            running += [action for action in held if action.kind is ActionType.INFER][:1]
        self.suspect(*running)
        self.tell(WorkersDown(tuple(gone), "killed"))

    @precondition(lambda self: self.actions)
    @rule(data=st.data())
    def result(self, data) -> None:
        action = self.actions.pop(data.draw(st.sampled_from(sorted(self.actions))))
        if action.kind is ActionType.LOAD:
            self.loaded.add(action.worker)
        for id_, start, stop in action.parts:
            request = self.requests[id_]
            if not request.over:
                request.done += stop - start
                assert request.done <= request.items, "executed twice"
        exec_s = data.draw(st.sampled_from([0.0, 0.0005, 0.02, 1.0]))
        self.tell(ActionResult(action.id, action.worker, True, StageTimes(0.0, 0.0, exec_s, 0.0)))

    @precondition(lambda self: any(a.kind is ActionType.INFER for a in self.actions.values()))
    @rule(data=st.data())
    def not_started(self, data) -> None:
        """A replica sends a batch back untouched."""
        batches = [id_ for id_, action in self.actions.items() if action.kind is ActionType.INFER]
        action = self.actions.pop(data.draw(st.sampled_from(sorted(batches))))
        self.suspect(action)
        self.tell(ActionResult(action.id, action.worker, False, None))

    def suspect(self, *actions) -> None:
        for request_id in {id_ for action in actions for id_, _, _ in action.parts}:
            self.requests[request_id].losses += 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.requests)))
        if not self.requests[id_].over:
            self.look()
        if not self.requests[id_].over:
            self.requests[id_].cancelled = True
            self.tell(Cancelled(id_))

    @rule(
        batch_s=st.dictionaries(st.sampled_from([1, 4, 8]), st.sampled_from([0.0005, 0.02, 1.0])),
        cpu=st.sampled_from([None, 2.0]),
    )
    def warmed(self, batch_s: dict[int, float], cpu: float | None) -> None:
        """A worker tells what its warm-up took."""
        self.tell(WarmupMeasured(batch_s, cpu))

    @rule(
        size=st.integers(1, 8),
        timeout_us=st.sampled_from([0, 500, 5000]),
        policy=st.sampled_from(sorted(POLICIES)),
        keep_learned=st.booleans(),
    )
    def settings_changed(self, size: int, timeout_us: int, policy: str, keep_learned: bool) -> None:
        self.settings = self.settings.with_changes(
            {
                "batching.max_size": size,
                "batching.timeout_us": timeout_us,
                "batching.policy": policy,
            }
        )
        self.tell(SettingsChanged(self.settings, keep_learned=keep_learned))

    @invariant()
    def counts_what_waits(self) -> None:
        assert self.scheduler._queue.items >= 0

    def teardown(self) -> None:
        """Everything submitted comes out exactly once when workers answer and time passes."""
        self.worker_up(2)
        for _ in range(400):
            self.look()
            for action in list(self.actions.values()):
                if action.worker not in self.up:
                    continue
                del self.actions[action.id]
                if action.kind is ActionType.LOAD:
                    self.loaded.add(action.worker)
                for id_, start, stop in action.parts:
                    request = self.requests[id_]
                    if not request.over:
                        request.done += stop - start
                self.tell(ActionResult(action.id, action.worker, True, None))
            self.now_s += 0.01
            if all(request.over for request in self.requests.values()) and not self.actions:
                break
        assert all(request.over for request in self.requests.values()), "left hanging"
        self.look()
        assert self.scheduler._queue.items == 0
        kept = (self.scheduler._entries, self.scheduler._batches, self.scheduler._refusals)
        assert not any(kept), "what is over is remembered"


TestSchedulerLaws = SchedulerMachine.TestCase
TestSchedulerLaws.settings = hypothesis_settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
