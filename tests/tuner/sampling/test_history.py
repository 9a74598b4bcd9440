"""How trials are read: what teaches, what is a wall, what is as if it had not been."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.sampling.encoding import Cube
from tuner.sampling.history import (
    PROPOSAL,
    gather,
    parameters_of,
    read,
    shared_distributions,
    to_targets,
)

SPACE: dict[str, BaseDistribution] = {"a": IntDistribution(1, 9)}
CUBE = Cube.of(SPACE)
LOST = {"status": "failed", "cause": "crash", "reason": "the replica died"}


def trial(
    number: int = 0,
    *,
    a: int | None = 1,
    state: TrialState = TrialState.COMPLETE,
    value: float | None = None,
    **attrs: Any,
) -> FrozenTrial:
    """One trial of a study with a single parameter."""
    made = create_trial(
        state=state,
        value=10.0 if state is TrialState.COMPLETE and value is None else value,
        params={} if a is None else {"a": a},
        distributions={} if a is None else SPACE,
        user_attrs=attrs,
    )
    made.number = number
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (trial(), "observed"),
        (trial(value=float("inf")), "lost"),
        (trial(state=TrialState.PRUNED, outcome=LOST), "lost"),
        (trial(state=TrialState.FAIL, outcome=LOST), "lost"),
        (trial(state=TrialState.PRUNED), "lost"),
        (trial(state=TrialState.FAIL), "lost"),
        (trial(state=TrialState.FAIL, origin="guided"), "interrupted"),
        (trial(state=TrialState.FAIL, interrupted="killed"), "interrupted"),
        (trial(state=TrialState.RUNNING), "pending"),
        (trial(state=TrialState.WAITING, a=None), "pending"),
    ],
)
def test_each_state_is_read_as_the_table_says(given: FrozenTrial, expected: str) -> None:
    """State, outcome and origin decide, in any study."""
    assert read(given) == expected


def test_a_trial_that_a_pruner_stopped_is_no_wall() -> None:
    """Reports show that it ran, so it does not teach that the configuration cannot work."""
    pruned = create_trial(
        state=TrialState.PRUNED, params={"a": 1}, distributions=SPACE, intermediate_values={0: 3.0}
    )
    assert read(pruned) == "stopped"


def test_what_ran_counts_before_what_was_suggested() -> None:
    """The configuration that was launched is the one that was measured."""
    ran = trial(a=3, configuration={"a": 4}, **{PROPOSAL: {"configuration": {"a": 5}}})
    assert parameters_of(ran) == {"a": 4}
    assert parameters_of(trial(a=None, **{PROPOSAL: {"configuration": {"a": 5}}})) == {"a": 5}


def test_columns_hold_every_trial_that_can_be_placed() -> None:
    """Observed, lost and pending trials go to their columns; the trial at hand and others do not."""
    trials = [
        trial(0, a=1, value=20.0),
        trial(1, a=1, value=22.0),
        trial(2, a=9, state=TrialState.PRUNED, outcome=LOST),
        trial(3, a=5, state=TrialState.RUNNING, **{PROPOSAL: {"hyperparameters": [1.0, 2.0]}}),
        trial(4, a=7, state=TrialState.FAIL, origin="guided"),
        trial(5, a=None, state=TrialState.RUNNING),
    ]
    history = gather(trials, CUBE, number=5, maximise=False)
    assert np.allclose(history.targets, np.log([20, 22]))
    assert history.vectors.tolist() == [[0.0], [0.0]]
    assert history.lost_vectors.tolist() == [[1.0]]
    assert history.pending_vectors.tolist() == [[0.5]]
    assert sorted(configuration["a"] for configuration in history.seen) == [1, 5, 9]
    assert history.trial_count == 4
    assert history.hyperparameters == (1.0, 2.0)
    assert not history.is_blank
    assert gather(trials[4:], CUBE, number=5, maximise=False).is_blank


def test_disregarded_trials_teach_nothing() -> None:
    trials = [
        trial(0, a=1, value=20.0),
        trial(1, a=1, state=TrialState.PRUNED, outcome=LOST),
        trial(2, a=9, state=TrialState.PRUNED, outcome=LOST),
    ]
    history = gather(trials, CUBE, number=None, maximise=False, disregarded=[1, 2])
    assert [one["a"] for one in history.configurations] == [1]
    assert not history.lost_configurations
    assert history.seen == set(history.configurations)


@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("values", [[5.0, 50.0], [5.0, -1.0]], ids=["log", "raw"])
def test_targets_are_minimised_and_come_back_as_values(values: list[float], maximise: bool) -> None:
    """The better value has the lower target, and a target means a value in the study's unit."""
    trials = [trial(i, value=value) for i, value in enumerate(values)]
    history = gather(trials, CUBE, number=None, maximise=maximise)
    better = max(values) if maximise else min(values)
    assert values[int(np.argmin(history.targets))] == better
    assert [history.value_of(t) for t in history.targets] == pytest.approx(values)
    assert history.scale == ("log" if min(values) > 0 else "raw")


def test_the_raw_scale_has_a_reason() -> None:
    """A reader of the trial learns why no logarithm was taken."""
    assert to_targets(np.array([1.0, 0.0, -2.0]), 1.0)[1] == "2 of 3 objectives are not positive"
    assert to_targets(np.array([]), 1.0)[1] == ""


def test_the_space_is_what_ended_trials_share() -> None:
    """Parameters of some trials, with other ranges, or of trials that raised, are left out."""
    study = optuna.create_study()
    both = {"a": IntDistribution(1, 9), "b": FloatDistribution(0, 1)}
    study.add_trial(create_trial(value=1.0, params={"a": 1, "b": 0.5}, distributions=both))
    study.add_trial(
        create_trial(
            value=1.0,
            params={"a": 1, "b": 0.5},
            distributions={**both, "b": FloatDistribution(0, 2)},
        )
    )
    study.add_trial(create_trial(state=TrialState.FAIL, params={}, distributions={}))
    assert shared_distributions(study.trials) == {"a": IntDistribution(1, 9)}
    assert shared_distributions([]) == {}
    failed = create_trial(state=TrialState.FAIL, params={"a": 1}, distributions=SPACE)
    assert shared_distributions([failed]) == SPACE
