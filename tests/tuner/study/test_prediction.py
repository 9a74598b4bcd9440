"""Which searches are predicted, and how one starts that is not."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.fakes import recorded
from tuner.lab import prepared_table, replay_search
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.replay_search import ReplaySpec
from tuner.lab.tables import table_files
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import INITIALS, SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import prediction
from tuner.study.search import Search

TABLES = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "tables"


def study(**changes: dict[str, Any]) -> StudySettings:
    """Settings of a study, with changes by group."""
    target = {"model": "echo", "concurrency": 4, **changes.get("target", {})}
    return StudySettings(
        target=TargetSettings(**target),
        search=SearchSettings(**changes.get("search", {})),
        measurement=MeasurementSettings(**changes.get("measurement", {})),
    )


@pytest.mark.parametrize(
    ("changes", "initial", "why"),
    [
        ({}, 2, "a closed loop of our own engine is predicted"),
        ({"target": {"engine": "command:x.yaml"}}, 2, "another engine by its default"),
        ({"target": {"concurrency": None, "rate": 50.0}}, 8, "nor is an open loop"),
        ({"measurement": {"objective": "energy"}}, 8, "nor energy"),
        ({"target": {"engine": "command:x.yaml"}, "search": {"initial": 5}}, 5, "as was asked for"),
        (
            {"target": {"concurrency": None, "rate": 50.0}, "search": {"trials": 6}},
            3,
            "half at most",
        ),
        ({"target": {"engine": "command:x.yaml"}, "search": {"sampler": "tpe"}}, 10, "its own"),
    ],
)
def test_a_search_without_a_prediction_starts_as_gp_does(
    changes: dict[str, dict[str, Any]], initial: int, why: str
) -> None:
    settled = prediction.adjust_settings(study(**changes))
    assert settled.search.first_trials == initial, why
    assert dataclasses.replace(settled.search, initial=None) == dataclasses.replace(
        study(**changes).search, initial=None
    ), "nothing else is changed"


def start(ground: PreparedTable, trials: int, *, fails: bool = False) -> Search:
    """A search on a table, after so many trials; the default may fail."""
    order = ReplaySpec(sampler="structured", trials=20, seeds=(0,))
    evaluator = replay_search.make_evaluator(ground, order.perturbations, 0)
    evaluator.with_oom = frozenset({ground.problem.default} if fails else ())
    search = replay_search.search_of(ground, order, 0, evaluator)
    for _ in range(trials):
        search.step()
    return search


def test_the_default_predicts_the_others() -> None:
    """Nothing is predicted before its trial; the predicted best is tried next, before winners elsewhere."""
    ground = prepared_table.prepare_table(recorded.table())
    assert start(ground, 0).problem.prediction is None
    winner = ground.problem.candidates.configurations[-1]
    warm = dataclasses.replace(ground.problem, warm_start_configurations=(winner,))
    for one in (ground, dataclasses.replace(ground, problem=warm)):
        search = start(one, 2)
        assert search.budget.initial == INITIALS["structured"]
        assert search.problem.predicted_best is not None
        assert search.trials[1].configuration == search.problem.predicted_best != winner


def test_the_first_that_works_predicts_where_the_default_fails() -> None:
    ground = prepared_table.prepare_table(recorded.table())
    search = start(ground, 1, fails=True)
    while search.problem.prediction is None:
        assert search.trials[-1].measured is None
        search.step()
    first, problem = search.trials[-1], search.problem
    assert first.measured is not None
    assert problem.latency is not None
    place = problem.candidates.index_of(first.configuration)
    assert problem.latency[place] == pytest.approx(first.measured.mean_ms, rel=0.01)


@pytest.mark.parametrize("default_ms", [0.7, 4.0, 60.0, 2_000.0])
def test_an_estimate_agrees_with_the_default(default_ms: float) -> None:
    problem = prepared_table.prepare_table(recorded.table()).problem
    found = prediction.estimate(problem, default_ms)
    place = problem.candidates.index_of(problem.default)
    assert found.latency is not None
    assert place is not None
    least_ms = prediction.estimate(problem, 1e-6).latency
    assert least_ms is not None
    assert found.latency[place] == pytest.approx(max(default_ms, least_ms[place]), rel=0.01)


@pytest.mark.parametrize("name", ["mosec-20", "mosec-orientation-8"])
def test_rules_of_thumb_order_the_configurations_of_another_engine(name: str) -> None:
    """Ranks are right for the most part: batches, waits, processes and quotas by their roles."""
    ground = prepared_table.prepare_table(table_files.read(TABLES / name))
    truth, problem = ground.truth, ground.problem
    values = dict(zip(truth.candidates, truth.log_mean.tolist(), strict=True))
    found = prediction.estimate(problem, math.exp(values[problem.default]))
    assert found.latency is not None
    cells = problem.candidates.configurations
    rows = [
        (predicted_ms, values[cell])
        for predicted_ms, cell in zip(found.latency.tolist(), cells, strict=True)
        if cell in values
    ]
    assert stats.spearmanr(np.array(rows)).statistic > 0.6
