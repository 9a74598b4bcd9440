"""Equal requests in flight: what one waiter does with its answer is no other waiter's affair."""

import asyncio
import time

import pytest

from serving.cache.response_cache import CacheKey
from serving.cache.single_flight import SingleFlight
from serving.errors import DeadlineExceeded
from serving.values import ModelId

KEY = CacheKey(ModelId("m", "1"), 0, b"input")


class Waiter:
    """Notes how it was answered; then it sends others away, as a connection does that is lost."""

    def __init__(self, log, name, sends_away=()):
        self._log = log
        self._name = name
        self._sends_away = sends_away
        self.ticket = None

    def on_result(self, _frame):
        self._end("answered")

    def on_error(self, _error):
        self._end("refused")

    def _end(self, how):
        self._log.append((self._name, how))
        for other in self._sends_away:
            other.ticket.cancel()


class Sent:
    def cancel(self):
        raise AssertionError("it has ended already")


@pytest.mark.parametrize("end", ["answer", "deadline"])
def test_a_waiter_that_sends_others_away_harms_nobody_else(end):
    """Those sent away hear nothing, neither now nor from a second execution; all others are answered."""
    log, sent = [], []

    def send(inner, _deadline_s):
        sent.append(inner)
        return Sent()

    async def scenario():
        flights = SingleFlight(1_000_000)
        first = Waiter(log, "first")
        third, last = Waiter(log, "third"), Waiter(log, "last")
        second = Waiter(log, "second", [first, third])
        waiters = [first, second, third, last]
        for waiter in waiters:
            deadline_s = 1.0 if waiter in (first, second) else 2.0
            waiter.ticket = flights.submit(KEY, waiter, deadline_s, send)
        if end == "answer":
            sent[0].on_result(memoryview(b"output"))
        else:
            sent[0].on_error(DeadlineExceeded("queue"))
            for again in sent[1:]:
                again.on_result(memoryview(b"output"))

    asyncio.run(scenario())
    early = "answered" if end == "answer" else "refused"
    assert log == [("first", early), ("second", early), ("last", "answered")]


class Counted:
    """A request that was sent on, and how often it was called off."""

    def __init__(self, waiter, deadline_s):
        self.handler = waiter
        self.deadline_s = deadline_s
        self.cancelled = 0

    def cancel(self):
        self.cancelled += 1


def test_the_first_one_leaves_and_the_others_are_answered():
    """Its execution is theirs; the last one that leaves ends it, and the next equal request is sent anew."""
    log, sent = [], []

    def send(inner, deadline_s):
        sent.append(Counted(inner, deadline_s))
        return sent[-1]

    async def scenario():
        flights = SingleFlight(1_000_000)
        first, second, third, fourth = (Waiter(log, name) for name in "1234")
        for waiter in (first, second):
            waiter.ticket = flights.submit(KEY, waiter, 1.0, send)
        first.ticket.cancel()
        first.ticket.cancel()
        assert [one.cancelled for one in sent] == [0]
        second.ticket.cancel()
        assert [one.cancelled for one in sent] == [1]
        for waiter, deadline_s in ((third, 2.0), (fourth, 3.0)):
            waiter.ticket = flights.submit(KEY, waiter, deadline_s, send)
        third.ticket.cancel()
        sent[1].handler.on_error(DeadlineExceeded("queue"))
        assert [one.deadline_s for one in sent] == [1.0, 2.0, 3.0]
        sent[2].handler.on_result(memoryview(b"output"))
        third.ticket.cancel()
        fourth.ticket.cancel()
        assert [one.cancelled for one in sent] == [1, 0, 0]

    asyncio.run(scenario())
    assert log == [("4", "answered")]


def test_leaving_does_not_look_at_those_who_stay():
    """Twenty thousand who wait for one answer go away, the last one first, as quickly as they came."""
    count, places, times = 20_000, [], []

    async def scenario():
        flights = SingleFlight(1_000_000)
        times.append(time.process_time())
        for number in range(count):
            waiter = Waiter([], str(number))
            places.append(flights.submit(KEY, waiter, 1.0, lambda inner, _: Counted(inner, 1.0)))
        times.append(time.process_time())
        for place in reversed(places):
            place.cancel()
        times.append(time.process_time())

    asyncio.run(scenario())
    came_s, went_s = times[1] - times[0], times[2] - times[1]
    assert went_s < 10 * came_s
