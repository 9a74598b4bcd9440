"""An export against its study: unpaired evaluations of two sessions."""

import math

import numpy as np
import pytest

from tuner.errors import UsageError
from tuner.measurement.confirmation import compare_unpaired
from tuner.metrics import metric_constraints

STUDY = (10.0, 10.2, 9.8, 10.1, 9.9, 10.0)


def test_what_runs_as_measured_is_the_same(measured):
    """Both sides alike: the interval is within the margin, and the sentence says so."""
    found = compare_unpaired(
        [measured(one) for one in STUDY], [measured(1.01 * one) for one in STUDY], objective="mean"
    )
    assert found.outcome == "same"
    assert found.ratio == pytest.approx(1.01, rel=0.005)
    assert found.interval.low < found.ratio < found.interval.high < 1.1
    assert found.text.startswith(
        "As in the study: mean latency 10.1 ms where it runs against 9.999 ms in the study, 1.0 % more "
    )
    assert "6 evaluations here, 6 in the study); this is within 10 %." in found.text


@pytest.mark.parametrize(("times", "outcome"), [(1.5, "worse"), (0.6, "better")])
@pytest.mark.parametrize("objective", ["mean", "p50"])
def test_what_takes_longer_is_worse(measured, times, outcome, objective):
    """Latencies are better if they are lower."""
    found = compare_unpaired(
        [measured(one) for one in STUDY],
        [measured(times * one) for one in STUDY],
        objective=objective,
    )
    assert found.outcome == outcome
    assert found.text.startswith(f"{outcome.capitalize()} than in the study: ")


def test_more_throughput_is_better(measured):
    """Which side is better depends on the objective."""
    study, here = ([measured(mean_ms) for mean_ms in side] for side in (STUDY, [5.0, 5.1, 4.9]))
    assert compare_unpaired(study, here, objective="throughput").outcome == "better"


def test_what_varies_too_much_is_undecided(measured):
    """An interval that holds 1 and leaves the margin decides nothing."""
    found = compare_unpaired(
        [measured(one) for one in STUDY],
        [measured(one) for one in (7.0, 13.0, 9.0, 11.5)],
        objective="mean",
    )
    assert found.outcome == "undecided"
    assert "more evaluations are needed (--repeats)" in found.text


def test_the_margin_decides_what_is_the_same(measured):
    """The same figures are the same within a wide margin, and worse within a narrow one."""
    study, here = ([measured(times * one) for one in STUDY] for times in (1.0, 1.15))
    assert compare_unpaired(study, here, objective="mean", margin=0.3).outcome == "same"
    assert compare_unpaired(study, here, objective="mean", margin=0.05).outcome == "worse"


def test_a_violated_constraint_is_worse_whatever_the_objective(measured):
    """All evaluations together must keep it, as in a study."""
    sides = ([measured(one) for one in STUDY], [measured(0.5 * one) for one in STUDY])
    kept, violated = map(metric_constraints.parse, ("mean_ms <= 5.1", "mean_ms <= 4.9"))
    assert compare_unpaired(*sides, objective="p50", limits=[kept]).outcome == "better"
    found = compare_unpaired(*sides, objective="p50", limits=[kept, violated])
    assert found.outcome == "worse"
    assert found.text.startswith(
        "Worse than in the study: mean of 5 ms is above the limit of 4.9 ms (--constraint); "
        "median latency 5 ms where it runs against 9.999 ms in the study, 50"
    )


def test_the_interval_holds_the_true_ratio(measured):
    """In 95 of 100 sessions; of 400, fewer than 365 by chance alone in 1 of 3,000."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        study, here = (
            [measured(math.exp(at + sd * rng.normal())) for _ in range(count)]
            for at, sd, count in ((2.0, 0.03, 12), (2.1, 0.08, 6))
        )
        found = compare_unpaired(study, here, objective="mean").interval
        held += found.low <= math.exp(0.1) <= found.high
    assert held >= 365


def test_a_single_evaluation_of_the_study_varies_as_those_here(measured):
    """In 95 of 100 sessions the interval holds the true ratio; of 400, below 365 in 1 of 3,000."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        study, here = (
            [measured(math.exp(2.0 + 0.05 * rng.normal())) for _ in range(count)]
            for count in (1, 8)
        )
        found = compare_unpaired(study, here, objective="mean").interval
        held += found.low <= 1 <= found.high
    assert held >= 365


@pytest.mark.parametrize(
    ("study", "here", "objective", "said"),
    [
        ((), STUDY, "mean", "0 of the study's evaluations worked"),
        (STUDY, STUDY[:1], "mean", "1 of the export's evaluations worked"),
        (STUDY, STUDY, "cpu", "evaluations do not tell the objective cpu"),
    ],
)
def test_what_cannot_be_compared_is_one_line(measured, study, here, objective, said):
    """Too few evaluations, or none of the objective."""
    with pytest.raises(UsageError, match=said):
        compare_unpaired(
            [measured(one) for one in study], [measured(one) for one in here], objective=objective
        )
