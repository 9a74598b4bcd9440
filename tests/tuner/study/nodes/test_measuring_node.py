"""What measures on another machine, here: it takes plain values, and its facts are those of this machine."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import targets
from tuner.study.nodes.fleet import check_alike
from tuner.study.nodes.measuring_node import MeasuringNode, facts

pytestmark = pytest.mark.processes

SETTINGS = StudySettings(
    target=TargetSettings(model="echo", concurrency=2),
    search=SearchSettings(workers="2"),
    measurement=MeasurementSettings(seconds=0.4, warmup_s=0.1),
)
DEFAULT = {"replica.count": 1, "batching.max_size": 4}
OTHER = {"replica.count": 1, "batching.max_size": 2}


def test_a_node_measures_trials_and_rounds_as_a_study_does() -> None:
    """Its arms alternate beside each other, and nothing of it is left when it is closed."""
    node = MeasuringNode(json.loads(json.dumps(SETTINGS.as_nested())))
    try:
        told = node.open(DEFAULT)
        here = facts(targets.find_target(SETTINGS.target))
        check_alike({"there": told, "here": {**told, **here}})
        evaluation = node.evaluate(OTHER, None)
        assert evaluation.measurement is not None, evaluation.outcome
        assert dict(evaluation.configuration) == OTHER
        node.open_rounds({"default": DEFAULT, "best": OTHER}, 0.001)
        for arms in (("default", "best"), ("best", "default")):
            found = node.round(arms, 0)
            assert tuple(role for role, _ in found) == arms
            assert all(one.measurement is not None for _, one in found)
        assert node.evaluate(DEFAULT, None).measurement is not None
        with pytest.raises(AssertionError, match="rounds are open"):  # it measured alone
            node.round(("default", "best"), 0)
    finally:
        node.close()


def test_a_load_generator_that_fails_is_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on one machine; what begins here alone is the load generator's process."""
    node = MeasuringNode(SETTINGS.as_nested())
    try:
        node.open(DEFAULT)
        monkeypatch.setattr(sys, "executable", shutil.which("false"))
        evaluation = node.evaluate(OTHER, None)
    finally:
        node.close()
    assert evaluation.measurement is None
    assert evaluation.outcome.status == "failed"
    assert "the load generator's process does not start" in evaluation.outcome.reason
