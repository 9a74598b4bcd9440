"""When a recommendation was good and stayed so, and how long random search takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.lab.tables import scoring
from tuner.lab.tables.ground_truth import GroundTruth
from tuner.lab.tables.scoring import ReplayRun
from tuner.values.configuration import Configuration

CELLS = tuple(Configuration({"a": value}) for value in range(10))
TRUTH = GroundTruth(
    candidates=CELLS,
    log_mean=np.log(10 + 0.2 * np.arange(10.0)),
    se=np.full(10, 0.004),
    unsuccessful=frozenset(),
)


def run(*places: int | None) -> ReplayRun:
    found = tuple(None if place is None else CELLS[place] for place in places)
    return ReplayRun(seed=0, cells=CELLS[: len(found)], recommended=found)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((5, 0, 0, 0), 2),
        ((0, 5, 0, 1), 3),
        ((None, None, 1), 3),
        ((0, 0, 0), 1),
        ((0, 0, 5), math.inf),
    ],
)
def test_a_run_has_reached_it_when_it_stays(
    places: tuple[int | None, ...], expected: float
) -> None:
    assert scoring.trials_to(run(*places), TRUTH.good(0.03)) == expected


def test_the_tolerance_is_never_finer_than_the_truth() -> None:
    assert TRUTH.tolerance(0.03) == 0.03
    assert TRUTH.tolerance(0.001) == pytest.approx(0.008)
    assert TRUTH.good(0.03) == frozenset(CELLS[:2])
    assert TRUTH.regret(CELLS[5]) == pytest.approx(0.10)
    assert TRUTH.regret(Configuration({"a": 99})) == math.inf


def test_figures_over_runs() -> None:
    runs = [run(*[5] * number, *[0] * (10 - number)) for number in range(10)]
    found = scoring.trials_to_tolerance(runs, TRUTH, 0.03, candidates=12)
    assert (found.median, found.p90, found.reached) == (5, 9, 1.0)
    half = scoring.trials_to_tolerance(
        [*runs[:4], *[run(*[5] * 10)] * 6], TRUTH, 0.03, candidates=12
    )
    assert (half.median, half.p90, half.reached) == (None, None, 0.4)


@pytest.mark.parametrize(("good", "expected"), [(1, 337), (3, 139), (7, 64), (20, 23), (40, 12)])
def test_the_median_of_random_search_is_exact(good: int, expected: int) -> None:
    assert scoring.random_median(672, good) == expected


@given(st.integers(2, 60), st.data())
def test_half_of_all_searches_have_met_a_good_cell_by_then(cells: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(1, cells))
    trials = scoring.random_median(cells, good)
    missed = math.comb(cells - good, trials) / math.comb(cells, trials)
    before = math.comb(cells - good, trials - 1) / math.comb(cells, trials - 1)
    assert missed < 0.5 <= before or math.isclose(missed, 0.5)
