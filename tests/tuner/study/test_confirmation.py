"""What of a study a confirmation judges, what it does not, and what its figures are."""

from __future__ import annotations

import dataclasses

import pytest

from tests.fakes import studies
from tuner import advice
from tuner.export import provenance
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study.confirmation import ConfirmedStudy
from tuner.values.study_record import StudyRecord

STUDY = studies.study(trials=12)


def found_of(record: StudyRecord, trial: int, **measurement: object) -> ConfirmedStudy:
    """A study of which a trial was exported."""
    told = advice.of_trial(record, trial)
    return ConfirmedStudy(
        settings=StudySettings(
            target=TargetSettings(model="resnet", concurrency=20),
            measurement=MeasurementSettings(**measurement),  # type: ignore[arg-type] - by name
        ),
        record=record,
        advice=told,
        measured=provenance.measurements_of(record, told.configuration),
    )


def test_figures_of_a_search_are_told_as_such() -> None:
    """Of a trial that was not re-evaluated, and of any if none was; not of what has a verdict."""
    numbers = {
        kind: next(one.number for one in STUDY.trials if one.measurement and is_kind(one))
        for kind, is_kind in (
            ("best", lambda one: one.configuration == STUDY.best),
            ("default", lambda one: one.configuration == STUDY.default),
            ("other", lambda one: one.configuration not in (STUDY.best, STUDY.default)),
        )
    }
    unverified = dataclasses.replace(STUDY, verdict=None)
    assert found_of(STUDY, numbers["best"]).remark is None
    assert found_of(STUDY, numbers["default"]).remark is None
    for record, kind in ((STUDY, "other"), (unverified, "best")):
        remark = found_of(record, numbers[kind]).remark
        assert remark is not None
        assert "flatter a selected configuration" in remark


@pytest.mark.parametrize(
    ("measurement", "judged", "unseen"),
    [
        ({"slo_ms": 5.0}, ["p99_ms <= 5"], ()),
        ({"objective": "mean,p99"}, [], ("the objective p99",)),
        (
            {"objective": "mean,cpu", "constraints": ("energy_j <= 2", "p50_ms <= 3")},
            ["p50_ms <= 3"],
            ("the objective cpu", "the constraint energy_j <= 2"),
        ),
        (
            {"constraints": ("peak_memory_mb <= 500", "cost_per_1000 <= 1")},
            [],
            ("the constraint peak_memory_mb <= 500", "the constraint cost_per_1000 <= 1"),
        ),
        (
            {"objective": "goodput", "slo_ms": 5.0, "constraints": ("goodput_per_s >= 2",)},
            ["goodput_per_s >= 2"],
            (),
        ),
    ],
)
def test_what_the_load_sees_is_judged(
    measurement: dict[str, object], judged: list[str], unseen: tuple[str, ...]
) -> None:
    """The first objective and its constraints; the rest is told as not checked."""
    found = found_of(STUDY, 0, **measurement)
    assert found.needs.names == (found.settings.measurement.first,)
    assert [limit.text for limit in found.needs.limits] == judged
    assert found.unseen == unseen
