"""The prediction alone: it launches what it holds for the best, and says nothing of its own."""

from __future__ import annotations

import numpy as np
import optuna
import pytest

from tests.fakes import surfaces
from tuner.errors import UsageError
from tuner.sampling import registry
from tuner.sampling.history import PROPOSAL
from tuner.values.configuration import Configuration

CANDIDATES = surfaces.candidates()
GUESS = np.array([surfaces.latency_ms(cell) for cell in CANDIDATES.configurations])


def run(trials: int, lost: frozenset[int] = frozenset(), **options: object) -> optuna.Study:
    """A study of the sampler prediction; trials of these numbers fail."""
    sampler = registry.create("prediction", seed=0, initial=0, candidates=CANDIDATES, **options)
    study = optuna.create_study(sampler=sampler)
    for number in range(trials):
        trial = study.ask(dict(surfaces.DISTRIBUTIONS))
        if number in lost:
            trial.set_user_attr("outcome", {"status": "infeasible", "cause": "oom", "reason": "x"})
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, surfaces.latency_ms(trial.params))
    return study


def test_it_launches_the_best_prediction_again_and_again() -> None:
    best = CANDIDATES.configurations[int(np.argmin(GUESS))]
    trials = run(3, guess=GUESS).trials
    assert {Configuration(trial.params) for trial in trials} == {best}
    origins = [trial.user_attrs[PROPOSAL]["origin"] for trial in trials]
    assert origins == ["guided", "replicate", "replicate"]


def test_what_failed_gives_way_to_the_next_best() -> None:
    order = np.argsort(GUESS)
    trials = run(3, lost=frozenset({0}), guess=GUESS).trials
    proposed = [CANDIDATES.index_of(trial.params) for trial in trials]
    assert proposed == [order[0], order[1], order[1]]


def test_of_equal_predictions_the_preferred_one_is_taken() -> None:
    wanted = CANDIDATES.configurations[37]
    flat = np.full(len(GUESS), 5.0)
    assert Configuration(run(1, guess=flat, first=[wanted]).trials[0].params) == wanted
    flat[37] = 6.0
    assert Configuration(run(1, guess=flat, first=[wanted]).trials[0].params) != wanted


def test_without_a_prediction_it_is_random() -> None:
    trials = run(6).trials
    assert len({Configuration(trial.params) for trial in trials}) == 6


def test_a_guess_of_other_candidates_is_refused() -> None:
    with pytest.raises(UsageError, match="one value for each candidate"):
        run(1, guess=GUESS[1:])
