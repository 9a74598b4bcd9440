"""The schedules of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.traffic import arrivals


@given(
    connections=st.integers(1, 50),
    answered=st.lists(st.booleans(), max_size=200),
    now_s=st.floats(0, 1e6),
)
def test_a_closed_loop_keeps_exactly_its_concurrency_in_flight(connections, answered, now_s):
    """Sending whenever something is due holds the number in flight, whatever is answered when."""
    schedule = arrivals.closed(connections)
    sent = finished = 0
    for is_answered in answered:
        while schedule.due_s(sent, finished, now_s) is not None:
            sent += 1
        assert sent - finished == connections
        finished += is_answered


def test_a_closed_loop_is_due_at_once():
    """A free client sends now, so that the intended time is the time of sending."""
    assert arrivals.closed(2).due_s(5, 4, 1.25) == 1.25


def test_no_connections_make_no_load():
    """A concurrency under one is refused."""
    with pytest.raises(ValueError, match="at least 1"):
        arrivals.closed(0)
