"""The Gaussian-process sampler: its design, its incumbent, its stopping number, its recommendation."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from tests.fakes import surfaces
from tuner.sampling.gp import GpSampler, is_likely
from tuner.sampling.history import PROPOSAL
from tuner.sampling.recommendation import recommend

LOST = {"status": "infeasible", "cause": "oom", "reason": ""}


def study_of(sampler: GpSampler, values: dict[tuple[int, int], list[float]]) -> optuna.Study:
    """A study with these objectives at (replicas, batch size); None of them was proposed."""
    study = optuna.create_study(sampler=sampler)
    for (count, size), objectives in values.items():
        for objective in objectives:
            study.enqueue_trial(
                {"replica.count": count, "batching.max_size": size, "replica.cpu": 0.4}
            )
            study.tell(study.ask(surfaces.DISTRIBUTIONS), objective)
    return study


def flat(n: int) -> dict[tuple[int, int], list[float]]:
    """The surface without noise at n cells."""
    cells = [(1, 1), (6, 32), (3, 4), (5, 2), (2, 16), (4, 8), (1, 32), (6, 1)][:n]
    return {
        (count, size): [
            surfaces.latency_ms(
                {"replica.count": count, "batching.max_size": size, "replica.cpu": 0.4}
            )
        ]
        for count, size in cells
    }


def test_the_design_fills_the_space() -> None:
    """After the default, ten designed cells reach into most of the eight corners of the cube."""
    sampler = GpSampler(seed=2, initial=11, candidates=surfaces.candidates())
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial({"replica.count": 1, "batching.max_size": 8, "replica.cpu": 0.4})
    corners = set()
    for _ in range(11):
        trial = study.ask(surfaces.DISTRIBUTIONS)
        study.tell(trial, surfaces.latency_ms(trial.params))
        corners.add(tuple(surfaces.CUBE.encode(trial.params) > 0.5))
    assert len(corners) >= 7
    origins = [trial.user_attrs[PROPOSAL]["origin"] for trial in study.trials[1:]]
    assert origins == ["initial"] * 10
    assert not any(
        "largest_expected_improvement" in one.user_attrs[PROPOSAL] for one in study.trials[1:]
    )


def test_a_guided_trial_says_what_it_expects() -> None:
    """Prediction, spread, incumbent and feasibility are kept with the trial, in its unit."""
    sampler = GpSampler(seed=1, initial=3, candidates=surfaces.candidates())
    study = study_of(sampler, flat(8))
    study.ask(surfaces.DISTRIBUTIONS)
    facts = study.trials[-1].user_attrs[PROPOSAL]
    assert facts["origin"] == "guided"
    assert 5 < facts["mean"] < 30
    assert facts["sd"] > 0
    assert 8 < facts["incumbent"] < 16
    assert facts["feasible"] == 1.0
    assert facts["scale"] == "log"
    assert facts["largest_expected_improvement"] > 0


@pytest.mark.slow
def test_there_is_less_to_gain_as_the_study_goes_on() -> None:
    """The number that ends a study falls below one per cent when the valley is known."""
    sampler = GpSampler(seed=4, initial=6, candidates=surfaces.candidates())
    study = optuna.create_study(sampler=sampler)
    gains = []
    for number in range(26):
        trial = study.ask(surfaces.DISTRIBUTIONS)
        rng = np.random.default_rng([4, number])
        study.tell(trial, surfaces.noisy_ms(trial.params, rng))
        facts = study.trials[-1].user_attrs[PROPOSAL]
        gains.append(facts.get("largest_expected_improvement"))
    assert gains[:6] == [None] * 6
    assert gains[6] is not None
    assert gains[-1] is not None
    assert gains[-1] < 0.01 < gains[6]


def test_a_lucky_measurement_is_not_recommended() -> None:
    """One low outlier among three launches of a bad cell does not beat a cell that is always good."""
    values = flat(8)
    values[2, 1] = [9.0, 24.0, 25.0]
    values[5, 4] = [10.3, 10.6, 10.4]
    sampler = GpSampler(seed=1, candidates=surfaces.candidates())
    chosen = sampler.recommend(study_of(sampler, values))
    assert chosen is not None
    assert surfaces.latency_ms(chosen) < 12


def test_what_also_failed_is_not_recommended() -> None:
    """A cell that worked once and died once gives way to one that never died."""
    sampler = GpSampler(seed=1, candidates=surfaces.candidates())
    study = study_of(sampler, {**flat(4), (5, 4): [10.0]})
    study.enqueue_trial({"replica.count": 5, "batching.max_size": 4, "replica.cpu": 0.4})
    trial = study.ask(surfaces.DISTRIBUTIONS)
    trial.set_user_attr("outcome", LOST)
    study.tell(trial, state=TrialState.PRUNED)
    for candidates in (surfaces.candidates(), None):
        chosen = recommend(study, candidates=candidates)
        assert chosen is not None
        assert chosen["replica.count"] != 5 or chosen["batching.max_size"] != 4


def test_nothing_is_recommended_where_nothing_worked() -> None:
    """An empty study, and one of failures, have no best configuration."""
    sampler = GpSampler(seed=1, candidates=surfaces.candidates())
    study = optuna.create_study(sampler=sampler)
    assert sampler.recommend(study) is None
    assert recommend(study) is None
    trial = study.ask(surfaces.DISTRIBUTIONS)
    trial.set_user_attr("outcome", LOST)
    study.tell(trial, state=TrialState.PRUNED)
    assert sampler.recommend(study) is None


def test_a_maximised_objective_recommends_the_largest() -> None:
    """Throughput: the process looks for more, not less."""
    study = optuna.create_study(direction="maximize")
    for count in range(1, 7):
        study.enqueue_trial({"replica.count": count, "batching.max_size": 4, "replica.cpu": 0.4})
        study.tell(study.ask(surfaces.DISTRIBUTIONS), 100.0 * count)
    chosen = recommend(study)
    assert chosen is not None
    assert chosen["replica.count"] == 6


def test_the_raw_scale_is_told() -> None:
    """Objectives that have no logarithm still guide, and the trial says why."""
    sampler = GpSampler(seed=1, initial=3, candidates=surfaces.candidates())
    study = study_of(sampler, {cell: [v[0] - 15] for cell, v in flat(8).items()})
    study.ask(surfaces.DISTRIBUTIONS)
    facts = study.trials[-1].user_attrs[PROPOSAL]
    assert facts["scale"] == "raw"
    assert "not positive" in facts["scale_reason"]


def test_where_all_were_tried_and_none_kept_to_the_limit_the_likeliest_is_repeated() -> None:
    """Not the first of the candidates."""
    study = optuna.create_study(
        sampler=GpSampler(seed=0, initial=4, candidates=surfaces.small_candidates())
    )
    for value in range(1, 13):
        study.enqueue_trial({"a": value})
        trial = study.ask({"a": optuna.distributions.IntDistribution(1, 12)})
        trial.set_user_attr("slacks", {"cpu_s_per_1000 <= 1": [2 - 0.1 * value, 0.03]})
        outcome = {"status": "infeasible", "cause": "constraint", "reason": ""}
        trial.set_user_attr("outcome", outcome)
        trial.set_user_attr("value", 10.0 + value)
        study.tell(trial, None, state=TrialState.PRUNED)
    study.ask({"a": optuna.distributions.IntDistribution(1, 12)})
    proposal = study.trials[-1].user_attrs[PROPOSAL]
    assert proposal["origin"] == "replicate"
    assert proposal["configuration"] == {"a": 12}


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.99, 0.9, 0.8, 0.2], [True, True, True, False]),  # above the bound
        ([0.3, 0.2, 0.1, 0.05], [True, False, False, False]),  # else the best quarter
        ([0.5, 0.5, 0.5, 0.5], [True, True, True, True]),  # all alike
    ],
)
def test_unlikely_cells_are_left_alone(probabilities: list[float], expected: list[bool]) -> None:
    """Behind the wall nothing is proposed while enough cells are before it."""
    assert is_likely(np.log(probabilities)).tolist() == expected
