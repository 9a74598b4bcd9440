"""Which settings of a running server are those of a study's export."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.settings import SETTINGS, ServingSettings
from tests.fakes import studies
from tuner.advice import advise
from tuner.errors import UsageError
from tuner.study import served_identity
from tuner.values.study_record import StudyRecord

STUDY = dataclasses.replace(studies.study(trials=12), told={"model.shapes": "sequence=128"})
ADVICE = advise(STUDY)
assert ADVICE is not None
OTHERS: dict[str, object] = {
    "replica.cpu": 0.3,
    "replica.count": 7,
    "scheduling.queue_capacity": 17,
    "scheduling.policy": "clockwork",
    "batching.slo_ms": 3.0,
    "model.shapes": None,
    "model.values": "x=1",
    "replica.limits": "each",
}
"""Settings that neither the study nor an export has."""


def told_by(settings: Mapping[str, Any], model: str = "resnet") -> dict[str, Any]:
    """What the admin port says of a server with these settings."""
    return served_identity.of_model(ServingSettings().with_changes(settings).as_nested(), model)


def compared(told: Mapping[str, Any], record: StudyRecord) -> tuple[str, ...]:
    assert ADVICE is not None
    exported = served_identity.settings_of_exports(record, ADVICE)
    return served_identity.same_settings(told, served_identity.export_of(told, exported), "it")


def limited(record: StudyRecord, limits: str) -> StudyRecord:
    return dataclasses.replace(record, settings={"target": {"limits": limits}})


@pytest.mark.parametrize("limits", ["each", "pod"])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_every_kind_of_export_is_the_studys(kind: int, limits: str) -> None:
    """As measured, in one container, and in a cluster of pods: all settings of the model are compared."""
    record = limited(STUDY, limits)
    settings = served_identity.settings_of_exports(record, ADVICE)[kind]
    same = compared(told_by(settings), record)
    left = set(SETTINGS) - set(same) - served_identity.OF_MACHINE
    assert all(name.startswith(served_identity.OF_WHOLE_SERVER) for name in left)


@given(name=st.sampled_from(sorted(OTHERS)), is_of_model=st.booleans())
def test_a_setting_that_was_changed_is_refused(name: str, is_of_model: bool) -> None:
    """Whether the study searched it or not, and for all models or this one."""
    record = limited(STUDY, "pod")
    settings = dict(served_identity.settings_of_exports(record, ADVICE)[0])
    if is_of_model and not name.startswith("replica.limits"):
        settings["models"] = {"resnet": {name: OTHERS[name]}}
    else:
        settings[name] = OTHERS[name]
    with pytest.raises(UsageError, match=f"the server has another configuration: {name} is "):
        compared(told_by(settings), record)
