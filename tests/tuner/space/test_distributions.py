"""Knobs in Optuna: nothing but the grid, and exactly the values."""

import warnings

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    CategoricalDistribution,
    IntDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)

from tuner.space import files
from tuner.space.distributions import distribution, distributions
from tuner.space.environment import Environment, Machine
from tuner.space.knobs import ChoiceKnob, FloatKnob, IntKnob

optuna.logging.set_verbosity(optuna.logging.WARNING)

KNOBS = [
    IntKnob(name="replica.count", low=1, high=8, default=1),
    IntKnob(name="one", low=3, high=3, default=3),
    IntKnob(name="even", low=0, high=300, step=100, default=100),
    IntKnob(name="batching.max_size", low=1, high=64, points=7, default=8, scale="log"),
    IntKnob(name="wait", low=100, high=10_000, points=5, default=0, scale="log", zero=True),
    FloatKnob(name="replica.cpu", low=0.1, high=1.0, step=0.1, default=0.3),
    FloatKnob(name="third", low=1 / 3, high=3.0, points=9, default=1 / 3, scale="log"),
    ChoiceKnob(name="way", choices=("a", "b", True), default="b"),
]


def test_stored_values_come_back_exactly(tmp_path):
    """Each value of each grid survives the database: same number, same type."""
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=url)
    longest = max(len(knob.values()) for knob in KNOBS)
    asked = [
        {knob.name: knob.values()[i % len(knob.values())] for knob in KNOBS} for i in range(longest)
    ]
    for values in asked:
        study.enqueue_trial(values)
        study.tell(study.ask({knob.name: distribution(knob) for knob in KNOBS}), 1.0)

    read = optuna.load_study(study_name=study.study_name, storage=url)

    found = [trial.params for trial in read.trials]
    assert found == asked
    assert [[type(v) for v in params.values()] for params in found] == [
        [type(params[name]) for name in found[0]] for params in asked
    ]


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_distribution_holds_the_grid_and_nothing_else(knob):
    """Whatever a sampler of Optuna proposes is a value of the grid."""
    sampler = optuna.samplers.RandomSampler(seed=1)
    study = optuna.create_study(sampler=sampler)

    proposed = {study.ask({knob.name: distribution(knob)}).params[knob.name] for _ in range(200)}

    assert set(knob.values()) == proposed


def test_even_whole_numbers_keep_their_order_and_the_rest_is_categorical():
    """Only a distribution that holds exactly the grid is taken."""
    assert IntDistribution(1, 8) == distribution(KNOBS[0])
    assert IntDistribution(0, 300, step=100) == distribution(KNOBS[2])
    assert CategoricalDistribution((1, 2, 4, 8, 16, 32, 64)) == distribution(KNOBS[3])


@settings(deadline=None)
@given(
    grid=st.sets(st.integers(-1000, 1000), min_size=1, max_size=8).map(sorted),
)
def test_any_whole_grid_is_held_exactly(grid):
    """Every grid of whole numbers is contained, and survives as JSON, as Optuna keeps it."""
    knob = IntKnob(name="k", low=grid[0], high=grid[-1], grid=tuple(grid), default=grid[0])

    found = distribution(knob)

    for value in grid:
        assert value == found.to_external_repr(found.to_internal_repr(value))
    assert found == json_to_distribution(distribution_to_json(found))
    check_distribution_compatibility(found, distribution(knob))


def test_a_space_gives_one_distribution_for_each_knob():
    """Names and order are the space's, and Optuna has nothing to complain of."""
    space = files.load_bundled("resnet")
    assert space is not None
    environment = Environment(concurrency=20, machine=Machine(cores=2, memory_mb=4096))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        narrowed = space.narrow(environment)
        found = distributions(narrowed)

    assert narrowed.names == tuple(found)
