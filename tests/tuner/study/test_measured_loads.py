"""Lines of `tune load --json` as evaluations: which count, which failed, which are refused."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from tests.fakes import studies
from tuner.errors import UsageError
from tuner.measurement.outcome import EvaluationRequirements
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import measured_loads
from tuner.study.measured_loads import Load
from tuner.values.round_evaluation import RoundEvaluation

VERDICT = studies.study(trials=12).verdict
assert VERDICT is not None
MEASURED = VERDICT.best[0]
LOAD = Load(concurrency=20, rate_per_s=None, arrivals=None, client_batch=1)
OPEN = Load(concurrency=500, rate_per_s=100 / 3, arrivals="poisson", client_batch=4)


def line_of(load: Load = LOAD, **changes: Any) -> str:
    """A line as `tune load --json` prints it."""
    plain = dataclasses.replace(
        MEASURED, rate_per_s=load.rate_per_s, client_batch=load.client_batch
    ).as_json()
    told: dict[str, Any] = {"concurrency": load.concurrency, "arrivals": load.arrivals}
    told["slo_ms"] = load.deadline_ms
    return json.dumps({**told, **plain, "problems": [], "exit_code": 0, **changes})


def read(folder: pathlib.Path, *lines: str, load: Load = LOAD) -> list[RoundEvaluation]:
    """Read lines as those of a file."""
    path = folder / "loads.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    needs = EvaluationRequirements(objective="mean")
    return measured_loads.read(path, role="export", load=load, needs=needs)


@pytest.mark.parametrize("load", [LOAD, OPEN], ids=["closed", "open"])
def test_a_line_is_an_evaluation(tmp_path: pathlib.Path, load: Load) -> None:
    """With what it measured; other lines of a log are none."""
    found = read(tmp_path, "starting", '"text"', "[1]", '{"other": 1}', line_of(load), load=load)
    assert [one.measurement and one.measurement.mean_ms for one in found] == [MEASURED.mean_ms]


def test_what_failed_is_counted_with_its_reason(tmp_path: pathlib.Path) -> None:
    """Overloaded, full of errors, or without any figure: none is a good evaluation."""
    behind = line_of(problems=["the server fell behind", "and failed"], exit_code=1)
    error = json.dumps({"error": "nothing could be measured", "exit_code": 1})
    found = read(tmp_path, behind, line_of(), line_of(exit_code=1), error)
    assert [one.outcome.status for one in found] == ["failed", "ok", "failed", "failed"]
    assert [one.measurement is None for one in found] == [True, False, True, True]
    assert [one.outcome.reason for one in found] == [
        "the server fell behind; and failed",
        "",
        "the load ended with exit code 1",
        "nothing could be measured",
    ]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (dataclasses.replace(LOAD, concurrency=8), "the load was concurrency 8, 1 item"),
        (dataclasses.replace(LOAD, client_batch=4), "the load was concurrency 20, 4 items"),
        (OPEN, r"the load was 33\.3 requests/s \(poisson arrivals, at most concurrency 500\)"),
    ],
)
def test_another_load_is_refused(tmp_path: pathlib.Path, sent: Load, said: str) -> None:
    """One line says both, and which line of the file it is."""
    with pytest.raises(UsageError, match=said) as caught:
        read(tmp_path, line_of(), line_of(sent))
    assert "loads.jsonl, line 2: " in str(caught.value)
    assert "expected the study's, concurrency 20, 1 item in each request" in str(caught.value)


def test_other_arrivals_and_another_rate_are_other_loads() -> None:
    """A rate that is written with fewer digits is the same."""
    assert OPEN.is_as(dataclasses.replace(OPEN, rate_per_s=33.33333333))
    assert not OPEN.is_as(dataclasses.replace(OPEN, rate_per_s=33.4))
    assert not OPEN.is_as(dataclasses.replace(OPEN, arrivals="burst"))
    assert not OPEN.is_as(dataclasses.replace(OPEN, rate_per_s=None))


def test_goodput_needs_the_deadline_of_the_study() -> None:
    """Without goodput a deadline changes nothing."""
    late = dataclasses.replace(LOAD, deadline_ms=50.0)
    assert late.is_as(LOAD)
    assert late.is_as(late)
    assert not LOAD.is_as(late)
    assert not dataclasses.replace(late, deadline_ms=40.0).is_as(late)
    assert late.text == "concurrency 20, 1 item in each request, a deadline of 50 ms"


def test_the_load_of_a_study_is_that_of_its_settings() -> None:
    """Of a closed loop, and of an open one, whose connections have a default."""
    record = studies.study(trials=12)
    closed = StudySettings(target=TargetSettings(model="resnet", concurrency=20))
    record = dataclasses.replace(record, concurrency=20)
    assert Load.of_study(record, closed) == LOAD
    for objective, deadline_ms in (("goodput", 50.0), ("mean", None)):
        measurement = MeasurementSettings(objective=objective, slo_ms=50.0)
        asked = dataclasses.replace(closed, measurement=measurement)
        assert Load.of_study(record, asked).deadline_ms == deadline_ms
    target = TargetSettings(model="resnet", rate=100 / 3, client_batch=4)
    record = dataclasses.replace(record, concurrency=500, rate_per_s=100 / 3, client_batch=4)
    assert Load.of_study(record, StudySettings(target=target)) == OPEN


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no load", "holds no measurement, expected the output of `tune load --json`"),
        (json.dumps({"requests": 1, "blocks": [], "noise": {}}), "line 1: is not a whole line"),
        (line_of(noise=3), "line 1: is not a whole line"),
    ],
)
def test_what_is_no_load_is_one_line(tmp_path: pathlib.Path, line: str, said: str) -> None:
    """It says what was expected."""
    with pytest.raises(UsageError, match=said):
        read(tmp_path, line)
