"""Two objectives: the front, its knee, and a search that has both."""

from __future__ import annotations

import functools
import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tests.fakes import surfaces
from tuner.sampling import pareto_front, recommendation, registry
from tuner.sampling.history import History

POINTS = arrays.arrays(
    float,
    st.tuples(st.integers(1, 40), st.just(2)),
    elements=st.integers(-8, 8).map(float),  # so that some are equal
)


def beats(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """As good in both and better in one."""
    return bool((one <= other).all() and (one < other).any())


@given(POINTS)
def test_a_front_is_what_none_beats(points: NDArray[np.float64]) -> None:
    """No point of it is beaten by any; every other is beaten, or equal to one of it; it is in order."""
    chosen = pareto_front.non_dominated(points)
    for place in range(len(points)):
        is_beaten = any(beats(other, points[place]) for other in points)
        if place in chosen:
            assert not is_beaten
        else:
            assert is_beaten or any((points[one] == points[place]).all() for one in chosen)
    assert (np.diff(points[chosen, 0]) > 0).all()
    assert (np.diff(points[chosen, 1]) < 0).all()


@given(POINTS)
def test_the_knee_lies_farthest_below_the_line_between_the_ends(
    points: NDArray[np.float64],
) -> None:
    """And so on the same side of it as the corner that would be best in both."""
    chosen = points[pareto_front.non_dominated(points)]
    knee = pareto_front.knee(chosen)
    if len(chosen) < 3:
        assert knee == 0
        return
    low, span = chosen.min(axis=0), np.ptp(chosen, axis=0)
    depth = 1 - ((chosen - low) / span).sum(axis=1)
    assert depth[knee] == depth.max()
    assert depth[knee] >= -1e-9


def held(values: dict[str, object]) -> float:
    """What a cell holds: it grows with the replicas, whose latency falls with them."""
    return float(values["replica.count"]) * (0.5 + float(values["replica.cpu"]))


def study_of(sampler: str, *, trials: int, seed: int) -> optuna.Study:
    """A search with both objectives, told as the search of a study tells them."""
    study = optuna.create_study(
        sampler=registry.create(sampler, seed=seed, initial=8, candidates=surfaces.candidates())
    )
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        trial = study.ask(surfaces.DISTRIBUTIONS)
        trial.set_user_attr("second", [math.log(held(trial.params)) + 0.03 * rng.normal(), 0.03])
        study.tell(trial, surfaces.noisy_ms(trial.params, rng))
    return study


def true_front() -> NDArray[np.float64]:
    """Of all cells: logarithms."""
    cells = surfaces.candidates().configurations
    points = np.log([[surfaces.latency_ms(cell), held(cell)] for cell in cells])
    return np.asarray(points[pareto_front.non_dominated(points)])


def volume(points: NDArray[np.float64], corner: NDArray[np.float64]) -> float:
    """Of what a front beats, up to a corner: the hypervolume in the plane."""
    inside = points[(points < corner).all(axis=1)]
    if not len(inside):
        return 0.0
    inside = inside[pareto_front.non_dominated(inside)]
    rights = np.append(inside[1:, 0], corner[0])
    return float(((rights - inside[:, 0]) * (corner[1] - inside[:, 1])).sum())


def test_a_search_with_both_objectives_finds_most_of_the_front() -> None:
    """By the true values of what it shows, 80 % of the volume after 30 launches, and more than at random."""
    truth = true_front()
    corner = truth.max(axis=0) + 0.3
    whole = volume(truth, corner)
    shares = {}
    for sampler in ("gp", "random"):
        found = []
        for seed in range(3):
            shown = pareto_front.pareto_front(
                study_of(sampler, trials=30, seed=seed), candidates=surfaces.candidates()
            )
            assert shown is not None
            points = np.log([[surfaces.latency_ms(one), held(one)] for one in shown.configurations])
            found.append(volume(points, corner) / whole)
        shares[sampler] = float(np.mean(found))
    assert shares["gp"] >= 0.8
    assert shares["gp"] > shares["random"]


@pytest.mark.parametrize("sampler", ["gp", "random"])
def test_a_front_of_a_study_is_none_beats_by_its_means(sampler: str) -> None:
    """In order, of launched configurations, with a knee among them."""
    study = study_of(sampler, trials=20, seed=4)
    shown = pareto_front.pareto_front(study, candidates=surfaces.candidates())
    assert shown is not None
    assert list(pareto_front.non_dominated(shown.mean)) == list(range(len(shown.configurations)))
    launched = [trial.params for trial in study.get_trials(deepcopy=False)]
    assert all(dict(one) in launched for one in shown.configurations)
    assert 0 <= shown.knee < len(shown.configurations)
    assert (shown.sd > 0).all()


@functools.cache
def drawn_history(seed: int) -> History:
    """Six launches whose values in both objectives are chance."""
    rng = np.random.default_rng(seed)
    study = optuna.create_study()
    for _ in range(6):
        trial = study.ask(surfaces.DISTRIBUTIONS)
        trial.set_user_attr("second", [float(rng.normal()), None])
        study.tell(trial, float(np.exp(rng.normal())))
    history = recommendation.history_of(study, surfaces.candidates())
    assert history is not None
    return history


@given(weight=st.floats(0, 1), seed=st.integers(0, 20))
def test_a_weight_of_one_objective_alone_orders_by_it(weight: float, seed: int) -> None:
    """What is beaten in both objectives is never preferred, whatever the weight."""
    history = drawn_history(seed)
    assert history.second is not None
    both = np.column_stack([history.targets, history.second.values])
    weighed = pareto_front.scalarise(history, weight).targets
    best = int(np.argmin(weighed))
    beating = [place for place in range(len(both)) if beats(both[place], both[best])]
    assert all(weighed[place] == pytest.approx(weighed[best]) for place in beating)
    assert (weighed >= 0).all()


def test_a_study_of_one_objective_has_no_front() -> None:
    """Its launches tell no second one."""
    study = optuna.create_study()
    trial = study.ask(surfaces.DISTRIBUTIONS)
    study.tell(trial, 3.0)
    assert pareto_front.pareto_front(study, candidates=surfaces.candidates()) is None
