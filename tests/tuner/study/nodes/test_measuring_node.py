"""What measures on another machine, here: it takes plain values, and its facts are those of this machine."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import sys

import pytest

from serving.values import Signature
from tests.fakes import benches, other_engines
from tuner.errors import UsageError
from tuner.launching.engine import EngineInfo
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import SCENARIO
from tuner.study import targets
from tuner.study.nodes.fleet import check_alike
from tuner.study.nodes.measuring_node import MeasuringNode, facts, facts_with_engine
from tuner.study.preparation import files_to_keep
from tuner.study.targets import CommandTarget

pytestmark = pytest.mark.processes

SETTINGS = StudySettings(
    target=TargetSettings(model="echo", concurrency=2),
    search=SearchSettings(workers="2"),
    measurement=MeasurementSettings(seconds=0.4, warmup_s=0.1),
)
NOTHING = Signature(inputs=(), outputs=())
DEFAULT = {"replica.count": 1, "batching.max_size": 4}
OTHER = {"replica.count": 1, "batching.max_size": 2}


def test_a_node_measures_trials_and_rounds_as_a_study_does() -> None:
    """Its arms alternate beside each other, and nothing of it is left when it is closed."""
    node = MeasuringNode(json.loads(json.dumps(SETTINGS.as_nested())), {})
    try:
        told = node.open(DEFAULT)
        here = facts(SETTINGS.target, targets.find_target(SETTINGS.target))
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
    node = MeasuringNode(SETTINGS.as_nested(), {})
    try:
        node.open(DEFAULT)
        monkeypatch.setattr(sys, "executable", shutil.which("false"))
        evaluation = node.evaluate(OTHER, None)
    finally:
        node.close()
    assert evaluation.measurement is None
    assert evaluation.outcome.status == "failed"
    assert "the load generator's process does not start" in evaluation.outcome.reason


def test_engine_and_prices_are_those_of_the_study(tmp_path: pathlib.Path) -> None:
    """Whatever lies in their places on the machine: another engine, and no prices."""
    path, paid = other_engines.written(tmp_path), tmp_path / "prices.yaml"
    paid.write_text("core_hour: 0.04\ngib_hour: 0.005\n", encoding="utf-8")
    settings = StudySettings(
        target=TargetSettings(model="thing", concurrency=2, engine=f"command:{path}"),
        measurement=MeasurementSettings(objective="cost", prices=str(paid)),
    )
    kept = files_to_keep(settings, targets.find_target(settings.target))
    path.write_text(path.read_text().replace("name: tiny", "name: edited"))
    paid.unlink()
    node = MeasuringNode(settings.as_nested(), kept)
    try:
        assert isinstance(node._target, CommandTarget)
        assert node._target.engine.name == "tiny"
        assert node._evaluator.prices.core_hour == 0.04
    finally:
        node.close()


def test_files_of_requests_must_be_the_same(tmp_path: pathlib.Path) -> None:
    """The first that differs is named."""
    files = {name: tmp_path / name for name in ("sent", "sizes", "values", "trace", "rows", "body")}
    for path in files.values():
        path.write_text("1,0\n2,0\n", encoding="utf-8")
    pool = tmp_path / "pool.yaml"
    pool.write_text(
        "seconds: 9\nmodels: {m: {model: mnist}}\n"
        "traffic: {m: {arrivals: trace, file: rows, deadline_ms: 50}}\n",
        encoding="utf-8",
    )
    engine = other_engines.written(tmp_path)
    engine.write_text(engine.read_text().replace("body: body.txt", "body: body"))
    echo = TargetSettings(model="echo", concurrency=2)
    cases = {
        "sent": dataclasses.replace(echo, payload=str(files["sent"])),
        "sizes": dataclasses.replace(echo, shape=(f"x=@{files['sizes']}",)),
        "values": dataclasses.replace(echo, values=(f"x=@{files['values']}",)),
        "trace": dataclasses.replace(echo, arrivals=f"trace:{files['trace']}"),
        "rows": TargetSettings(model="p", scenario=str(pool), rate=1.0, arrivals=SCENARIO),
        "body": dataclasses.replace(echo, model="thing", engine=f"command:{engine}"),
    }
    assert any(
        "mnist" in path
        for path in facts(cases["rows"], targets.find_target(cases["rows"]))["files"]
    )
    for name, settings in cases.items():
        found = targets.find_target(settings)
        here = facts(settings, found)
        check_alike({"a": here, "b": facts(settings, found)})
        files[name].write_text("1,0\n3,0\n", encoding="utf-8")
        with pytest.raises(UsageError, match=f"differ in files {files[name]} "):
            check_alike({"a": here, "b": facts(settings, targets.find_target(settings))})
        files[name].unlink()
        with pytest.raises(UsageError, match="cannot be read"):
            facts(settings, found)


def test_reasons_of_missing_limits_may_differ() -> None:
    """They name groups that were tried, but limits of one kind are not those of another."""
    target, one = targets.find_target(SETTINGS.target), "not enforced: v1: no rights on /luthier-1"
    told = {
        limits: facts_with_engine(
            SETTINGS.target,
            target,
            EngineInfo(model="echo", kind="python", signature=NOTHING, limits=limits),
            benches.SENT,
        )
        for limits in (one, "not enforced: v1: no rights on /luthier-2", "enforced")
    }
    with pytest.raises(UsageError, match=r"differ in limits \(not enforced and enforced\)"):
        check_alike(told)
    del told["enforced"]
    check_alike(told)
