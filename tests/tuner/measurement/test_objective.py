"""Objectives and the latency limit."""

import pytest

from tuner.errors import WrongUse
from tuner.measurement import objective
from tuner.settings import OBJECTIVES
from tuner.values import OK


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", 10.0), ("p50", 10.0), ("p95", 15.0), ("p99", 20.0), ("throughput", 0.5)],
)
def test_each_objective_is_a_positive_number_of_ms(measured, name, value):
    """Throughput turns into the time between two answers, so that less is better everywhere."""
    assert objective.to_minimise(measured(10.0), name) == pytest.approx(value)


def test_objectives_are_shown_in_their_own_unit(measured):
    """Requests per second for throughput, ms for the others."""
    assert objective.as_shown(measured(10.0), "throughput") == 2000
    assert objective.as_shown(measured(10.0), "p99") == 20


def test_a_better_throughput_is_a_smaller_value(measured):
    """The order of what a sampler sees is the order of merit."""
    slow, fast = measured(throughput_per_s=10.0), measured(throughput_per_s=11.0)
    assert objective.to_minimise(fast, "throughput") < objective.to_minimise(slow, "throughput")


def test_every_objective_of_the_command_is_known(measured):
    """No name is accepted by the settings and refused here."""
    for name in OBJECTIVES:
        assert objective.to_minimise(measured(), name) > 0
        assert objective.LABELS[name]


def test_an_unknown_objective_names_the_nearest(measured):
    """And all that there are."""
    for call in (objective.to_minimise, objective.as_shown):
        with pytest.raises(
            WrongUse, match=r"'p98' is not known, did you mean 'p9[59]'\?.*mean, p50"
        ):
            call(measured(), "p98")


def test_the_limit_is_on_p99(measured):
    """At the limit is within it; above it the configuration is infeasible, not failed."""
    assert objective.limit_outcome(measured(10.0), None) == OK
    assert objective.limit_outcome(measured(10.0), 20.0) == OK
    outcome = objective.limit_outcome(measured(10.0), 19.9)
    assert (outcome.status, outcome.cause) == ("infeasible", "constraint")
    assert outcome.reason == "p99 of 20 ms is above the limit of 19.9 ms"
    assert not objective.meets_limit(measured(10.0), 19.9)
