"""Limits in the search: what is likely to keep to them, and what is recommended."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import surfaces
from tuner.sampling import recommendation, registry
from tuner.sampling.history import gather
from tuner.sampling.surrogates import constraint_model
from tuner.values.configuration import Configuration

LIMIT = "cpu_s_per_1000 <= 1"


def held(values: dict[str, object]) -> float:
    """What a cell holds: more replicas, more CPU."""
    return 0.45 * float(values["replica.count"]) * (0.5 + float(values["replica.cpu"]))


def slack(values: dict[str, object], rng: np.random.Generator) -> float:
    """By how much a launch lies beyond 1, with 3 % of noise."""
    return math.log(held(values)) + 0.03 * rng.normal()


def best_kept() -> float:
    """The lowest latency of the cells that truly keep to the limit."""
    cells = surfaces.candidates().configurations
    return min(surfaces.latency_ms(cell) for cell in cells if held(cell) <= 1)


def study_of(sampler: str, *, trials: int, seed: int) -> optuna.Study:
    """A search whose launches beyond the limit are told as the search of a study tells them."""
    study = optuna.create_study(
        sampler=registry.create(sampler, seed=seed, initial=8, candidates=surfaces.candidates())
    )
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        trial = study.ask(surfaces.DISTRIBUTIONS)
        beyond, value = slack(trial.params, rng), surfaces.noisy_ms(trial.params, rng)
        trial.set_user_attr("origin", "guided")
        trial.set_user_attr("slacks", {LIMIT: [beyond, 0.03]})
        if beyond <= 0:
            study.tell(trial, value)
            continue
        trial.set_user_attr(
            "outcome", {"status": "infeasible", "cause": "constraint", "reason": ""}
        )
        trial.set_user_attr("value", value)
        study.tell(trial, None, state=optuna.trial.TrialState.PRUNED)
    return study


@pytest.mark.parametrize("sampler", ["gp", "random", "epsilon-greedy", "tpe"])
def test_what_is_recommended_keeps_to_the_limit(sampler: str) -> None:
    """Of whatever sampler: by the true law within the limit, to the 3 % that launches differ by."""
    study = study_of(sampler, trials=30, seed=1)
    found = recommendation.recommend(study, candidates=surfaces.candidates())
    assert found is not None
    assert held(found) <= 1.03


def test_the_gp_finds_the_best_that_keeps_to_the_limit() -> None:
    """In three of four searches within 10 % of it; the best without the limit lies beyond."""
    reached = 0
    for seed in range(4):
        study = study_of("gp", trials=30, seed=seed)
        found = recommendation.recommend(study, candidates=surfaces.candidates())
        assert found is not None
        reached += held(found) <= 1.03 and surfaces.latency_ms(found) <= 1.1 * best_kept()
    assert reached >= 3
    assert best_kept() > 1.02 * surfaces.LATENCIES[0]


def test_launches_beyond_a_limit_are_walls_to_those_who_do_not_model_it() -> None:
    """The same trials, read twice."""
    study = study_of("random", trials=20, seed=0)
    trials = study.get_trials(deepcopy=False)
    place = surfaces.candidates()
    walls = gather(trials, place, number=None, maximise=False)
    observed = gather(trials, place, number=None, maximise=False, with_missed=True)
    missed = sum("value" in trial.user_attrs for trial in trials)
    assert 0 < missed < 20
    assert (len(walls.targets), len(walls.lost_configurations)) == (20 - missed, missed)
    assert (len(observed.targets), len(observed.lost_configurations)) == (20, 0)
    assert int(np.sum(observed.slacks[LIMIT].values > 0)) == missed


def test_far_within_is_likely_and_far_beyond_is_not() -> None:
    """After thirty launches, on average over cells; and P is a probability."""
    study = study_of("random", trials=30, seed=3)
    candidates = surfaces.candidates()
    history = recommendation.history_of(study, candidates)
    assert history is not None
    kept = constraint_model.fit(history, candidates)
    chance = np.exp(kept.log_probability(np.arange(len(candidates.configurations))))
    true = np.array([held(cell) for cell in candidates.configurations])
    assert chance.min() >= 0
    assert chance.max() <= 1
    assert chance[true < 0.7].mean() > 0.9
    assert chance[true > 1.6].mean() < 0.1


def test_nothing_is_recommended_where_nothing_keeps_to_the_limit() -> None:
    """Every launch lies beyond: there is no solution to recommend."""
    study = optuna.create_study()
    for count in (4, 5, 6):
        trial = study.ask(surfaces.DISTRIBUTIONS)
        trial.set_user_attr("configuration", {**trial.params, "replica.count": count})
        trial.set_user_attr("slacks", {LIMIT: [1.0, 0.03]})
        trial.set_user_attr(
            "outcome", {"status": "infeasible", "cause": "constraint", "reason": ""}
        )
        trial.set_user_attr("value", 10.0)
        study.tell(trial, None, state=optuna.trial.TrialState.PRUNED)
    assert recommendation.recommend(study, candidates=surfaces.candidates()) is None


@given(
    log_kept=st.lists(st.floats(-20, 0), min_size=1, max_size=20),
    once=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_what_may_be_recommended(log_kept: list[float], once: list[bool]) -> None:
    """Likely enough, else the likeliest that kept to the limits once; nothing where none did."""
    chances, did = np.array(log_kept), np.array(once[: len(log_kept)])
    may_be = constraint_model.recommendable(chances, did)
    enough = chances >= np.log(constraint_model.ENOUGH)
    if enough.any():
        assert (may_be == enough).all()
    elif did.any():
        assert may_be.any()
        assert (did[may_be]).all()
        assert chances[may_be].min() == chances[did].max()
    else:
        assert not may_be.any()


def test_without_limits_nothing_changes() -> None:
    """Every cell keeps to none."""
    study = optuna.create_study()
    for _ in range(3):
        trial = study.ask(surfaces.DISTRIBUTIONS)
        study.tell(trial, surfaces.latency_ms(trial.params))
    candidates = surfaces.candidates()
    history = recommendation.history_of(study, candidates)
    assert history is not None
    kept = constraint_model.fit(history, candidates)
    assert (kept.log_probability(np.arange(5)) == 0).all()
    assert kept.worth_trying.any()
    assert isinstance(recommendation.recommend(study, candidates=candidates), Configuration)


def test_a_launch_that_does_not_tell_of_the_limit_tells_of_the_objective() -> None:
    """It is observed, and what is believed of the limit rests on the others."""
    study = study_of("random", trials=20, seed=3)
    candidates = surfaces.candidates()
    before = recommendation.history_of(study, candidates)
    assert before is not None
    trial = study.ask(surfaces.DISTRIBUTIONS)
    trial.set_user_attr("slacks", {LIMIT: [None, None]})
    trial.set_user_attr("outcome", {"status": "failed", "cause": "short", "reason": ""})
    trial.set_user_attr("value", 10.0)
    study.tell(trial, None, state=optuna.trial.TrialState.PRUNED)
    history = recommendation.history_of(study, candidates)
    assert history is not None
    assert len(history.targets) == len(before.targets) + 1
    assert not constraint_model.kept_once(history)[-1]
    every = np.arange(len(candidates.configurations))
    chances = [
        constraint_model.fit(one, candidates).log_probability(every) for one in (before, history)
    ]
    assert np.allclose(*chances)


def test_where_no_launch_tells_of_a_limit_nothing_is_known() -> None:
    """Every cell is as likely to keep to it as not."""
    study = optuna.create_study()
    trial = study.ask(surfaces.DISTRIBUTIONS)
    trial.set_user_attr("slacks", {LIMIT: [None, None]})
    trial.set_user_attr("value", 10.0)
    study.tell(trial, None, state=optuna.trial.TrialState.PRUNED)
    history = recommendation.history_of(study, surfaces.candidates())
    assert history is not None
    kept = constraint_model.fit(history, surfaces.candidates())
    assert np.allclose(kept.log_probability(np.arange(3)), np.log(0.5))
    assert recommendation.recommend(study, candidates=surfaces.candidates()) is None
