"""Which searches are predicted, and how one starts that is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.fakes import recorded
from tuner.lab import prepared_table, replay_search
from tuner.lab.replay_search import ReplaySpec
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import INITIALS, SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import prediction


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
        ({}, 4, "a closed loop of our own engine is predicted"),
        ({"target": {"engine": "command:x.yaml"}}, 8, "another engine is not"),
        ({"target": {"concurrency": None, "rate": 50.0}}, 8, "nor is an open loop"),
        ({"measurement": {"objective": "energy"}}, 8, "nor energy"),
        ({"target": {"engine": "command:x.yaml"}, "search": {"initial": 5}}, 5, "as was asked for"),
        ({"target": {"engine": "command:x.yaml"}, "search": {"trials": 6}}, 3, "half at most"),
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


def test_so_does_a_replay_of_a_table_without_a_profile() -> None:
    ground = prepared_table.prepare_table(recorded.table())
    assert ground.profile is None
    order = ReplaySpec(sampler="structured", trials=20, seeds=(0,))
    search = replay_search.search_of(
        ground, order, 0, replay_search.make_evaluator(ground, order.perturbations, 0)
    )
    assert search.budget.initial == INITIALS["gp"]
