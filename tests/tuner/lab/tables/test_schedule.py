"""Which cells are launched next: whole passes in new orders, then the best ones until they are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.lab.tables.estimates import (
    PRIOR_DEGREES,
    UNKNOWN_SD,
    CandidateEstimate,
    estimates,
    pooled_sd,
)
from tuner.lab.tables.schedule import HasRecord, RepeatRule, due, expected_evaluations, rivals
from tuner.values.configuration import Configuration

CELLS = tuple(Configuration({"a": value}) for value in range(40))
THOROUGH = RepeatRule()


def recorded_all(
    sd: float, *, seed: int = 0, lost: frozenset[int] = frozenset(), limit: int = 10_000
) -> list[HasRecord]:
    """A recording to its end: cell a takes 10 + a."""
    rng = np.random.default_rng(seed)
    found: list[HasRecord] = []
    while len(found) < limit:
        sweep, waiting = due(CELLS, found, THOROUGH, seed=seed)
        if not waiting:
            return found
        cell = waiting[0]
        value = (10 + int(cell["a"])) * math.exp(sd * rng.normal())
        found.append(HasRecord(sweep, cell, None if cell["a"] in lost else value))
    raise AssertionError("it does not end")


def test_every_pass_has_every_cell_once_in_a_new_order() -> None:
    found = recorded_all(0.0001)
    passes = [[one.cell for one in found if one.sweep == sweep] for sweep in range(3)]
    assert all(sorted(each, key=hash) == sorted(CELLS, key=hash) for each in passes)
    assert passes[0] != passes[1] != passes[2]
    assert len(found) == 3 * len(CELLS), "well known cells are not launched again"


def test_the_best_cells_are_launched_until_they_are_known_or_had_enough() -> None:
    found = recorded_all(0.10)
    values = {
        cell: [one.value for one in found if one.cell == cell and one.value] for cell in CELLS
    }
    counts = {cell: len(each) for cell, each in values.items()}
    first = int(np.argmin([counts[cell] < THOROUGH.most for cell in CELLS]))
    assert first == 0, "the best cell had enough"
    assert sum(count > THOROUGH.most for count in counts.values()) <= 2, "only beside rivals"
    again = [int(cell["a"]) for cell, count in counts.items() if count > 3]
    assert again
    assert max(again) < 15, "only good cells are launched again"


def test_with_less_noise_fewer_launches_are_enough() -> None:
    assert len(recorded_all(0.02)) < len(recorded_all(0.10))


def test_a_recording_goes_on_where_it_was_cut_off() -> None:
    whole = recorded_all(0.05)
    for cut in (1, 39, 40, 100, 125):
        sweep, waiting = due(CELLS, whole[:cut], THOROUGH, seed=0)
        assert (sweep, waiting[0]) == (whole[cut].sweep, whole[cut].cell)


def test_cells_that_fail_are_launched_in_each_pass_and_not_again() -> None:
    found = recorded_all(0.10, lost=frozenset({0, 1}))
    assert all(sum(one.cell == cell for one in found) == 3 for cell in CELLS[:2])


def test_estimates_borrow_from_the_pooled_spread() -> None:
    rng = np.random.default_rng(0)
    values = {cell: list(np.exp(0.05 * rng.normal(size=3))) for cell in range(400)}
    assert pooled_sd(values) == pytest.approx(0.05, rel=0.1)
    own = {cell: np.std(np.log(each), ddof=1) / math.sqrt(3) for cell, each in values.items()}
    known = estimates(values)
    truth = 0.05 / math.sqrt(3)
    assert np.std([one.se for one in known.values()]) < np.std(list(own.values())) / 2
    assert np.mean([one.se**2 for one in known.values()]) == pytest.approx(truth**2, rel=0.15)


def test_one_launch_each_says_nothing_of_their_spread() -> None:
    known = estimates({"a": [1.0], "b": [2.0]})
    assert known["a"].se == pytest.approx(UNKNOWN_SD)
    assert PRIOR_DEGREES > 0


def test_about_as_many_launches_are_expected_as_are_made() -> None:
    assert expected_evaluations(len(CELLS), THOROUGH) == pytest.approx(
        len(recorded_all(0.03)), rel=0.2
    )


def test_a_cell_that_met_good_moments_is_launched_until_they_are_told_from_it() -> None:
    """Cell 20 is twice as slow as the best, and its launches in the passes look like the best one's."""
    unlucky = CELLS[20]
    found: list[HasRecord] = []
    rng = np.random.default_rng(3)
    while True:
        sweep, waiting = due(CELLS, found, THOROUGH, seed=3)
        if not waiting:
            break
        cell = waiting[0]
        value = (10 + int(cell["a"])) * math.exp(0.03 * rng.normal())
        if cell == unlucky and sweep < THOROUGH.passes:
            value = 11.5 * math.exp(0.1 * rng.normal())
        found.append(HasRecord(sweep, cell, value))
    later = [one for one in found if one.cell == unlucky and one.sweep >= THOROUGH.passes]
    assert len(later) >= 2
    sweeps = {one.sweep for one in later}
    beside = [one for one in found if one.sweep in sweeps and one.cell != unlucky]
    assert len(beside) >= len(later), "well known cells are launched in the same sweeps"


def test_nothing_is_a_rival_that_could_not_be_among_the_best() -> None:
    known = {
        CELLS[0]: CandidateEstimate(math.log(10.0), 0.005, 16),
        CELLS[1]: CandidateEstimate(math.log(11.0), 0.04, 3),
        CELLS[2]: CandidateEstimate(math.log(11.0), 0.01, 8),
    }
    known[CELLS[3]] = CandidateEstimate(math.log(12.5), 0.04, 3)
    rng = np.random.default_rng(0)
    first, beside = rivals(known, THOROUGH, rng)
    assert first == CELLS[1], "the one that is not well known and near enough"
    assert beside in {CELLS[0], CELLS[2]}, "a well known one beside it"
    assert rivals({CELLS[3]: known[CELLS[3]]}, THOROUGH, rng) == [], "none is well known"
