"""Laws of what is given up before a batch: by each flow's share, and never for another one's backlog."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.batch_times import BatchTimeEstimator
from serving.scheduling.adaptive.queue import QueuedRequest
from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.adaptive.shedding import BatchShares, Shedding
from serving.scheduling.interface import (
    ActionResult,
    Cancelled,
    RejectionReason,
    Submitted,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId

MODEL = ModelId("m", "1")
SIZE = 8
BACKLOG = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), max_size=30)
"""Items and milliseconds left of each request."""
BASE_MS = st.integers(0, 8)


def profile_of(base_ms):
    profile = BatchTimeEstimator()
    for size in (1, SIZE):
        profile.observe(size, 1e-3 * (base_ms + size))
    return profile


def entries_of(backlog, *, first_id=1, level=1):
    entries = [
        QueuedRequest(first_id + place, items, left_ms * 1e-3, 0.0, level)
        for place, (items, left_ms) in enumerate(backlog)
    ]
    return sorted(entries, key=lambda entry: (entry.level, entry.deadline_s, entry.id))


def items_of(entries):
    return sum(entry.waiting_items for entry in entries)


def refused(profile, backlogs, others_s=()):
    """What is given up of each backlog, in one look."""

    def upcoming(entries):
        def first(items):
            found = []
            for entry in entries:
                if items <= 0:
                    break
                found.append(entry)
                items -= entry.waiting_items
            return found

        return first

    backlogs = [entries for entries in backlogs if entries]
    shedding = Shedding(
        profile,
        BatchShares([items_of(entries) for entries in backlogs]),
        size=SIZE,
        waiting=sum(map(items_of, backlogs)),
        starts_s=0.0,
        others_s=sorted(others_s),
    )
    return [shedding.given_up(upcoming(entries)) for entries in backlogs]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 40))
def test_shares_fill_the_batch(waiting, size):
    """Everybody gets the same, or all it wants: together a batch, and no item too much for each."""
    share = BatchShares(waiting).of(size)
    got = sum(min(items, share) for items in waiting)
    assert got >= min(size, sum(waiting))
    assert sum(min(items, share - 1) for items in waiting) < size


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.lists(BACKLOG, max_size=3), BASE_MS)
def test_within_its_share_nothing_is_given_up(gaps_ms, others, base_ms):
    """Of a flow that can finish all in time by its share of full batches, whatever the others send."""
    profile = profile_of(base_ms)
    share = max(1, SIZE // (1 + sum(1 for backlog in others if backlog)))
    own, left_ms = [], 0.0
    for place, gap_ms in enumerate(gaps_ms):
        batches = 1 + place // share
        left_ms = gap_ms + max(left_ms, 1e-3 + batches * 1e3 * profile.estimate_s(SIZE))
        own.append((1, left_ms))
    entries = entries_of(own)
    rest = [entries_of(backlog, first_id=100 * (n + 1)) for n, backlog in enumerate(others)]
    for order in ([entries, *rest], [*rest, entries]):
        for given_up in refused(profile, order):
            assert not set(given_up) & set(entries)


@given(BACKLOG, BACKLOG, st.integers(2, 8), BASE_MS)
def test_what_is_given_up_does_not_grow_with_the_other_backlog(own, other, more, base_ms):
    """Once another flow fills its share of this batch and of the next, what else it sends costs this one nothing."""
    profile = profile_of(base_ms)
    full = [*other, *[(1, 1000)] * 3 * SIZE]
    first = refused(profile, [entries_of(own), entries_of(full, first_id=100)])
    again = refused(profile, [entries_of(own), entries_of(full * more, first_id=100)])
    if own:
        assert [entry.id for entry in first[0]] == [entry.id for entry in again[0]]


@given(BACKLOG.filter(bool), BACKLOG, BASE_MS)
def test_less_urgent_ones_cost_more_urgent_ones_nothing(urgent, other, base_ms):
    """What is given up of a level is what would be, were nothing less urgent there."""
    profile = profile_of(base_ms)
    (urgent, other) = entries_of(urgent), entries_of(other, first_id=100, level=2)
    # A flood beside it: what is less urgent would otherwise lengthen the next batch, or be the last to try.
    flood = entries_of([(1, 1000)] * 4 * SIZE, first_id=200)
    alone = refused(profile, [flood, urgent])[1:]
    both = refused(profile, [flood, urgent + other])[1:]
    kept = [[entry.id for entry in one if entry.level == 1] for one in both]
    assert kept == [[entry.id for entry in one] for one in alone]


OTHERS_S = st.lists(st.integers(0, 20).map(lambda ms: 1e-3 * ms), max_size=3)
"""When other workers could begin a batch."""


@given(BACKLOG, BASE_MS, OTHERS_S, st.integers(0, 20))
def test_one_worker_more_costs_nothing(backlog, base_ms, others_s, more_ms):
    """What is given up with it would be without it."""
    profile = profile_of(base_ms)
    entries = entries_of(backlog)
    without = refused(profile, [entries], others_s)
    with_it = refused(profile, [entries], [*others_s, 1e-3 * more_ms])
    for kept, more in zip(with_it, without, strict=True):
        assert set(kept) <= set(more)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), BASE_MS, st.integers(1, 3))
def test_what_idle_workers_can_finish_is_not_given_up(gaps_ms, base_ms, idle):
    """In full batches, one after the other, by as many workers."""
    profile = profile_of(base_ms)
    own, left_ms = [], 0.0
    for place, gap_ms in enumerate(gaps_ms):
        batches = 1 + place // (SIZE * (1 + idle))
        left_ms = gap_ms + max(left_ms, 1e-3 + batches * 1e3 * profile.estimate_s(SIZE))
        own.append((1, left_ms))
    assert refused(profile, [entries_of(own)], [0.0] * idle) == [[]]


def planned(requests, base_ms, *, other):
    """Batches and refusals of one scheduler's first plan with these requests, and who was there before."""
    scheduler = AdaptiveScheduler(
        MODEL, ServingSettings().with_changes({"batching.max_size": SIZE})
    )
    scheduler.on(WorkerUp(1, 3), 0.0)
    (load,) = scheduler.plan(0.0).actions
    scheduler.on(ActionResult(load.id, 1, True, None), 0.0)
    scheduler.profile = profile_of(base_ms)
    if other:
        scheduler.on(Submitted(1000, MODEL, 1, 9.0, 0, "other"), 0.0)
    for place, (items, left_ms) in enumerate(requests):
        scheduler.on(Submitted(place + 1, MODEL, items, left_ms * 1e-3), 0.0)
    if other:
        scheduler.on(Cancelled(1000), 0.0)
    plan = scheduler.plan(0.0)
    return [action.parts for action in plan.actions], [refusal.id for refusal in plan.refusals]


@given(BACKLOG, BASE_MS)
def test_one_flow_alone_is_treated_as_the_plain_queue_does(requests, base_ms):
    """Whether others were there before or not: the same batches, the same refusals."""
    batches, refusals = planned(requests, base_ms, other=False)
    assert planned(requests, base_ms, other=True) == (batches, refusals)


@pytest.mark.parametrize("flows", [["a"] * 40 + ["b"] * 40, ["a", "b"] * 40])
def test_an_overloaded_flow_does_not_cut_the_others_batches_short(flows):
    """Batches with the first heads would hold two items: heads go until a batch is full."""
    scheduler = AdaptiveScheduler(
        MODEL, ServingSettings().with_changes({"batching.max_size": SIZE})
    )
    scheduler.on(WorkerUp(1, 1), 0.0)
    (load,) = scheduler.plan(0.0).actions
    scheduler.on(ActionResult(load.id, 1, True, None), 0.0)
    scheduler.profile = profile_of(4)
    for place, flow in enumerate(flows):
        scheduler.on(Submitted(place + 1, MODEL, 1, (6 + 0.25 * place) * 1e-3, 0, flow), 0.0)
    plan = scheduler.plan(0.0)
    assert {refusal.reason for refusal in plan.refusals} == {RejectionReason.CANNOT_FINISH}
    assert [len(action.parts) for action in plan.actions] == [SIZE]
