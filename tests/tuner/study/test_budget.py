"""How much is left of a study: trials, time, verification."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement.sequential import MIN_PAIRS
from tuner.study.budget import FINAL_ROUNDS, Budget

BUDGET = Budget(trials=50, initial=25, max_time_s=600, load_s=2.5, pairs=10)
CUT = dataclasses.replace(BUDGET, uses_time_slices=True)
"""The same where what is compared is up at once."""


def test_trials_end_at_their_number() -> None:
    """The last trial that may start is the one before the budget is reached."""
    assert BUDGET.stop_reason(49, 100.0, [3.0]) is None
    assert BUDGET.stop_reason(50, 100.0, [3.0]) == "the budget of 50 trials is used up"


def test_the_default_study_is_expected_to_end_within_six_minutes() -> None:
    """Fifty trials, the final selection and ten pairs fit."""
    assert BUDGET.left_s(0, []) < 360


def test_time_is_kept_for_the_verification() -> None:
    """Trials stop while the verification still fits into the longest time."""
    reason = BUDGET.stop_reason(20, 530.0, [3.0])
    assert reason is not None
    assert "20 of 50" in reason
    assert BUDGET.stop_reason(0, 1e6, []) is None  # the default is always launched


@given(max_time_s=st.floats(1, 1e4), used_s=st.floats(0, 1e4), wall_s=st.floats(0.1, 60))
def test_a_trial_that_may_start_ends_in_time(
    max_time_s: float, used_s: float, wall_s: float
) -> None:
    """Whatever the budget, a trial that is let in is expected to end before the longest time."""
    budget = Budget(trials=50, initial=25, max_time_s=max_time_s, load_s=2.5, pairs=10)
    if budget.stop_reason(3, used_s, [wall_s]) is None:
        assert used_s + wall_s <= max_time_s


def test_what_is_compared_side_by_side_takes_less_time() -> None:
    """Twenty pairs and the final selection in a minute, their servers' starts included."""
    assert CUT.compared_s < 0.4 * BUDGET.compared_s
    assert dataclasses.replace(CUT, pairs=20).verification_s() < 70
    slow = dataclasses.replace(CUT, start_s=5.0)
    assert slow.compared_s >= CUT.compared_s - 0.3 + 5.0


@given(st.floats(0.001, 5.0))
def test_long_latencies_make_fewer_rounds(latency_s: float) -> None:
    """What is compared side by side lasts six of them in each slice."""
    slow = CUT.with_latency(latency_s)
    assert slow.compared_s >= 4 * 6 * latency_s
    assert slow.pairs_in(120.0) <= CUT.pairs_in(120.0)
    assert slow.final_rounds_in(120.0, 3) <= CUT.final_rounds_in(120.0, 3)


def test_trials_that_fit_leave_room_for_the_verification() -> None:
    """All of the default budget fit into its ten minutes; in five seconds there is no search."""
    assert BUDGET.trials_in(600) >= 50
    brief = Budget(trials=50, initial=25, max_time_s=7, load_s=2.5, pairs=10)
    assert brief.trials_in(7.0) == 1
    assert brief.trials_in(0.0) == 0


@given(max_time_s=st.floats(1, 1e4))
def test_a_third_is_kept_and_enough_for_the_least_pairs(max_time_s: float) -> None:
    """But never more than half, nor more than all pairs and the final selection take."""
    budget = dataclasses.replace(BUDGET, max_time_s=max_time_s)
    kept_s = max_time_s - budget.trials_in(max_time_s) * budget.trial_s([])
    assert kept_s >= min(max_time_s / 3, budget.verification_s()) - 1e-6
    assert budget.reserved_for_verification_s <= max(max_time_s / 2, 1e-9)
    assert budget.reserved_for_verification_s <= budget.verification_s()


@given(left_s=st.floats(-100, 1e4), finalists=st.integers(2, 3))
def test_the_final_selection_leaves_time_for_the_least_pairs(left_s: float, finalists: int) -> None:
    for budget in (BUDGET, CUT):
        rounds = budget.final_rounds_in(left_s, finalists)
        assert 0 <= rounds <= FINAL_ROUNDS
        then_s = left_s - rounds * finalists * budget.compared_s - budget._begun_s(finalists)
        assert not rounds or budget.pairs_in(then_s) >= MIN_PAIRS


@given(
    at_once=st.integers(1, 9),
    left_s=st.floats(0, 1e3),
    pairs=st.integers(2, 40),
    arms=st.integers(2, 3),
)
def test_several_machines_measure_rounds_at_once(
    at_once: int, left_s: float, pairs: int, arms: int
) -> None:
    """As many rounds as there are machines take the time of one; starts take what they take."""
    for one in (BUDGET, CUT):
        alone = dataclasses.replace(one, pairs=pairs)
        several = dataclasses.replace(alone, at_once=at_once)
        assert several.rounds_s(at_once * pairs, arms) == alone.rounds_s(pairs, arms)
        assert several.rounds_s(1, arms) == alone.rounds_s(1, arms)
        started_s = alone.verification_s() - alone.rounds_s(pairs, 2) - alone.rounds_s(4, 3)
        assert several.verification_s() == pytest.approx(
            several.rounds_s(pairs, 2) + several.rounds_s(4, 3) + started_s
        )
        assert several.pairs_in(left_s) == max(2, min(pairs, at_once * alone.pairs_alone(left_s)))
        fits = several.pairs_alone(left_s)
        assert several.rounds_s(fits, 2) <= left_s + 1e-9


@given(left_s=st.floats(-100, 1e4))
def test_pairs_are_at_least_two_and_at_most_those_asked_for(left_s: float) -> None:
    """Little time means few pairs, never fewer than an interval needs."""
    assert 2 <= BUDGET.pairs_in(left_s) <= BUDGET.pairs


def test_where_every_trial_is_a_start_trials_tell_what_a_start_costs() -> None:
    """Before any was seen the first start does; the verification counts with the same."""
    budget = dataclasses.replace(BUDGET, start_s=5.0)
    assert budget.trial_s([]) == BUDGET.trial_s([]) + 5.0
    assert budget.verification_s(1, finalists=1) == pytest.approx(2 * (budget.load_s + 5.0))
    learnt = budget.with_start_time([budget.load_s + 8.0] * 3)
    assert learnt.start_s == pytest.approx(8.0)
    assert learnt.pairs_in(100.0) < budget.pairs_in(100.0)
    assert BUDGET.with_start_time([100.0]) == BUDGET


@given(max_time_s=st.floats(1, 1e4), left_s=st.floats(-10, 1e4))
def test_what_is_shown_in_an_open_loop_has_its_time(max_time_s: float, left_s: float) -> None:
    """It is kept beside the pairs, and taken from them; without it nothing changes."""
    plain = dataclasses.replace(BUDGET, max_time_s=max_time_s)
    shown = dataclasses.replace(plain, shows_open=True)
    assert plain.open_s == 0
    assert shown.open_s == pytest.approx(2 * (shown.fresh_s + 2 * shown.load_s))
    assert shown.reserved_for_verification_s >= plain.reserved_for_verification_s
    assert shown.reserved_for_verification_s <= max(max_time_s / 2, 1e-9)
    assert 2 <= shown.pairs_in(left_s) <= plain.pairs_in(left_s)
    assert shown.final_rounds_in(left_s, 3) <= plain.final_rounds_in(left_s, 3)
    assert shown.left_s(50, []) == pytest.approx(plain.left_s(50, []) + shown.open_s)


@given(loads_s=st.lists(st.floats(0.1, 60), max_size=9))
def test_loads_that_last_longer_make_fewer_pairs(loads_s: list[float]) -> None:
    """And shorter ones, that were ended early, no more of them."""
    learnt = BUDGET.with_load_time(loads_s)
    assert learnt.load_s >= BUDGET.load_s
    assert learnt.pairs_in(60.0) <= BUDGET.pairs_in(60.0)
    if loads_s and min(loads_s) > BUDGET.load_s:
        assert learnt.load_s > BUDGET.load_s
