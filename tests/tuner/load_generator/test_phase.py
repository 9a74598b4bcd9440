"""When the parts of a phase begin and end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load_generator.phase import Phase, fell_behind, is_warm
from tuner.load_generator.plan import PhasePlan, Race, Warmup

RULE = Warmup(seconds=0.5, round_trips=3, cap_s=10.0)


@pytest.mark.parametrize(
    ("now_s", "finished", "least", "expected", "why"),
    [
        (0.4, 900, 45, False, "many answers, but too early"),
        (0.5, 900, 45, True, "time and answers"),
        (0.5, 900, 2, False, "one connection has had only two answers"),
        (9.9, 900, 2, False, "the same, just before the cap"),
        (10.0, 900, 2, True, "the same, at the cap: the others have had enough"),
        (10.0, 59, 2, False, "a slow server at the cap: not yet three answers per connection"),
        (25.0, 60, 2, True, "a slow server has had its three round trips in the mean"),
    ],
)
def test_the_warmup_ends_by_its_rule(now_s, finished, least, expected, why):
    """Seconds and three round trips for each of 20 connections; from the cap on, in the mean."""
    assert is_warm(RULE, 20, now_s=now_s, finished=finished, min_round_trips=least) is expected, why


def test_a_timed_phase_measures_exactly_its_seconds():
    """The measured part ends that long after the warm-up, even if the clock is looked at late."""
    phase = Phase(PhasePlan(host="h", port=1, concurrency=2, seconds=2.0))
    assert phase.next_s == 0.1
    phase.advance(0.52, sent=20, finished=18, min_round_trips=9)
    assert (phase.warmup_end_s, phase.next_s, phase.limit) == (0.52, 2.52, math.inf)
    phase.advance(2.53, sent=100, finished=98, min_round_trips=40)
    assert (phase.measured_end_s, phase.limit) == (2.52, 100)


def test_a_slow_server_is_measured_until_it_has_answered_enough():
    """To whole tenths of a second; not for ever, and a quick one not a moment longer."""

    def phase(finished):
        found = Phase(PhasePlan(host="h", port=1, concurrency=20, seconds=0.6, answers=80))
        found.advance(0.5, sent=50, finished=30, min_round_trips=3)
        found.advance(1.09, sent=finished + 20, finished=finished, min_round_trips=4)
        return found

    quick = phase(110)
    assert quick.next_s == pytest.approx(1.1)
    quick.advance(1.12, sent=140, finished=120, min_round_trips=5)
    assert quick.measured_end_s == pytest.approx(1.1)
    slow = phase(60)
    assert slow.measured_end_s is None
    slow.advance(2.34, sent=129, finished=109, min_round_trips=6)
    assert slow.measured_end_s is None
    slow.advance(2.37, sent=130, finished=110, min_round_trips=6)
    assert slow.measured_end_s is None
    assert slow.next_s == pytest.approx(2.4)
    slow.advance(2.41, sent=131, finished=111, min_round_trips=6)
    assert slow.measured_end_s == pytest.approx(2.4)
    stuck = phase(60)
    stuck.advance(10.6, sent=81, finished=61, min_round_trips=3)
    assert stuck.measured_end_s == pytest.approx(10.5)


def test_a_counted_phase_counts_after_the_warmup():
    """Requests that were in flight when the warm-up ended count."""
    phase = Phase(PhasePlan(host="h", port=1, concurrency=2, requests=30))
    phase.advance(0.5, sent=20, finished=18, min_round_trips=9)
    assert phase.limit == 48
    phase.close(1.75)
    assert phase.measured_end_s == 1.75


def test_without_a_warmup_a_counted_phase_is_exactly_its_requests():
    """Nothing is sent before the limit is known."""
    plan = PhasePlan(
        host="h", port=1, concurrency=2, requests=5, warmup=Warmup(seconds=0, round_trips=0)
    )
    phase = Phase(plan)
    phase.advance(0.0, sent=0, finished=0, min_round_trips=0)
    assert (phase.warmup_end_s, phase.limit) == (0.0, 5)


@given(due=st.integers(1, 10**6), waiting=st.integers(-(10**6), 10**6))
def test_a_server_falls_behind_by_a_share_of_what_was_due(due, waiting):
    """Never where it caught up, never by a tenth or less, never for a few requests; else by just that share."""
    found = fell_behind(due, waiting)
    if waiting <= 0.1 * due or waiting <= 3 * math.sqrt(due):
        assert found == 0
    else:
        assert found == waiting / due


def test_an_open_phase_sends_nothing_that_is_due_after_its_end():
    """The limit is known from the end of the warm-up on; the phase goes on until its end all the same."""
    plan = PhasePlan(
        host="h", port=1, concurrency=5, seconds=2.0, rate_per_s=100.0, spread="constant"
    )
    phase = Phase(plan)
    phase.advance(1.005, sent=101, finished=101, min_round_trips=0)
    assert (phase.limit, phase.total, phase.measured_end_s) == (301, math.inf, None)
    phase.advance(3.001, sent=301, finished=301, min_round_trips=0)
    assert (phase.limit, phase.total) == (301, math.inf), (
        "all has finished, and the time is not over"
    )
    phase.advance(3.2, sent=301, finished=301, min_round_trips=0)
    assert (phase.limit, phase.total, phase.measured_end_s) == (301, 301, 3.005)


@pytest.mark.parametrize(
    ("before", "after", "behind"),
    [(10, 10, 0.0), (0, 15, 0.0), (30, 0, 0.0), (0, 100, 0.5), (40, 140, 0.5)],
)
def test_an_open_phase_looks_back_when_all_was_due(before, after, behind):
    """Of 200 requests in 2 s: those without an answer at its end, less those at its beginning."""
    plan = PhasePlan(
        host="h", port=1, concurrency=500, seconds=2.0, rate_per_s=100.0, spread="constant"
    )
    phase = Phase(plan)
    phase.advance(1.005, sent=101, finished=101 - before, min_round_trips=0)
    assert phase.warmup_end_s == 1.005
    phase.advance(2.0, sent=201, finished=201 - after, min_round_trips=0)
    assert phase.fell_behind == 0, "it is not over yet"
    phase.advance(3.005, sent=301, finished=301 - after, min_round_trips=0)
    assert phase.fell_behind == behind
    phase.advance(3.1, sent=301, finished=301, min_round_trips=0)
    assert phase.fell_behind == behind, "what is decided stays decided"


@given(
    steps=st.lists(st.tuples(st.floats(0, 0.7), st.integers(0, 9)), min_size=1, max_size=60),
    by_time=st.booleans(),
)
def test_a_phase_only_moves_forward(steps, by_time):
    """What is decided stays decided, and the limit never falls under what was sent."""
    plan = PhasePlan(
        host="h",
        port=1,
        concurrency=4,
        seconds=2.0 if by_time else None,
        requests=None if by_time else 3,
    )
    phase = Phase(plan)
    now_s, sent = 0.0, 4
    before = (None, None)
    for wait_s, answers in steps:
        now_s += wait_s
        sent = min(sent + answers, phase.limit)
        phase.advance(now_s, sent=sent, finished=sent - 4, min_round_trips=(sent - 4) // 4)
        after = (phase.warmup_end_s, phase.measured_end_s)
        for was, now in zip(before, after, strict=True):
            assert was is None or was == now
        assert phase.limit >= sent
        if phase.measured_end_s is not None:
            assert phase.measured_end_s == phase.warmup_end_s + 2.0
        before = after


def raced(*limits_ms: float) -> Phase:
    """A phase of two seconds that is warm after half a second."""
    race = Race(look_s=0.5, limits_ms=limits_ms)
    phase = Phase(PhasePlan(host="h", port=1, concurrency=2, seconds=2.0, race=race))
    assert phase.next_look_s == math.inf
    phase.advance(0.5, sent=20, finished=18, min_round_trips=9)
    return phase


def test_a_lost_race_ends_the_measured_part_at_its_look():
    """The first look that is above its limit ends it there; nothing is sent any more."""
    phase = raced(30.0, 20.0, 15.0)
    assert phase.next_s == phase.next_look_s == 1.0
    phase.look(29.0, sent=40)
    assert (phase.measured_end_s, phase.next_look_s) == (None, 1.5)
    phase.look(20.1, sent=60)
    assert (phase.measured_end_s, phase.limit, phase.next_look_s) == (1.5, 60, math.inf)


def test_a_race_that_is_kept_up_with_lasts_its_time():
    """Behind the last look time decides, as without a race."""
    phase = raced(30.0)
    phase.look(30.0, sent=40)
    assert (phase.next_look_s, phase.next_s) == (math.inf, 2.5)
    phase.advance(2.6, sent=100, finished=98, min_round_trips=40)
    assert phase.measured_end_s == 2.5
