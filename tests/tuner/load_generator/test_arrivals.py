"""The schedules of requests."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load_generator import arrivals


@given(
    connections=st.integers(1, 50),
    answered=st.lists(st.booleans(), max_size=200),
    now_s=st.floats(0, 1e6),
)
def test_a_closed_loop_keeps_exactly_its_concurrency_in_flight(connections, answered, now_s):
    """Sending whenever something is due holds the number in flight, whatever is answered when."""
    schedule = arrivals.ClosedLoop(connections)
    sent = finished = 0
    for is_answered in answered:
        while schedule.due_s(sent, finished, now_s) is not None:
            sent += 1
        assert sent - finished == connections
        finished += is_answered


def test_a_closed_loop_is_due_at_once():
    """A free client sends now, so that the intended time is the time of sending."""
    assert arrivals.ClosedLoop(2).due_s(5, 4, 1.25) == 1.25


def test_a_constant_rate_is_due_at_equal_distances_without_regard_to_answers():
    """The millionth is as punctual as the first: no rounding adds up."""
    schedule = arrivals.make_open_loop(1000.0, 5, "constant")
    assert [schedule.due_s(number, 0, 99.0) for number in range(3)] == [0.0, 0.001, 0.002]
    assert schedule.due_s(100_000, 0, 0.0) == 100.0


TRACE_S = (3.0, 3.25, 3.25, 4.0, 7.5)
SPREADS = ["constant", "poisson", "burst", "trace"]


def opened(rate_per_s, spread, seed=0):
    """A schedule of each kind; `TRACE_S` is the trace."""
    offsets_s = TRACE_S if spread == "trace" else ()
    return arrivals.make_open_loop(rate_per_s, 3, spread, seed, offsets_s)


def first(schedule, count):
    """The seconds of the first arrivals."""
    return np.array([schedule.due_s(number, 0, 0.0) for number in range(count)])


@given(
    rate_per_s=st.floats(0.5, 500.0),
    seed=st.integers(0, 1000),
    spread=st.sampled_from(SPREADS),
    end_s=st.floats(0.0, 5.0),
)
def test_what_belongs_to_a_phase_is_what_was_due_by_its_end(rate_per_s, seed, spread, end_s):
    """Asked before or after, a schedule gives the same seconds, in order, and counts them rightly."""
    asked, counted = (opened(rate_per_s, spread, seed) for _ in range(2))
    count = counted.belonging(0, end_s)
    due_s = [asked.due_s(number, 0, 0.0) for number in range(count + 1)]
    assert due_s == sorted(due_s)
    assert all(second <= end_s for second in due_s[:count])
    assert due_s[count] > end_s
    assert counted.belonging(count + 7, end_s) == count + 7
    assert [counted.due_s(number, 0, 0.0) for number in range(count + 1)] == due_s


def test_poisson_arrivals_have_exponential_distances():
    """Mean and standard deviation of 20,000 distances are both 1 / rate, within five standard errors."""
    schedule = arrivals.make_open_loop(50.0, 1, "poisson", seed=3)
    gaps_s = np.diff([schedule.due_s(number, 0, 0.0) for number in range(20_001)])
    reach = 5 / math.sqrt(20_000)
    assert gaps_s.mean() * 50 == pytest.approx(1, abs=reach)
    assert gaps_s.std() * 50 == pytest.approx(1, abs=1.5 * reach)


def test_a_trace_of_one_moment_is_refused():
    """It has no rate."""
    with pytest.raises(ValueError, match="two arrivals at different times"):
        arrivals.make_open_loop(1.0, 1, "trace", 0, (2.0, 2.0))


@given(rate_per_s=st.floats(1.0, 1e5), seed=st.integers(0, 2**40), spread=st.sampled_from(SPREADS))
def test_each_kind_has_the_mean_rate_that_was_asked_for(rate_per_s, seed, spread):
    """Of 2,000 arrivals, which take 2,000 / rate; random ones within six standard deviations (2e-9)."""
    due_s = first(opened(rate_per_s, spread, seed), 2_001)
    expected_s = 2_000 / rate_per_s
    if spread in {"constant", "trace"}:
        assert due_s[2_000] == pytest.approx(expected_s, rel=1e-9)
        return
    reach_s = 6 * math.sqrt(2_000) / rate_per_s
    if spread == "burst":  # a phase may end within a burst, or just before one
        reach_s = 3 * reach_s + arrivals.BURST_PERIOD_S
    assert abs(due_s[2_000] - expected_s) < reach_s


@given(seed=st.integers(0, 2**40), spread=st.sampled_from(["poisson", "burst"]))
def test_the_seed_alone_decides_what_is_random(seed, spread):
    """Equal seeds give equal schedules; another seed another one."""
    one, same = (first(opened(100.0, spread, seed), 50) for _ in range(2))
    assert one.tolist() == same.tolist()
    assert first(opened(100.0, spread, seed + 1), 50).tolist() != one.tolist()


@given(
    seed=st.integers(0, 2**40), rate_per_s=st.floats(1.0, 1e4), factor=st.sampled_from([0.5, 2, 8])
)
def test_a_trace_and_a_constant_load_scale_with_their_rate(seed, rate_per_s, factor):
    """At so many times the rate, everything is due so much earlier."""
    for spread in ("constant", "trace", "poisson"):
        slow = first(opened(rate_per_s, spread, seed), 40)
        fast = first(opened(factor * rate_per_s, spread, seed), 40)
        assert fast * factor == pytest.approx(slow)


def test_a_trace_is_repeated_from_its_first_arrival_on():
    """Its distances as they were, then the mean distance, then all of it again."""
    gaps_s = np.diff(first(opened(arrivals.traced_rate(TRACE_S), "trace"), 11))
    mean_s = 4.5 / 4
    assert gaps_s.tolist() == pytest.approx([0.25, 0, 0.75, 3.5, mean_s] * 2)


def test_a_burst_is_three_times_the_rate_for_a_tenth_of_a_second_in_every_half():
    """Folded to one period, ten of its fifty hundredths hold three fifths of 20,000 arrivals."""
    due_s = first(opened(1000.0, "burst", 5), 20_000)
    folded, _ = np.histogram(due_s % arrivals.BURST_PERIOD_S, bins=50, range=(0, 0.5))
    shares = np.convolve(np.tile(folded, 2), np.ones(10))[9:59] / 20_000
    assert shares.max() == pytest.approx(0.6, abs=0.05)
    assert shares.min() == pytest.approx(0.1, abs=0.01)
