"""Equal requests in flight: what one waiter does with its answer is no other waiter's affair."""

import asyncio

import pytest

from serving.cache.prediction_cache import Key
from serving.cache.single_flight import SingleFlight
from serving.errors import DeadlineExceeded
from serving.values import ModelId

KEY = Key(ModelId("m", "1"), 0, b"input")


class Waiter:
    """Notes how it was answered; then it sends others away, as a connection does that is lost."""

    def __init__(self, log, name, sends_away=()):
        self._log = log
        self._name = name
        self._sends_away = sends_away
        self.ticket = None

    def answer(self, _frame):
        self._end("answered")

    def refuse(self, _error):
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
            sent[0].answer(memoryview(b"output"))
        else:
            sent[0].refuse(DeadlineExceeded("queue"))
            for again in sent[1:]:
                again.answer(memoryview(b"output"))

    asyncio.run(scenario())
    early = "answered" if end == "answer" else "refused"
    assert log == [("first", early), ("second", early), ("last", "answered")]
