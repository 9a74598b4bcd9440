"""The climb: from the corner, uphill, to a place that no direct neighbour betters."""

from __future__ import annotations

import itertools
import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import surfaces
from tuner.sampling import registry
from tuner.sampling.baselines import hill_climb
from tuner.sampling.baselines.hill_climb import Climb, ClimbState
from tuner.sampling.history import PROPOSAL
from tuner.values.configuration import Configuration

POINTS = np.array(list(itertools.product(range(6), range(5))), dtype=float)


def climbed(values: np.ndarray, lost: frozenset[int] = frozenset()) -> list[int]:
    """Cells in the order in which the climb measures them, until it ends."""
    first: dict[int, float] = {}
    failed: set[int] = set()
    order: list[int] = []
    while True:
        visited = frozenset(first) | frozenset(failed)
        seen = ClimbState(
            first=dict(first), unsuccessful=frozenset(failed), visited=visited, is_log=True
        )
        wanted = Climb(POINTS, seen).next_cell()
        if wanted is None:
            return order
        assert wanted not in visited
        order.append(wanted)
        if wanted in lost:
            failed.add(wanted)
        else:
            first[wanted] = float(values[wanted])


@given(st.integers(0, 10_000), st.integers(0, 6))
def test_it_begins_in_the_corner_and_ends_where_no_neighbour_is_better(
    seed: int, holes: int
) -> None:
    """On any surface, with cells that fail: never a cell twice, and a local optimum at the end."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=len(POINTS))
    lost = frozenset(rng.permutation(np.arange(1, len(POINTS)))[:holes].tolist())
    order = climbed(values, lost)
    assert order[0] == 0
    assert len(set(order)) == len(order) <= len(POINTS)
    best = min((place for place in order if place not in lost), key=lambda place: values[place])
    assert values[best] <= values[0]


def test_it_climbs_a_slope_with_few_measurements() -> None:
    """A smooth bowl: the bottom is found without measuring the half of all cells."""
    values = ((POINTS - [4, 3]) ** 2).sum(axis=1) / 5
    order = climbed(values)
    assert int(np.argmin(values)) in order
    assert len(order) < 18


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_a_gain_is_the_symmetric_relative_difference(home: float, other: float) -> None:
    """Of latencies a at home and b elsewhere: 2 (a - b) / (a + b), by their logarithms."""
    logs = {0: math.log(home), 1: math.log(other)}
    seen = ClimbState(
        first=logs, unsuccessful=frozenset({2}), visited=frozenset({0, 1, 2}), is_log=True
    )
    expected = 2 * (home - other) / (home + other)
    assert seen.gain(1, 0) == pytest.approx(expected, abs=1e-9)
    assert seen.gain(2, 0) == hill_climb.LOST <= seen.gain(1, 0)


def test_in_the_end_it_launches_the_best_three_in_turn() -> None:
    sampler = registry.create("hill-climb", seed=0, initial=0, candidates=surfaces.candidates())
    study = optuna.create_study(sampler=sampler)
    for _ in range(60):
        trial = study.ask(dict(surfaces.DISTRIBUTIONS))
        study.tell(trial, surfaces.latency_ms(trial.params))
    origins = [trial.user_attrs[PROPOSAL]["origin"] for trial in study.trials]
    climbing = origins.index("replicate")
    assert set(origins[climbing:]) == {"replicate"}
    climbed_ms = sorted(trial.value for trial in study.trials[:climbing])
    again = {Configuration(trial.params): trial.value for trial in study.trials[climbing:]}
    assert sorted(again.values()) == climbed_ms[:3]


def test_ranks_follow_the_order_of_numbers() -> None:
    ranks = hill_climb.ranks(surfaces.candidates())
    assert ranks.shape == (216, 3)
    assert ranks.max(axis=0).tolist() == [5, 5, 5]  # knobs by name: size, count, cpu
