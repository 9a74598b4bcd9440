"""The schedules of requests."""

import math

import numpy as np
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


def test_a_constant_rate_is_due_at_equal_distances_without_regard_to_answers():
    """The millionth is as punctual as the first: no rounding adds up."""
    schedule = arrivals.opened(1000.0, 5, "constant")
    assert [schedule.due_s(number, 0, 99.0) for number in range(3)] == [0.0, 0.001, 0.002]
    assert schedule.due_s(100_000, 0, 0.0) == 100.0


@given(
    rate_per_s=st.floats(0.5, 500.0),
    seed=st.integers(0, 1000),
    spread=st.sampled_from(["constant", "poisson"]),
    end_s=st.floats(0.0, 5.0),
)
def test_what_belongs_to_a_phase_is_what_was_due_by_its_end(rate_per_s, seed, spread, end_s):
    """Asked before or after, a schedule gives the same seconds, in order, and counts them rightly."""
    asked, counted = (arrivals.opened(rate_per_s, 3, spread, seed) for _ in range(2))
    count = counted.belonging(0, end_s)
    due_s = [asked.due_s(number, 0, 0.0) for number in range(count + 1)]
    assert due_s == sorted(due_s)
    assert all(second <= end_s for second in due_s[:count])
    assert due_s[count] > end_s
    assert counted.belonging(count + 7, end_s) == count + 7
    assert [counted.due_s(number, 0, 0.0) for number in range(count + 1)] == due_s


def test_poisson_arrivals_have_exponential_distances():
    """Mean and standard deviation of 20,000 distances are both 1 / rate, within five standard errors."""
    schedule = arrivals.opened(50.0, 1, "poisson", seed=3)
    gaps_s = np.diff([schedule.due_s(number, 0, 0.0) for number in range(20_001)])
    reach = 5 / math.sqrt(20_000)
    assert gaps_s.mean() * 50 == pytest.approx(1, abs=reach)
    assert gaps_s.std() * 50 == pytest.approx(1, abs=1.5 * reach)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0.0, 1), "more than 0"),
        ((math.inf, 1), "more than 0"),
        ((math.nan, 1), "more than 0"),
        ((1.0, 0), "at least 1"),
        ((1.0, 1, "bursty"), "constant or poisson"),
    ],
)
def test_an_open_loop_without_sense_is_refused(values, text):
    """A rate above 0, a connection, a spread that is known."""
    with pytest.raises(ValueError, match=text):
        arrivals.opened(*values)
