"""Laws of the queue by deadline: what it tells of the waiting entries, whatever was taken and given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.fair_queue import FairQueue
from serving.scheduling.adaptive.queue import SLACK, DeadlineQueue, QueuedRequest

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 5), st.integers(1, 20)),
        st.tuples(st.just("take"), st.integers(1, 6), st.none()),
        st.tuples(st.just("give back"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("discard"), st.integers(0, 19), st.none()),
    ),
    max_size=60,
)
FIRST = st.lists(st.tuples(st.just("push"), st.integers(1, 3), st.integers(1, 20)), max_size=9)


def waiting(entries):
    return [entry for entry in entries if entry.spans]


@given(FIRST, STEPS)
def test_the_queue_tells_the_oldest_and_the_most_urgent_of_what_waits(first, steps):
    """After any pushes, batches, lost batches and departures: age, deadline and count are those of the waiting."""
    queue = DeadlineQueue()
    entries, taken = [], []
    for now_s, (what, number, more) in enumerate(first + steps):
        if what == "push":
            entries.append(QueuedRequest(len(entries), number, float(more), float(now_s)))
            queue.push(entries[-1])
        elif what == "take":
            batch = queue.take(number)
            deadlines = [entry.deadline_s for entry, _ in batch]
            assert deadlines == sorted(deadlines)
            taken.append(batch)
        elif what == "give back" and taken:
            batch = taken.pop(number % len(taken))
            for entry, part in reversed(batch) if more else batch:
                if not entry.left:
                    queue.give_back(entry, part)
        elif what == "discard" and waiting(entries):
            left = waiting(entries)
            queue.discard(left[number % len(left)])
        left = waiting(entries)
        assert queue.items == sum(stop - start for entry in left for start, stop in entry.spans)
        assert queue.oldest_arrival_s() == min((entry.arrived_s for entry in left), default=None)
        urgent = min(((entry.deadline_s, entry.id) for entry in left), default=None)
        head = queue.head()
        assert urgent == (None if head is None else (head.deadline_s, head.id))


@pytest.mark.parametrize("kind", [DeadlineQueue, FairQueue])
def test_what_leaves_while_nothing_is_served_is_forgotten(kind):
    """Requests that expire one after the other, as where no replica runs, leave no trace."""
    queue = kind()
    for number in range(4 * SLACK):
        queue.push(QueuedRequest(number, 1, float(number), float(number)))
        queue.discard(queue.head())
    assert len(queue._arrivals) + len(queue._heap) < 3 * SLACK
    assert queue.oldest_arrival_s() is None


def test_a_batch_that_comes_back_is_as_old_as_it_was():
    """A younger request with an earlier deadline, handed back, does not hide the older ones behind it."""
    queue = DeadlineQueue()
    old, young = QueuedRequest(1, 1, 30.0, 0.0), QueuedRequest(2, 1, 5.0, 4.0)
    queue.push(old)
    queue.push(young)
    [(entry, part)] = queue.take(1)
    assert entry is young
    queue.give_back(entry, part)
    assert queue.oldest_arrival_s() == 0.0


def test_what_has_gone_is_forgotten_behind_one_that_stays():
    """A request that waits for a day while others come and go by thousands leaves no trace of these."""
    queue = DeadlineQueue()
    queue.push(QueuedRequest(0, 1, 86400.0, 0.0))
    for number in range(1, 4 * SLACK):
        queue.push(QueuedRequest(number, 1, 10.0, float(number)))
        [(entry, _)] = queue.take(1)
        assert entry.id == number
    for number in range(4 * SLACK, 8 * SLACK):
        queue.push(QueuedRequest(number, 1, 90000.0, float(number)))
        queue.discard(queue._arrivals[-1])
    assert len(queue._arrivals) + len(queue._heap) < 3 * SLACK
    assert queue.oldest_arrival_s() == 0.0
    assert [entry.id for entry, _ in queue.take(8)] == [0]


@given(FIRST, STEPS, st.integers(1, 30))
def test_the_queue_looks_ahead_in_deadline_order(first, steps, items):
    """As many entries as hold so many items, as `take` would give them; looking changes nothing."""
    queue = DeadlineQueue()
    entries, taken = [], []
    for now_s, (what, number, more) in enumerate(first + steps):
        if what == "push":
            entries.append(QueuedRequest(len(entries), number, float(more), float(now_s)))
            queue.push(entries[-1])
        elif what == "take":
            taken.append(queue.take(number))
        elif what == "give back" and taken:
            for entry, part in taken.pop(number % len(taken)):
                if not entry.left:
                    queue.give_back(entry, part)
        elif what == "discard" and waiting(entries):
            queue.discard(waiting(entries)[number % len(waiting(entries))])
    expected, left = [], items
    for entry in sorted(waiting(entries), key=lambda entry: (entry.deadline_s, entry.id)):
        if left <= 0:
            break
        expected.append(entry)
        left -= entry.waiting_items
    before = queue.items
    assert queue.upcoming(items) == expected
    assert queue.items == before
