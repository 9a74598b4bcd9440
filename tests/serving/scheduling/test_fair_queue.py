"""Laws of the queue with several flows: shares, order within a flow, who gives way, and its books."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.fair_queue import MAX_FLOWS, FairQueue
from serving.scheduling.adaptive.queue import SLACK, DeadlineQueue, QueuedRequest

FLOWS = ["", "a", "b", "c"]
PUSH = st.tuples(
    st.just("push"),
    st.integers(1, 5),
    st.tuples(st.sampled_from(FLOWS), st.integers(1, 3), st.integers(1, 20)),
)
STEPS = st.lists(
    st.one_of(
        PUSH,
        PUSH,
        st.tuples(st.just("take"), st.integers(1, 6), st.none()),
        st.tuples(st.just("give back"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("discard"), st.integers(0, 19), st.none()),
        st.tuples(st.just("last"), st.just(0), st.none()),
    ),
    max_size=60,
)


def entry_of(id_, items=1, deadline_s=30.0, level=1, flow="", cost=1):
    return QueuedRequest(id_, items, deadline_s, float(id_), level, flow, cost)


def queue_of(entries):
    queue = FairQueue()
    for entry in entries:
        queue.push(entry)
    return queue


def ids(batch):
    return [entry.id for entry, _ in batch]


def items_of(entries):
    return sum(stop - start for entry in entries for start, stop in entry.spans)


def order(entry):
    return entry.level, entry.deadline_s, entry.id


@given(st.integers(0, 6), STEPS)
def test_the_queue_tells_what_waits(first, steps):
    """After any events: count, age, first deadline, the next entry and the last are those of what waits."""
    plain, queue = DeadlineQueue(), FairQueue()
    entries, taken = [], []
    for id_ in range(first):
        entries.append(entry_of(id_, items=1 + id_ % 3))
        plain.push(entries[-1])
    queue.adopt(plain.drain())
    assert (plain.items, plain.head(), plain.oldest_arrival_s()) == (0, None, None)
    for what, number, more in steps:
        if what == "push":
            flow, level, deadline = more
            entries.append(entry_of(len(entries), number, float(deadline), level, flow))
            queue.push(entries[-1])
        elif what == "take":
            due = queue.first()
            taken.append(queue.take(number))
            assert ids(taken[-1])[:1] == ([] if due is None else [due.id])
            assert sum(stop - start for _, (_, start, stop) in taken[-1]) <= number
            for flow in FLOWS:
                own = [entry for entry, _ in taken[-1] if entry.flow == flow]
                assert own == sorted(own, key=order)
        elif what == "give back" and taken:
            batch = taken.pop(number % len(taken))
            for entry, part in reversed(batch) if more else batch:
                if not entry.left:
                    queue.give_back(entry, part)
        elif what == "discard" and (left := [entry for entry in entries if entry.spans]):
            queue.discard(left[number % len(left)])
        left = [entry for entry in entries if entry.spans]
        assert queue.items == items_of(left)
        assert queue.oldest_arrival_s() == min((entry.arrived_s for entry in left), default=None)
        head = queue.head()
        assert min((entry.deadline_s for entry in left), default=None) == (head and head.deadline_s)
        due = queue.first()
        assert (due is None) == (not left)
        if due is not None:
            assert due is min((entry for entry in left if entry.flow == due.flow), key=order)
        if what == "last" and left:
            waiting = {flow: items_of(e for e in left if e.flow == flow) for flow in FLOWS}
            last = queue.last()
            assert waiting[last.flow] == max(waiting.values())
            assert last is max((entry for entry in left if entry.flow == last.flow), key=order)
    assert queue.drain() == [entry for entry in entries if entry.spans]
    assert (queue.items, queue.first(), queue.last()) == (0, None, None)


@given(
    backlogs=st.lists(
        st.lists(st.integers(1, 9), min_size=20, max_size=30), min_size=2, max_size=4
    ),
    before=st.integers(0, 12),
    size=st.integers(1, 8),
)
def test_flows_that_wait_get_the_same(backlogs, before, size):
    """Whatever sizes they send and whenever they began: never more apart than the largest part of each."""
    queue = queue_of(entry_of(i, 3, flow="0") for i in range(before))
    for _ in range(before // 2):
        queue.take(size)
    entries = [
        entry_of(before + place, items, flow=str(flow))
        for place, (flow, items) in enumerate(
            (flow, items) for flow, sizes in enumerate(backlogs) for items in sizes
        )
    ]
    for entry in entries:
        queue.push(entry)
    got = dict.fromkeys({entry.flow for entry in entries}, 0)
    while got.keys() == {entry.flow for entry in entries if entry.spans}:
        assert max(got.values()) - min(got.values()) <= 2 * size
        for entry, (_, start, stop) in queue.take(size):
            got[entry.flow] += stop - start


@given(
    costs=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    items=st.integers(1, 3),
    size=st.integers(3, 8),
)
def test_large_items_count_for_more_and_are_by_themselves(costs, items, size):
    """Flows that wait get the same by what their items count for; no batch has both large ones and others, and
    each is as full as it can be."""
    entries = [
        entry_of(20 * flow + number, items, flow=str(flow), cost=cost)
        for flow, cost in enumerate(costs)
        for number in range(20)
    ]
    queue = queue_of(entries)
    got = dict.fromkeys({entry.flow for entry in entries}, 0)
    while got.keys() == {entry.flow for entry in entries if entry.spans}:
        assert max(got.values()) - min(got.values()) <= 2 * size * max(costs)
        waiting = [entry for entry in entries if entry.spans]
        batch = queue.take(size)
        (are_large,) = {entry.cost > 1 for entry, _ in batch}
        alike = sum(entry.items for entry in waiting if (entry.cost > 1) == are_large)
        assert sum(stop - start for _, (_, start, stop) in batch) > min(alike, size) - items
        for entry, (_, start, stop) in batch:
            got[entry.flow] += entry.cost * (stop - start)


@given(items=st.integers(1, 8), size=st.integers(1, 8), rounds=st.integers(1, 60))
def test_coming_and_going_gains_nothing(items, size, rounds):
    """A flow that sends its next large request when it has got the last gets no more than one that waits."""
    queue = queue_of(entry_of(i, flow="patient") for i in range(1000))
    got = {"patient": 0, "hasty": 0}
    for number in range(rounds):
        sent = entry_of(1000 + number, items, flow="hasty")
        queue.push(sent)
        while sent.spans:
            for entry, (_, start, stop) in queue.take(size):
                got[entry.flow] += stop - start
    assert got["hasty"] <= got["patient"] + 2 * size + items


def test_a_newcomer_is_in_the_next_batch():
    """However much of another flow waits."""
    queue = queue_of(entry_of(i, deadline_s=1.0, flow="flood") for i in range(100))
    queue.take(8)
    queue.push(entry_of(200, flow="small"))
    assert 200 in ids(queue.take(8))


def test_the_example_of_the_text():
    """Two flows, batches of four."""
    queue = queue_of(entry_of(i, flow="A" if i < 7 else "B") for i in range(1, 9))
    assert [ids(queue.take(4)), ids(queue.take(4))] == [[1, 7, 2, 8], [3, 4, 5, 6]]


def test_levels_order_one_flow_alone():
    """The urgent one of a flow overtakes its own kind and nobody else's; deadlines decide within a level."""
    queue = queue_of(
        [
            entry_of(1, level=2, flow="a"),
            entry_of(2, level=2, deadline_s=5.0, flow="a"),
            entry_of(3, level=1, flow="a"),
            entry_of(4, level=9, flow="b"),
            entry_of(5, level=3, flow="b"),
        ]
    )
    assert ids(queue.take(8)) == [3, 5, 2, 4, 1]


@pytest.mark.parametrize(("allowed", "batch"), [(1, [1]), (2, [1, 2]), (9, [1, 2, 3])])
def test_an_urgent_one_of_another_flow_keeps_the_batch_small(allowed, batch):
    """It shares a batch as far as that is in time for it; else it waits for the next."""
    queue = queue_of([entry_of(1, flow="a"), entry_of(2, deadline_s=1.0, flow="b")])
    queue.push(entry_of(3, flow="a"))
    assert ids(queue.take(8, most=lambda deadline_s: allowed if deadline_s == 1.0 else 8)) == batch


def test_one_that_runs_alone_is_a_batch():
    """A suspected request shares no batch with any flow; a large one is split all the same."""
    suspect = entry_of(2, 3, flow="b")
    suspect.is_solo = True
    queue = queue_of([entry_of(1, flow="a"), suspect, entry_of(3, flow="a")])
    assert [ids(queue.take(2)) for _ in range(4)] == [[1], [2], [3], [2]]


def test_names_beyond_the_most_flows_share_one():
    """Inventing names costs bounded memory, and what is sent under them is served."""
    queue = queue_of(entry_of(i, flow=f"flow {i}") for i in range(2 * MAX_FLOWS))
    assert len(queue._flows) == MAX_FLOWS + 1
    assert sorted(i for _ in range(2 * MAX_FLOWS) for i in ids(queue.take(1))) == list(
        range(2 * MAX_FLOWS)
    )
    assert queue.first() is None
    assert (queue._flows, queue._turns) == ({}, [])


def test_what_has_gone_is_forgotten():
    """Books stay small while requests come and go behind some that stay, whether taken or taken back."""
    queue = queue_of([entry_of(0, deadline_s=9e4, level=7, flow="a")])
    for number in range(1, 6 * SLACK):
        deadline_s = 1e5 if number % 2 else 10.0
        queue.push(entry_of(number, deadline_s=deadline_s, level=1 + number % 9, flow="a"))
        entry = queue._arrivals[-1]
        queue.last()
        if number % 3 == 0 or entry.level >= 7:
            queue.discard(entry)
        else:
            assert ids(queue.take(1)) == [number]
    (flow,) = queue._flows.values()
    books = [queue._arrivals, queue._heap, flow.heap, flow.last]
    assert all(len(book) <= SLACK + 8 for book in books)
    assert [*ids(queue.take(9)), queue.items] == [0, 0]
