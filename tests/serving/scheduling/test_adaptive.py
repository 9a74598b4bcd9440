"""What the batching and routing knobs mean, in virtual time."""

import itertools

import pytest

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.interface import (
    BACKGROUND,
    ActionResult,
    ActionType,
    RejectionReason,
    Submitted,
    WorkersDown,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

MODEL = ModelId("m", "1")


class Bench:
    """A scheduler with loaded workers, at time 0."""

    def __init__(self, workers: int = 1, slots: int = 2, **knobs: object) -> None:
        values = {name.replace("__", "."): value for name, value in knobs.items()}
        self.scheduler = AdaptiveScheduler(MODEL, ServingSettings().with_changes(values))
        self.ids = 0
        for worker in range(1, workers + 1):
            self.up(worker, 0.0, slots)

    def up(self, worker: int, now_s: float, slots: int = 2) -> None:
        self.scheduler.on(WorkerUp(worker, slots), now_s)
        for action in self.scheduler.plan(now_s).actions:
            assert action.kind is ActionType.LOAD
            self.scheduler.on(ActionResult(action.id, action.worker, True, None), now_s)

    def submit(self, count: int, now_s: float, items: int = 1, limit_s: float = 30.0) -> None:
        for _ in range(count):
            self.ids += 1
            self.scheduler.on(Submitted(self.ids, MODEL, items, now_s + limit_s), now_s)

    def batches(self, now_s: float) -> list[list[int]]:
        self.plan = self.scheduler.plan(now_s)
        return [[id_ for id_, _, _ in action.parts] for action in self.plan.actions]


def test_timeout_zero_sends_at_once():
    """With timeout 0 a free worker takes whatever waits."""
    bench = Bench(batching__max_size=8, batching__timeout_us=0)
    bench.submit(3, 0.0)
    assert bench.batches(0.0) == [[1, 2, 3]]


def test_waits_for_a_full_batch_until_the_timeout():
    """Fewer items than max_size leave when the oldest has waited timeout_us, not before."""
    bench = Bench(batching__max_size=8, batching__timeout_us=1000)
    bench.submit(3, 0.0)
    assert bench.batches(0.0) == []
    assert bench.plan.wake_at_s == pytest.approx(0.001)
    assert bench.batches(0.0009) == []
    assert bench.batches(0.001) == [[1, 2, 3]]


def test_a_full_batch_does_not_wait():
    """max_size items leave at once, whatever the timeout."""
    bench = Bench(batching__max_size=4, batching__timeout_us=1_000_000)
    bench.submit(5, 0.0)
    assert bench.batches(0.0) == [[1, 2, 3, 4]]


def test_two_batches_are_with_a_worker_and_no_third():
    """One batch runs and one is buffered; the rest is bound late."""
    bench = Bench(batching__max_size=2)
    bench.submit(6, 0.0)
    assert bench.batches(0.0) == [[1, 2], [3, 4]]
    bench.scheduler.on(ActionResult(bench.plan.actions[0].id, 1, True, None), 0.1)
    assert bench.batches(0.1) == [[5, 6]]


def test_earliest_deadline_first():
    """Batches are formed in the order of deadlines, not of arrival."""
    bench = Bench(batching__max_size=2)
    bench.submit(1, 0.0, limit_s=30.0)
    bench.submit(1, 0.0, limit_s=5.0)
    bench.submit(1, 0.0, limit_s=10.0)
    assert bench.batches(0.0) == [[2, 3], [1]]


def test_a_large_request_is_split_and_others_are_not():
    """A request above max_size goes in parts; one that fits a batch is never torn."""
    bench = Bench(batching__max_size=4, slots=8)
    bench.submit(1, 0.0, items=3)
    bench.submit(1, 0.0, items=2)
    bench.submit(1, 0.0, items=9)
    bench.batches(0.0)
    parts = [part for action in bench.plan.actions for part in action.parts]
    assert parts == [
        (1, 0, 3), (2, 0, 2), (3, 0, 2), (3, 2, 6), (3, 6, 9),
    ]  # fmt: skip


def test_least_loaded_spreads_batches():
    """Two workers get one batch each before either gets a second."""
    bench = Bench(workers=2, batching__max_size=1)
    bench.submit(4, 0.0)
    bench.batches(0.0)
    assert [action.worker for action in bench.plan.actions] == [1, 2, 1, 2]


def test_expired_requests_are_refused_in_queue_and_in_replica():
    """A deadline that passes is answered wherever the request is."""
    bench = Bench(batching__max_size=1, slots=1)
    bench.submit(2, 0.0, limit_s=1.0)
    assert bench.batches(0.0) == [[1]]
    assert bench.plan.wake_at_s == 1.0
    bench.batches(1.0)
    assert {(r.id, r.reason) for r in bench.plan.refusals} == {
        (1, RejectionReason.DEADLINE_IN_REPLICA),
        (2, RejectionReason.DEADLINE_IN_QUEUE),
    }


def test_a_full_queue_refuses_the_next():
    """Capacity bounds what waits."""
    bench = Bench(workers=0, scheduling__queue_capacity=2)
    bench.submit(3, 0.0)
    bench.batches(0.0)
    assert [(r.id, r.reason) for r in bench.plan.refusals] == [(3, RejectionReason.QUEUE_FULL)]


def test_members_of_a_lost_batch_run_alone_once():
    """After the first loss each is tried again by itself; the second loss refuses the one that ran, with the reason."""
    bench = Bench(workers=2, batching__max_size=4)
    bench.submit(2, 0.0)
    assert bench.batches(0.0) == [[1, 2]]
    first = bench.plan.actions[0].worker
    bench.scheduler.on(WorkersDown((first,), "killed"), 0.1)
    assert bench.batches(0.1) == [[1], [2]]
    second = bench.plan.actions[0].worker
    assert second != first
    bench.scheduler.on(WorkersDown((second,), "out of memory"), 0.2)
    assert bench.batches(0.2) == []
    assert [(r.id, r.reason, r.detail) for r in bench.plan.refusals] == [
        (1, RejectionReason.WORKER_LOST, "out of memory")
    ]
    bench.up(3, 0.3)
    assert bench.batches(0.3) == [[2]]


def test_a_request_that_ends_workers_takes_nobody_with_it():
    """Batch after batch with a bad member: only that one is refused, all others are executed."""
    bench = Bench(workers=1, batching__max_size=4)
    bad, executed, refused, worker, held = 6, [], [], 1, []
    bench.submit(16, 0.0)
    for step in range(100):
        now_s = 0.01 * step
        plan = bench.scheduler.plan(now_s)
        held += plan.actions
        refused += [refusal.id for refusal in plan.refusals]
        if not held:
            break
        action = held.pop(0)
        ids = [id_ for id_, _, _ in action.parts]
        if bad in ids:
            held.clear()
            bench.scheduler.on(WorkersDown((worker,), "crash"), now_s)
            refused += [refusal.id for refusal in bench.scheduler.plan(now_s).refusals]
            worker += 1
            bench.up(worker, now_s)
        else:
            executed += ids
            bench.scheduler.on(ActionResult(action.id, worker, True, None), now_s)
    assert refused == [bad]
    assert sorted(executed) == [id_ for id_ in range(1, 17) if id_ != bad]
    assert worker == 3


def test_one_lost_worker_is_one_loss_however_many_parts_it_held():
    """A split request with parts in both slots of a lost worker is tried again, once."""
    bench = Bench(workers=2, batching__max_size=4)
    bench.scheduler._workers[2].draining = True
    bench.submit(1, 0.0, items=8)
    bench.batches(0.0)
    assert [action.worker for action in bench.plan.actions] == [1, 1]
    bench.scheduler._workers[2].draining = False
    bench.scheduler.on(WorkersDown((1,), "killed"), 0.1)
    bench.batches(0.1)
    assert bench.plan.refusals == []
    assert [action.parts for action in bench.plan.actions] == [[(1, 0, 4)], [(1, 4, 8)]]


def test_a_lost_machine_is_one_loss_for_a_request_on_two_of_its_workers():
    """Both parts run again on the worker that is left."""
    bench = Bench(workers=3, batching__max_size=4)
    bench.scheduler._workers[3].draining = True
    bench.submit(1, 0.0, items=8)
    bench.batches(0.0)
    assert sorted(action.worker for action in bench.plan.actions) == [1, 2]
    bench.scheduler._workers[3].draining = False
    bench.scheduler.on(WorkersDown((1, 2), "the machine is lost"), 0.1)
    bench.batches(0.1)
    assert bench.plan.refusals == []
    assert [(action.worker, action.parts) for action in bench.plan.actions] == [
        (3, [(1, 0, 4)]),
        (3, [(1, 4, 8)]),
    ]


def test_memory_of_the_queue_is_bounded():
    """What has been answered leaves nothing behind in the queue's books."""
    bench = Bench(batching__max_size=8)
    for step in range(2000):
        bench.submit(4, step * 1e-3)
        bench.batches(step * 1e-3)
        for action in bench.plan.actions:
            bench.scheduler.on(ActionResult(action.id, action.worker, True, None), step * 1e-3)
    queue = bench.scheduler._queue
    assert len(queue._arrivals) + len(queue._heap) + len(bench.scheduler._entries) < 20


def test_what_cannot_finish_is_refused_before_it_is_sent():
    """A batch takes 10 ms: with one running and one buffered, 15 ms are not enough, 100 ms are."""
    bench = Bench(batching__max_size=1)
    times = StageTimes(0.0, 0.0, 0.010, 0.0)
    bench.submit(1, 0.0)
    (action,) = bench.scheduler.plan(0.0).actions
    bench.scheduler.on(ActionResult(action.id, 1, True, times), 0.010)
    bench.submit(3, 0.020, limit_s=0.015)
    bench.submit(1, 0.020, limit_s=0.100)
    assert bench.batches(0.020) == [[2], [5]]
    assert [(r.id, r.reason) for r in bench.plan.refusals] == [
        (3, RejectionReason.CANNOT_FINISH),
        (4, RejectionReason.CANNOT_FINISH),
    ]


def test_a_batch_is_no_larger_than_its_most_urgent_member_allows():
    """1 ms an item: with 3.5 ms left three go together, the others follow."""
    bench = Bench(batching__max_size=8, slots=1)
    for size in (1, 8):
        bench.submit(size, 0.0)
        (action,) = bench.scheduler.plan(0.0).actions
        took = StageTimes(0.0, 0.0, 0.001 * size, 0.0)
        bench.scheduler.on(ActionResult(action.id, 1, True, took), 0.0)
    bench.submit(1, 1.0, limit_s=0.0035)
    bench.submit(5, 1.0)
    assert [len(batch) for batch in bench.batches(1.0)] == [3]


def test_one_batch_at_a_time_tries_a_size_that_was_not_measured():
    """While it runs, others are as large as what is known: not every slot is at what may be too long."""
    bench = Bench(workers=2, batching__max_size=4)
    bench.submit(1, 0.0)
    (action,) = bench.scheduler.plan(0.0).actions
    bench.scheduler.on(ActionResult(action.id, 1, True, StageTimes(0.0, 0.0, 0.001, 0.0)), 0.001)
    bench.submit(16, 1.0)
    assert sorted(len(batch) for batch in bench.batches(1.0)) == [1, 1, 1, 4]


def test_a_wrong_estimate_does_not_last():
    """After one very slow batch an idle worker still tries, and learns that it is quick again."""
    bench = Bench(batching__max_size=4)
    bench.submit(1, 0.0)
    (action,) = bench.scheduler.plan(0.0).actions
    bench.scheduler.on(ActionResult(action.id, 1, True, StageTimes(0.0, 0.0, 5.0, 0.0)), 5.0)
    executed = 0
    for step in range(40):
        now_s = 10.0 + step
        bench.submit(1, now_s, limit_s=0.1)
        for action in bench.scheduler.plan(now_s).actions:
            executed += 1
            took = StageTimes(0.0, 0.0, 0.001, 0.0)
            bench.scheduler.on(ActionResult(action.id, 1, True, took), now_s + 0.001)
    assert executed == 40


def experienced(took_s: float, workers: int = 1, **knobs: object) -> Bench:
    """A bench whose batches of one and of eight items are known to take so long."""
    bench = Bench(workers, batching__max_size=8, **knobs)
    for size in (1, 8):
        bench.submit(size, 0.0)
        (action,) = bench.scheduler.plan(0.0).actions
        times = StageTimes(0.0, 0.0, took_s, 0.0)
        bench.scheduler.on(ActionResult(action.id, action.worker, True, times), 0.0)
    bench.ids = 0
    return bench


def test_a_batch_for_the_buffer_is_bound_half_through_the_running_one():
    """It could not run before; what comes meanwhile joins it. A full one need not wait for more."""
    bench = experienced(0.010)
    bench.submit(1, 1.0)
    assert bench.batches(1.0) == [[1]]
    bench.submit(2, 1.001)
    assert bench.batches(1.001) == []
    assert bench.plan.wake_at_s == pytest.approx(1.005)
    bench.submit(1, 1.004)
    assert bench.batches(1.0049) == []
    assert bench.batches(1.005) == [[2, 3, 4]]
    full = experienced(0.010)
    full.submit(1, 1.0)
    full.batches(1.0)
    full.submit(8, 1.001)
    assert full.batches(1.001) == [[2, 3, 4, 5, 6, 7, 8, 9]]


def test_a_worker_that_is_done_early_gets_its_next_batch_at_once():
    """The estimate only says when to be ready: an idle worker never waits for it."""
    bench = experienced(0.010)
    bench.submit(1, 1.0)
    (action,) = bench.scheduler.plan(1.0).actions
    bench.submit(2, 1.001)
    assert bench.batches(1.001) == []
    times = StageTimes(0.0, 0.0, 0.002, 0.0)
    bench.scheduler.on(ActionResult(action.id, 1, True, times), 1.002)
    assert bench.batches(1.002) == [[2, 3]]


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin"])
def test_nothing_is_held_where_a_worker_is_idle(routing):
    """Whoever's turn it is: a request that could run now is sent now."""
    bench = experienced(0.010, workers=2, routing__policy=routing)
    for number in (1, 2):
        bench.submit(1, 1.0)
        assert bench.batches(1.0) == [[number]]
    bench.submit(1, 1.0)
    assert bench.batches(1.001) == []


def test_short_batches_are_buffered_at_once():
    """For less than a millisecond a timer costs more than company is worth."""
    bench = experienced(0.0009)
    bench.submit(1, 1.0)
    assert bench.batches(1.0) == [[1]]
    bench.submit(1, 1.0001)
    assert bench.batches(1.0001) == [[2]]


class Flows(Bench):
    """A bench for requests of applications."""

    def ask(self, flow, count=1, *, priority=0, items=1, limit_s=30.0, now_s=0.0, size_bytes=0):
        """Submit so many; returns their ids."""
        first = self.ids + 1
        for _ in range(count):
            self.ids += 1
            event = Submitted(self.ids, MODEL, items, now_s + limit_s, priority, flow, size_bytes)
            self.scheduler.on(event, now_s)
        return list(range(first, self.ids + 1))

    def refused(self, now_s=0.0):
        """Ids that are refused for want of room."""
        refusals = self.scheduler.plan(now_s).refusals
        assert {refusal.reason for refusal in refusals} <= {RejectionReason.QUEUE_FULL}
        return [refusal.id for refusal in refusals]


@pytest.mark.parametrize("default", [2, 5])
def test_priorities_of_one_application(default):
    """1 goes first, none means the default, and an earlier deadline overtakes only within its level."""
    bench = Flows(batching__max_size=8, scheduling__default_priority=default)
    (low,) = bench.ask("", priority=default + 1, limit_s=1.0)
    (none,) = bench.ask("", limit_s=20.0)
    (same,) = bench.ask("", priority=default, limit_s=10.0)
    (urgent,) = bench.ask("", priority=1)
    assert bench.batches(0.0) == [[urgent, same, none, low]]


def test_a_less_urgent_one_is_answered_at_its_deadline():
    """Where more urgent ones keep coming it is not served, but told in time; so it is wherever it stands."""
    bench = Flows(batching__max_size=1, slots=1)
    (low,) = bench.ask("", priority=3, limit_s=1.0)
    bench.ask("", 9, priority=1)
    bench.batches(0.0)
    assert bench.plan.wake_at_s == 1.0
    bench.batches(1.0)
    assert [(r.id, r.reason) for r in bench.plan.refusals] == [
        (low, RejectionReason.DEADLINE_IN_QUEUE)
    ]


def test_a_priority_is_no_claim_on_another_applications_share():
    """Who calls all its requests urgent overtakes its own alone."""
    bench = Flows(batching__max_size=4)
    loud = bench.ask("loud", 8, priority=1)
    quiet = bench.ask("quiet", 8)
    assert bench.batches(0.0) == [
        [loud[0], quiet[0], loud[1], quiet[1]],
        [loud[2], quiet[2], loud[3], quiet[3]],
    ]


def test_a_small_request_does_not_wait_behind_all_large_ones():
    """Where nobody names an application: it is in the next batch, and shares it with none of them."""
    bench = Flows(batching__max_size=8, slots=1)
    large = bench.ask("", 30, size_bytes=3 << 20)
    assert bench.batches(0.0) == [large[:4]]
    small = bench.ask("", 2, size_bytes=3000)
    many = bench.ask("", items=8, size_bytes=4 << 20)
    for batch in (small, many, large[4:8]):
        bench.scheduler.on(ActionResult(bench.plan.actions[0].id, 1, True, None), 0.1)
        assert bench.batches(0.1) == [batch]


@pytest.mark.parametrize(
    ("profile", "mebibytes", "items"),
    [
        ({8: 0.001}, 40, 1),
        ({8: 0.001}, 7, 2),
        ({8: 0.001}, 1, 8),
        ({1: 0.002, 32: 0.144}, 4, 3),
        ({1: 0.050, 32: 0.060}, 4, 6),
        ({8: 0.2}, 7, 8),
    ],
)
def test_a_batch_of_large_items_is_copied_within_the_time_that_it_runs(profile, mebibytes, items):
    """Or has 16 MiB, or one request, which is split where no batch holds it, and no sooner."""
    size = max(profile)
    for flows in ((), ("other",)):
        bench = Flows(batching__max_size=size, slots=1)
        bench.scheduler.profile.seed(profile)
        for flow in flows:
            bench.ask(flow)
        bench.ask("", size, size_bytes=mebibytes << 20)
        for _ in flows:  # the small one is served first, by itself
            assert [len(batch) for batch in bench.batches(0.0)] == [1]
            bench.scheduler.on(ActionResult(bench.plan.actions[0].id, 1, True, None), 0.0)
        assert [len(batch) for batch in bench.batches(0.0)] == [items]
    bench = Flows(batching__max_size=size, slots=1)
    bench.scheduler.profile.seed(profile)
    bench.ask("", items=size, size_bytes=size * mebibytes << 20)
    bench.batches(0.0)
    assert [action.parts for action in bench.plan.actions] == [[(1, 0, size)]]


def test_each_large_item_counts_whatever_comes_first():
    """A small one before them, or one that is less large."""
    for first in (1000, 1 << 20):
        bench = Flows(batching__max_size=8, slots=1)
        bench.ask("one", size_bytes=first)
        bench.ask("one", 7, size_bytes=60 << 20)
        assert [len(batch) for batch in bench.batches(0.0)] == [1]


def test_large_items_do_not_wait_for_company_that_they_may_not_have():
    """Two workers take one each, at once; smaller ones wait until they are 16 MiB."""
    bench = Flows(workers=2, batching__max_size=8, batching__timeout_us=50_000, slots=1)
    bench.ask("", 3, size_bytes=20 << 20)
    assert [len(batch) for batch in bench.batches(0.0)] == [1, 1]
    bench = Flows(batching__max_size=8, batching__timeout_us=50_000, slots=1)
    bench.ask("", 5, size_bytes=2 << 20)
    assert bench.batches(0.0) == []
    bench.ask("", 1, size_bytes=2 << 20)
    assert [len(batch) for batch in bench.batches(0.0)] == [5]


def test_a_large_one_that_is_given_up_leaves_the_batch_to_the_small_ones():
    """It had no time left, and they fill a batch."""
    bench = Flows(batching__max_size=32, slots=1)
    bench.scheduler.profile.seed({1: 0.010, 32: 0.020})
    bench.ask("one", size_bytes=100 << 20, limit_s=0.005)
    small = bench.ask("one", 31, limit_s=0.1)
    assert bench.batches(0.0) == [small]


def test_large_requests_with_a_priority_wait_among_the_others():
    """Those that are less urgent give way to small ones, and urgent ones go before them."""
    bench = Flows(workers=0, batching__max_size=4, scheduling__queue_capacity=4)
    small = bench.ask("", 4)
    copies = bench.ask("", 2, priority=255, size_bytes=8 << 20)
    assert bench.refused() == copies
    urgent = bench.ask("", priority=1, size_bytes=8 << 20)
    assert bench.refused() == small[3:]
    bench.up(1, 0.0)
    assert bench.batches(0.0)[0] == urgent


def test_a_full_queue_belongs_to_all_applications():
    """The flood gives way to the newcomer of a small one, its last request first, and then to nobody more."""
    bench = Flows(workers=0, scheduling__queue_capacity=4)
    flood = bench.ask("flood", 4)
    small = bench.ask("small", 2)
    assert bench.refused() == [flood[3], flood[2]]
    assert bench.scheduler._queue.items == 4
    more = bench.ask("small")
    assert bench.refused() == more, "it has the most itself, then"
    again = bench.ask("flood")
    assert bench.refused() == again
    bench.up(1, 0.0)
    assert sorted(itertools.chain(*bench.batches(0.0))) == sorted(flood[:2] + small)


def test_one_large_request_does_not_push_out_many():
    """Room is made for all of its items, for others have as many; the largest flow is refused itself."""
    bench = Flows(workers=0, scheduling__queue_capacity=4)
    flood = bench.ask("flood", 4)
    bench.ask("small", items=2)
    assert bench.refused() == [flood[3], flood[2]]
    (large,) = bench.ask("other", items=4)
    assert bench.refused() == [large]
    assert bench.scheduler._queue.items == 4


def test_nobody_gives_way_in_vain():
    """To one that would be refused after all, because its flow has the most then."""
    bench = Flows(workers=0, scheduling__queue_capacity=2048)
    bench.ask("many", 2048)
    (large,) = bench.ask("other", items=1100)
    assert bench.refused() == [large]
    (fair,) = bench.ask("other", items=1000)
    assert len(bench.refused()) == 1000
    assert bench.scheduler._queue.items == 2048
    assert fair in bench.scheduler._entries


def test_small_requests_lose_nothing_to_large_ones_that_wait():
    """They share no batch, so the next one is all theirs."""
    bench = Flows(batching__max_size=8, slots=1)
    bench.scheduler.profile.seed({size: 0.008 + 0.001 * size for size in range(1, 9)})
    bench.ask("", 4, size_bytes=3 << 20)
    small = [bench.ask("small", limit_s=0.025 + 0.0004 * place)[0] for place in range(8)]
    served = []
    for turn in range(2):
        served += [id_ for batch in bench.batches(0.0) for id_ in batch]
        assert not bench.plan.refusals
        if turn == 0 and not set(small) <= set(served):
            bench.scheduler.on(ActionResult(bench.plan.actions[0].id, 1, True, None), 0.0)
    assert set(small) <= set(served)


@pytest.mark.parametrize("flow", ["flood", "other"])
def test_a_request_counts_with_all_its_items(flow):
    """What does not fit into the queue as a whole does not enter it, and what never would is told so."""
    bench = Flows(workers=0, scheduling__queue_capacity=4)
    for items, reason in (
        (5, RejectionReason.TOO_MANY_ITEMS),
        (4, None),
        (5, RejectionReason.TOO_MANY_ITEMS),
    ):
        bench.ask(flow, items=items)
        bench.batches(0.0)
        reasons = [refusal.reason for refusal in bench.plan.refusals]
        assert reasons == ([] if reason is None else [reason])
    bench.ask(flow)
    bench.batches(0.0)
    assert [refusal.reason for refusal in bench.plan.refusals] == [RejectionReason.QUEUE_FULL]
    assert bench.scheduler._queue.items == 4


def test_an_urgent_request_finds_room_in_its_applications_queue():
    """Less urgent ones give way; one that is no more urgent than they is refused as ever."""
    bench = Flows(workers=0, scheduling__queue_capacity=3)
    waiting = bench.ask("", 3)
    bench.ask("", priority=1)
    assert bench.refused() == [waiting[2]]
    late = bench.ask("", priority=9)
    assert bench.refused() == late


def test_a_copy_in_the_background_displaces_nobody():
    """It is served after all that its application asks for itself, and is the first to give way."""
    bench = Flows(batching__max_size=4, slots=1, scheduling__queue_capacity=8)
    copies = bench.ask("", 4, priority=BACKGROUND)
    asked = bench.ask("", 4, priority=7)
    assert bench.batches(0.0) == [asked]
    bench.ask("", 6)
    assert bench.refused() == [copies[3], copies[2]]


def test_flows_and_levels_survive_lost_workers_and_an_empty_queue():
    """What comes back from a lost worker waits in its own flow, also where others or none wait by then."""
    bench = Flows(workers=1, batching__max_size=2, slots=2)
    first = bench.ask("a", 2)
    second = bench.ask("b", 2, priority=1)
    assert bench.batches(0.0) == [[first[0], second[0]], [first[1], second[1]]]
    (other,) = bench.ask("c")
    bench.scheduler.on(WorkersDown((1,), "killed"), 0.0)
    bench.up(2, 0.0, slots=9)
    batches = bench.batches(0.0)
    assert sorted(itertools.chain(*batches)) == sorted([*first, *second, other])
    assert [first[0]] in batches
    assert [second[0]] in batches
    assert bench.scheduler._queue.items == 0
