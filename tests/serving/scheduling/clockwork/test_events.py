"""The clockwork scheduler, event by event: models that come and go, workers that are lost, settings that change."""

from __future__ import annotations

import math

import pytest

from serving.deployment.dispatch.request_table import error_for
from serving.scheduling.clockwork.model_queue import PendingRequest
from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.rates import (
    FIRST_MARGIN,
    FIRST_S,
    REMEMBERS_S,
    STEP,
    AdmissionMargin,
    Rate,
)
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import (
    BACKGROUND,
    Action,
    ActionResult,
    ActionType,
    Cancelled,
    Event,
    ModelDown,
    ModelUp,
    Profiled,
    Rejection,
    RejectionReason,
    SettingsChanged,
    Submitted,
    WorkerDraining,
    WorkersDown,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

LOAD_S, BATCH_S = 0.01, {1: 0.001, 2: 0.0015, 4: 0.002, 8: 0.003}
TOOK = StageTimes(0.0, 0.0, 0.001, 0.0)


def id_of(name: str) -> ModelId:
    return ModelId(name, "1")


class Bench:
    """A scheduler whose clock is a variable, and what it has planned."""

    def __init__(self, *models: str, workers: int = 1, pages: int | None = None, **changes: object):
        settings = ServingSettings().with_changes({"scheduling.policy": "clockwork", **changes})
        self.scheduler = ClockworkScheduler.of(settings)
        self.now_s = 100.0
        self.ids = 0
        self.actions: list[Action] = []
        self.refusals: list[Rejection] = []
        for name in models:
            self.model_up(name)
        for worker in range(1, workers + 1):
            self.on(WorkerUp(worker, 2, pages))

    def model_up(self, name: str) -> None:
        self.on(ModelUp(id_of(name), 1, LOAD_S, BATCH_S))

    def on(self, event: Event) -> None:
        """Tell an event, and keep what follows."""
        self.scheduler.on(event, self.now_s)
        plan = self.scheduler.plan(self.now_s)
        self.actions += plan.actions
        self.refusals += plan.refusals

    def ask(self, name: str, *, within_s: float = 5.0, priority: int = 2) -> int:
        self.ids += 1
        self.on(Submitted(self.ids, id_of(name), 1, self.now_s + within_s, priority))
        return self.ids

    def taken(self) -> list[Action]:
        """What was planned since it was last asked for."""
        found, self.actions = self.actions, []
        return found

    def done(self, action: Action, *, ok: bool = True, times: StageTimes | None = TOOK) -> None:
        self.now_s += 0.001
        self.on(ActionResult(action.id, action.worker, ok, times))

    def load(self, name: str) -> None:
        """Have a model in memory, by a request for it."""
        self.ask(name)
        while found := self.taken():
            for action in found:
                self.done(action)


def test_a_model_is_loaded_once_and_then_run() -> None:
    """A LOAD, an INFER when that has ended, and from then on INFERs alone."""
    bench = Bench("a")
    bench.ask("a")
    (load,) = bench.taken()
    assert (load.kind, load.model) == (ActionType.LOAD, id_of("a"))
    bench.done(load)
    (infer,) = bench.taken()
    assert (infer.kind, infer.parts) == (ActionType.INFER, [(1, 0, 1)])
    bench.done(infer)
    bench.ask("a")
    assert [action.kind for action in bench.taken()] == [ActionType.INFER]
    assert not bench.refusals


@pytest.mark.parametrize("ahead_ms", [0.1, 0.5, 1000.0])
def test_what_is_free_is_given_work_however_short_the_schedule_ahead_is(ahead_ms: float) -> None:
    """Also where a message takes longer than that."""
    bench = Bench("a", **{"clockwork.schedule_ahead_ms": ahead_ms})
    bench.load("a")
    bench.ask("a")
    assert [action.kind for action in bench.taken()] == [ActionType.INFER]


def test_a_model_refused_for_a_stall_is_never_predicted_to_take_longer() -> None:
    """What is doubted is worth less each time; a profile longer than what was measured does not come back."""
    bench = Bench("a")
    bench.load("a")
    (model,) = bench.scheduler._pool.models.values()
    before_s = model.durations.estimate_s[0], model.load.estimate_s
    for _ in range(5):
        bench.now_s += 1.0
        bench.ask("a", within_s=1e-4)
    assert len(bench.refusals) == 5
    assert model.durations.estimate_s[0] <= before_s[0]
    assert model.load.estimate_s <= before_s[1] < 1.1 * LOAD_S


def test_a_batch_of_before_smaller_batches_were_set_still_counts() -> None:
    """What it took tells nothing of sizes that are made now; its requests are answered."""
    bench = Bench("a")
    bench.load("a")
    for _ in range(9):
        bench.ask("a", within_s=0.5)
    first = bench.taken()
    smaller = ServingSettings().with_changes({"batching.max_size": 2})
    bench.on(SettingsChanged(smaller, keep_learned=False))
    for action in first:
        bench.done(action)
    while found := bench.taken():
        for action in found:
            assert sum(stop - start for _, start, stop in action.parts) <= 2
            bench.done(action)
    assert not bench.refusals
    assert bench.scheduler._queue.items == 0


def test_a_model_that_was_measured_anew_keeps_who_waits() -> None:
    """Under other limits actions take other times; the queue goes on, and batches follow the new profile."""
    bench = Bench("a")
    bench.load("a")
    asked = [bench.ask("a", within_s=0.5) for _ in range(9)]
    running = bench.taken()
    slower = {size: 10 * took_s for size, took_s in BATCH_S.items()}
    bench.on(Profiled(id_of("a"), 10 * LOAD_S, slower))
    bench.on(Profiled(id_of("nobody"), LOAD_S, BATCH_S))
    (model,) = bench.scheduler._pool.models.values()
    expected_s = 1.1 * 10 * BATCH_S[1]  # clockwork.duration_margin
    assert model.durations.estimate_s[0] == pytest.approx(expected_s)
    assert model.load.estimate_s == pytest.approx(1.1 * 10 * LOAD_S)
    run = {id_ for action in running for id_, _, _ in action.parts}
    for action in running:
        bench.done(action)
    while found := bench.taken():
        for action in found:
            run |= {id_ for id_, _, _ in action.parts}
            bench.done(action)
    assert run == set(asked)
    assert not bench.refusals
    bench.on(Profiled(id_of("a"), LOAD_S, slower))
    bench.ask("a", within_s=0.9 * expected_s)
    assert [refusal.reason for refusal in bench.refusals] == [RejectionReason.CANNOT_FINISH]


def test_a_request_of_several_items_takes_as_long_as_all_of_them() -> None:
    """Behind a load there is time for one item (a millisecond), not for eight (three)."""
    within_s = 0.0325
    for items, is_admitted in ((1, True), (8, False)):
        bench = Bench("a")
        bench.on(Submitted(1, id_of("a"), items, bench.now_s + within_s, 2))
        assert bool(bench.refusals) is not is_admitted


def test_what_was_admitted_is_dropped_as_too_late_not_refused() -> None:
    """Its batch missed its window, and there is no time for another one: who asks is told that it was admitted."""
    bench = Bench("a")
    bench.load("a")
    bench.ask("a", within_s=0.1)
    (infer,) = bench.taken()
    bench.now_s += 0.0985
    bench.done(infer, ok=False, times=StageTimes(0.0985, 0.0, 0.0, 0.0))
    assert [refusal.reason for refusal in bench.refusals] == [RejectionReason.DEADLINE_UNREACHABLE]
    assert not bench.taken()


@pytest.mark.parametrize("too_large", [True, False])
def test_what_takes_long_to_a_worker_gets_there(too_large: bool) -> None:
    """It goes alone then, and may begin as late as its deadline allows: large messages miss the usual windows."""
    bench = Bench("a", **{"clockwork.window_ms": 50.0})
    bench.load("a")
    first, second = bench.ask("a", within_s=1.0), bench.ask("a", within_s=2.0)
    for _ in range(1 if too_large else 2):
        for action in bench.taken():
            assert action.latest_s < bench.now_s + 0.1
            result = ActionResult(action.id, action.worker, False, TOOK, too_large=too_large)
            bench.scheduler.on(result, bench.now_s)
        bench.now_s += 0.1
        bench.on(Cancelled(0))
    found = bench.taken()
    assert [action.parts for action in found] == [[(first, 0, 1)], [(second, 0, 1)]]
    assert all(action.latest_s > bench.now_s + 0.5 for action in found)
    assert not bench.refusals


def test_a_model_that_comes_when_another_has_gone_is_itself() -> None:
    """Workers hold models by what they are, not by how many there were."""
    bench = Bench("a", "b", "c")
    for name in "abc":
        bench.load(name)
    bench.on(ModelDown(id_of("a")))
    bench.model_up("d")
    bench.taken()
    bench.ask("d")
    assert [(one.kind, one.model) for one in bench.taken()] == [(ActionType.LOAD, id_of("d"))]
    bench.ask("c")
    assert not bench.refusals


def test_a_model_may_be_loaded_anew_before_the_one_of_before_is_unloaded() -> None:
    """It came back while its last batch ran: whoever names models to workers must tell the two apart."""
    bench = Bench("a")
    bench.load("a")
    bench.ask("a")
    (infer,) = bench.taken()
    bench.on(ModelDown(id_of("a")))
    bench.model_up("a")
    bench.ask("a")
    bench.done(infer)
    assert [action.kind for action in bench.taken()] == [ActionType.LOAD, ActionType.UNLOAD]


def test_nothing_is_loaded_for_a_model_that_has_gone() -> None:
    """Its batch was with a worker that is lost: the request is refused, though another worker is idle."""
    bench = Bench("a", workers=2)
    bench.load("a")
    asked = bench.ask("a")
    (infer,) = bench.taken()
    bench.on(ModelDown(id_of("a")))
    bench.on(WorkersDown((infer.worker,), "lost"))
    assert all(action.kind is ActionType.UNLOAD for action in bench.taken())
    assert bench.refusals == [Rejection(asked, RejectionReason.CANNOT_LOAD, "")]


def test_nothing_is_waited_for_on_a_worker_that_is_lost() -> None:
    """When no request is left, nobody looks at the deadlines of what it was given."""
    bench = Bench("a")
    bench.load("a")
    asked = bench.ask("a")
    (infer,) = bench.taken()
    bench.on(WorkersDown((infer.worker,), "lost"))
    bench.on(Cancelled(asked))
    bench.now_s += 4.9  # past the latest start, before the deadline
    assert bench.scheduler.plan(bench.now_s).wake_at_s is None


def test_a_lost_machine_is_one_loss_for_each_request_and_each_load() -> None:
    """What its workers ran and loaded goes to the worker that is left."""
    bench = Bench("a", "b", workers=3)
    bench.load("a")
    asked = bench.ask("a")
    (infer,) = bench.taken()
    bench.ask("b")
    (load,) = bench.taken()
    assert load.kind is ActionType.LOAD
    lost = {infer.worker, load.worker}
    assert len(lost) == 2
    bench.on(WorkersDown(tuple(lost), "the machine is lost"))
    taken = bench.taken()
    assert {action.worker for action in taken} == {1, 2, 3} - lost
    assert not bench.refusals
    assert asked


def test_a_model_whose_load_ends_workers_is_left_alone_after_the_second() -> None:
    """The first time it may have been another's fault."""
    bench = Bench("a", workers=4)
    asked = bench.ask("a")
    for _ in range(2):
        (load,) = bench.taken()
        assert load.kind is ActionType.LOAD
        bench.on(WorkersDown((load.worker,), "lost"))
    assert not bench.taken()
    assert bench.refusals == [Rejection(asked, RejectionReason.CANNOT_LOAD, "")]
    bench.now_s += 31
    bench.ask("a")
    assert [action.kind for action in bench.taken()] == [ActionType.LOAD]


def test_a_load_that_failed_is_tried_again_later_and_later() -> None:
    """Requests in between are refused at once."""
    bench = Bench("a")
    for wait_s in (0.5, 1.0, 2.0):
        bench.ask("a")
        (load,) = bench.taken()
        bench.done(load, ok=False)
        assert bench.refusals.pop().reason is RejectionReason.CANNOT_LOAD
        bench.now_s += wait_s - 0.01
        bench.ask("a")
        assert not bench.taken()
        assert bench.refusals.pop().reason is RejectionReason.CANNOT_LOAD
        bench.now_s += 0.02
    bench.load("a")
    assert not bench.refusals


def test_without_a_worker_a_request_waits_as_long_as_it_can() -> None:
    """One that comes gets it; who cannot be in time any more is refused."""
    bench = Bench("a", workers=0)
    late = bench.ask("a", within_s=0.2)
    soon = bench.ask("a", within_s=0.005)
    assert [refusal.id for refusal in bench.refusals] == [soon]
    bench.on(WorkerUp(1, 2))
    assert [action.kind for action in bench.taken()] == [ActionType.LOAD]
    alone = Bench("a", workers=0)
    alone.ask("a", within_s=0.2)
    alone.now_s += 0.3
    alone.on(ModelUp(id_of("b"), 1, LOAD_S, BATCH_S))
    assert [refusal.reason for refusal in alone.refusals] == [RejectionReason.DEADLINE_UNREACHABLE]
    assert late


def test_copies_for_a_shadow_give_way() -> None:
    """They are taken where nobody waits, and refused where somebody does."""
    bench = Bench("a", "b")
    bench.load("a")
    bench.ask("a", priority=BACKGROUND)
    assert [action.kind for action in bench.taken()] == [ActionType.INFER]
    bench.ask("b")
    copied = bench.ask("a", priority=BACKGROUND)
    assert bench.refusals == [Rejection(copied, RejectionReason.CANNOT_FINISH, "")]


def test_the_queue_is_bounded() -> None:
    """Beyond `scheduling.queue_capacity` a request is told how long the queue is."""
    bench = Bench("a", **{"scheduling.queue_capacity": 2})
    for _ in range(2):
        bench.ask("a")
    over = bench.ask("a")
    assert bench.refusals == [Rejection(over, RejectionReason.QUEUE_FULL, "2")]
    bench.on(Submitted(9, id_of("a"), 3, bench.now_s + 5.0, 2))
    assert bench.refusals[1:] == [Rejection(9, RejectionReason.TOO_MANY_ITEMS, "2")]
    assert error_for(bench.refusals[1]).status == 413


def test_a_model_that_is_not_known_is_refused() -> None:
    bench = Bench("a")
    asked = bench.ask("z")
    assert bench.refusals == [Rejection(asked, RejectionReason.CANNOT_LOAD, "")]
    assert bench.scheduler.waiting_of(id_of("z")) == 0


def test_settings_become_parameters() -> None:
    """Milliseconds become seconds; batch and queue are those of all schedulers."""
    values = {
        "clockwork.schedule_ahead_ms": 4,
        "clockwork.window_ms": 7,
        "clockwork.duration_margin": 0.5,
        "clockwork.deadline_margin": 0.1,
        "clockwork.max_exec_ms": 50,
        "batching.max_size": 3,
        "scheduling.queue_capacity": 11,
    }
    found = Parameters.of(ServingSettings().with_changes(values))
    assert (found.schedule_ahead_s, found.window_s, found.max_exec_s) == pytest.approx(
        (0.004, 0.007, 0.05)
    )
    assert (found.duration_margin, found.deadline_margin) == (0.5, 0.1)
    assert (found.max_items, found.max_waiting) == (3, 11)


def drained(bench: Bench) -> None:
    """All that is planned is done, as long as it takes to say so."""
    while found := bench.taken():
        for action in found:
            bench.done(action)


@pytest.mark.parametrize("kind", [ActionType.LOAD, ActionType.INFER])
def test_a_stall_locks_no_model_out(kind: ActionType) -> None:
    """What took long once is doubted where it alone refuses, so that somebody is let in to measure anew."""
    bench = Bench("a", "b", pages=1)
    if kind is ActionType.INFER:
        bench.load("a")
    bench.ask("a")
    (stalled,) = bench.taken()
    assert stalled.kind is kind
    bench.now_s += 0.5
    bench.done(stalled, times=StageTimes(0.0, 0.0, 0.5, 0.0))
    drained(bench)
    bench.load("b")  # there is room for one: the next request for a needs a load
    if kind is ActionType.INFER:
        bench.load("a")
    bench.refusals.clear()
    first = bench.ask("a", within_s=0.1)
    assert [refusal.id for refusal in bench.refusals] == [first]
    for _ in range(4):
        bench.now_s += 0.3
        last = bench.ask("a", within_s=0.1)
        drained(bench)
    assert last not in {refusal.id for refusal in bench.refusals}


def test_a_model_that_is_busy_is_not_doubted() -> None:
    """What was measured a moment ago stands, however many are refused for it."""
    bench = Bench("a")
    bench.load("a")
    bench.ask("a")
    (infer,) = bench.taken()
    bench.now_s += 0.5
    bench.done(infer, times=StageTimes(0.0, 0.0, 0.5, 0.0))
    for _ in range(20):
        bench.now_s += 0.01
        bench.ask("a", within_s=0.1)
    assert len(bench.refusals) == 20


def in_use(name: str, other: str) -> Bench:
    """Memory for one model, which is asked for all the time, and a request for another one."""
    bench = Bench(name, other, pages=1)
    bench.load(name)
    bench.ask(name)
    bench.ask(name)
    bench.ask(other)
    return bench


def test_a_model_in_use_gives_way_to_one_whose_clients_can_wait() -> None:
    """What it was promised for is run first; then the other one is loaded, and it comes back for those who ask."""
    bench = in_use("a", "b")
    first, second = bench.taken()
    bench.done(first)
    assert not bench.taken(), "it is still in use"
    bench.ask("a")
    bench.done(second)
    order = []
    while found := bench.taken():
        for action in found:
            order.append((action.kind, action.model.name))
            bench.done(action)
    assert order.index((ActionType.UNLOAD, "a")) < order.index((ActionType.LOAD, "b"))
    assert order[-1] == (ActionType.INFER, "b")
    assert not bench.refusals


def test_a_model_stays_where_nobody_waits_for_the_other_one_any_more() -> None:
    bench = in_use("a", "b")
    bench.on(Cancelled(4))
    drained(bench)
    bench.now_s += 10.0
    bench.ask("a")
    drained(bench)
    assert bench.scheduler._queue.items == 0
    (worker,) = bench.scheduler._pool.workers.values()
    assert [holding.model.id for holding in worker.instances.values()] == [id_of("a")]
    assert not bench.refusals


def test_a_swap_leaves_alone_what_another_load_counts_on() -> None:
    """Memory for two: an idle model makes room for the first who asks, one that is in use for the second."""
    bench = Bench("a", "b", "c", "d", pages=2, **{"clockwork.schedule_ahead_ms": 0.6})
    bench.load("a")
    bench.load("b")
    bench.ask("b")
    bench.ask("c")
    bench.ask("d")
    (worker,) = bench.scheduler._pool.workers.values()
    first, second = worker.planned
    assert (first.model.id.name, first.swap, second.model.id.name) == ("c", None, "d")
    assert second.swap is not None
    assert [one.model.id.name for one in second.swap.evicts] == ["b"]
    drained(bench)
    while worker.planned:
        bench.now_s += 0.1
        bench.on(Cancelled(0))
        drained(bench)
    assert not bench.refusals
    assert {holding.model.id.name for holding in worker.instances.values()} == {"c", "d"}


def test_what_a_draining_worker_has_promised_is_done_by_another() -> None:
    bench = Bench("a", workers=2, **{"clockwork.schedule_ahead_ms": 0.6})
    bench.load("a")
    asked = [bench.ask("a", within_s=0.5) for _ in range(3)]
    running = bench.taken()
    (worker,) = {action.worker for action in running}
    assert bench.scheduler._queue.items
    bench.on(WorkerDraining(worker))
    (load,) = bench.taken()
    assert (load.kind, load.worker) == (ActionType.LOAD, 3 - worker)
    for action in [*running, load]:
        bench.done(action)
    later = bench.taken()
    assert {action.worker for action in later} == {load.worker}
    assert [part[0] for action in running + later for part in action.parts] == asked
    assert not bench.refusals


def test_a_load_that_a_draining_worker_was_not_told_of_is_planned_elsewhere() -> None:
    bench = Bench("a", "b", "c", workers=2)
    for name in ("a", "b", "c"):
        bench.ask(name, within_s=0.5)
    told = bench.taken()
    worker = told[0].worker
    bench.on(WorkerDraining(worker))
    left = [action for action in told if action.worker != worker]
    ran = 0
    while left:
        for action in left:
            ran += action.kind is ActionType.INFER
            bench.done(action)
        left = bench.taken()
        assert all(action.worker != worker for action in left)
    for action in told:
        if action.worker == worker:
            bench.done(action)
    assert not bench.refusals
    assert ran == 3


def test_a_swap_for_a_model_that_goes_is_off() -> None:
    """Who was to give way for it stays, and is promised as before."""
    bench = in_use("a", "b")
    (model,) = (one for one in bench.scheduler._pool.models.values() if one.id == id_of("a"))
    assert any(holding.planned_eviction for holding in model.holdings)
    bench.on(ModelDown(id_of("b")))
    assert not any(holding.planned_eviction for holding in model.holdings)
    (worker,) = bench.scheduler._pool.workers.values()
    assert not worker.planned
    assert worker.planned_pages == 0


def test_a_cancelled_request_is_not_owed_any_more() -> None:
    """A model that leaves owes what waits for it, and no more."""
    bench = in_use("a", "b")
    for _ in range(20):
        bench.ask("a", within_s=0.5)
    (model,) = (one for one in bench.scheduler._pool.models.values() if one.id == id_of("a"))
    (leaver,) = (holding for holding in model.holdings if holding.planned_eviction)
    assert leaver.promises.reserved_items == len(model.waiting) > 0
    for entry in dict.fromkeys(model.waiting.entries):
        bench.on(Cancelled(entry.id))
    assert leaver.promises.reserved_items == 0


def test_what_is_too_late_by_a_rounding_error_ends() -> None:
    """A deadline less a duration may lie before a time that the deadline itself does not reach less it."""
    found = 0
    for number in range(200):
        bench = Bench()
        bench.on(ModelUp(id_of("a"), 1, LOAD_S, {1: 0.001 + 1e-5 * number}))
        (model,) = bench.scheduler._pool.models.values()
        least_s = model.durations.estimate_s[0]
        now_s = 128.0 - 0.5 * least_s  # the sum is beyond a power of two, and has fewer places
        deadline_s = now_s + least_s
        if deadline_s - least_s < now_s:
            found += 1
            entry = PendingRequest(1, 1, deadline_s, deadline_s)
            queue = bench.scheduler._queue
            queue.entries[1] = (entry, model)
            queue.push(entry, model, 1)
            assert [refusal.id for refusal in bench.scheduler.plan(now_s).refusals] == [1]
    assert found > 10


def test_a_deadline_that_is_too_short_for_the_model_alone_is_told() -> None:
    """With what the request takes, in seconds; one that is refused for what else there is to do, is told nothing."""
    bench = Bench("a", pages=1)
    bench.ask("a", within_s=0.5 * BATCH_S[1])
    bench.ask("a", within_s=0.5 * LOAD_S)
    first, second = bench.refusals
    assert (first.reason, float(first.detail)) == (
        RejectionReason.CANNOT_FINISH,
        pytest.approx(1.1e-3),
    )
    assert (second.reason, second.detail) == (RejectionReason.CANNOT_LOAD, "")
    assert "1.1 ms" in str(error_for(first))


def test_who_could_not_have_been_answered_says_nothing_about_patience() -> None:
    bench = Bench("a")
    (model,) = bench.scheduler._pool.models.values()
    bench.ask("a", within_s=5.0)
    patience_s = model.relative_deadline_s
    bench.ask("a", within_s=0.5 * BATCH_S[1])
    assert model.relative_deadline_s == patience_s


def test_who_can_wait_is_answered_though_a_planned_load_counts_on_the_memory() -> None:
    """An idle model whose memory is planned for another comes back behind that, for who asks for it meanwhile."""
    bench = Bench("a", "b", "c", pages=2, **{"clockwork.schedule_ahead_ms": 0.6})
    bench.load("a")
    bench.load("b")
    asked = [bench.ask(name, within_s=30.0) for name in ("b", "c")]
    (worker,) = bench.scheduler._pool.workers.values()
    assert [(one.model.id.name, one.swap) for one in worker.planned] == [("c", None)]
    asked.append(bench.ask("a", within_s=30.0))
    run: set[int] = set()
    for _ in range(200):
        for action in bench.taken():
            run |= {id_ for id_, _, _ in action.parts}
            bench.done(action)
        bench.now_s += 0.01
        bench.on(Cancelled(0))
    assert not bench.refusals
    assert run >= set(asked)


def test_drops_of_one_cause_count_once() -> None:
    reserve = AdmissionMargin()
    for _ in range(100):
        reserve.record_drop(5.0)
    assert reserve.share == pytest.approx(FIRST_MARGIN + STEP)
    reserve.record_drop(6.0)
    assert reserve.share == pytest.approx(FIRST_MARGIN + 2 * STEP)


def test_a_rate_forgets_and_does_not_jump_at_the_beginning() -> None:
    rate = Rate()
    for number in range(1000):
        rate.add(2.0, 50.0 + 0.1 * number)
    assert rate.per_s(150.0, 50.0) == pytest.approx(20.0, rel=0.02)
    assert rate.per_s(150.0 + REMEMBERS_S, 50.0) == pytest.approx(20.0 / math.e, rel=0.02)
    assert Rate().per_s(1.0, 0.0) == 0.0
    first = Rate()
    first.add(1.0, 3.0)
    assert first.per_s(3.0, 3.0) <= 1.0 / FIRST_S
    assert Rate().per_s(3.0, 3.0, 4.0) == 4.0
    assert Rate().per_s(3.0 + FIRST_S, 3.0, 4.0) == pytest.approx(2.0, rel=0.05)


def test_a_worker_that_comes_while_others_drain_is_given_what_waits() -> None:
    bench = Bench("a", **{"clockwork.schedule_ahead_ms": 0.6})
    bench.load("a")
    for _ in range(3):
        bench.ask("a", within_s=0.5)
    running = bench.taken()
    bench.on(WorkerDraining(1))
    left = bench.scheduler._queue.items
    assert left
    bench.on(WorkerUp(2, 2, None))
    assert [(action.kind, action.worker) for action in bench.taken()] == [(ActionType.LOAD, 2)]
    for action in running:
        bench.done(action)
    assert bench.scheduler._queue.items == left
    assert not bench.refusals
