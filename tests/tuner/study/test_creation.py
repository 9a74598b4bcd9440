"""A study's beginning on disk: all of it or nothing, and the first error is the one that is seen."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pathlib

import pytest

from serving.model_spec import ModelSpec
from serving.values import Signature
from tests.fakes import benches, other_engines
from tuner.errors import StudyExists
from tuner.launching.engine import EngineInfo
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.store import StoreSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.run_folder import RunFolder
from tuner.study import creation, preparation, study_files, targets

SERVED = EngineInfo(
    model="toy",
    kind="python",
    signature=Signature(inputs=(), outputs=()),
    limits="enforced",
)
SETTINGS = StudySettings(target=TargetSettings(model="toy", concurrency=benches.CONCURRENCY))


def test_a_study_that_the_storage_has_already_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    """The folder of studies that was made for it goes as well."""
    url = f"sqlite:///{tmp_path / 'all.db'}"
    settings = dataclasses.replace(SETTINGS, store=StoreSettings(storage=url))
    first = RunFolder(tmp_path / "first", "s")
    creation.create_study(first, benches.inputs(settings, SERVED), overwrite=False)
    second = RunFolder(tmp_path / "second", "s")
    with pytest.raises(StudyExists, match=r"study 's' in sqlite:.*all\.db exists: choose another"):
        creation.create_study(second, benches.inputs(settings, SERVED), overwrite=False)
    assert not second.runs_dir.exists()
    assert first.is_study()


def test_a_name_that_is_taken_comes_with_a_command_that_works(tmp_path: pathlib.Path) -> None:
    """It names another folder of studies; what is no study cannot be gone on with."""
    folder = RunFolder(tmp_path / "my runs", "s")
    folder.create({}, {})
    text = str(creation.name_taken(folder))
    assert f"`tune resume s --runs-dir '{tmp_path}/my runs'`" in text
    other = RunFolder(tmp_path, "compare")
    other.create({}, {}, settings_file="compare.yaml")
    text = str(creation.name_taken(other))
    assert text == f"{other.path} exists: it is not a study; choose another --study"


def test_another_file_in_the_place_does_not_hide_the_error(tmp_path: pathlib.Path) -> None:
    """Somebody else's file in the new folder of studies stays, and the error is the first one."""
    url = f"sqlite:///{tmp_path / 'all.db'}"
    settings = dataclasses.replace(SETTINGS, store=StoreSettings(storage=url))
    inputs = benches.inputs(settings, SERVED)
    creation.create_study(RunFolder(tmp_path / "a", "s"), inputs, overwrite=False)

    class Crowded(RunFolder):
        def write_text(self, name: str, text: str) -> pathlib.Path:
            (self.runs_dir / "other").touch()
            return super().write_text(name, text)

    folder = Crowded(tmp_path / "b", "s")
    with pytest.raises(StudyExists):
        creation.create_study(folder, inputs, overwrite=False)
    assert [path.name for path in folder.runs_dir.iterdir()] == ["other"]


def test_a_study_is_named_by_model_concurrency_and_time(tmp_path: pathlib.Path) -> None:
    """Its own name wins, and paths are made absolute."""
    card = ModelSpec(name="toy", version="1", kind="python", path=None)
    now = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - a person's clock
    named = creation.name_study(SETTINGS, card, now=now)
    assert named.store.study == "toy-c20-20260102-030405"
    batched = dataclasses.replace(
        SETTINGS, target=dataclasses.replace(SETTINGS.target, client_batch=4)
    )
    assert creation.name_study(batched, card, now=now).store.study == "toy-c20-b4-20260102-030405"
    target = dataclasses.replace(SETTINGS.target, space="a.yaml")
    asked = dataclasses.replace(SETTINGS, target=target, store=StoreSettings(study="mine"))
    named = creation.name_study(asked, card, now=now)
    assert named.store.study == "mine"
    assert named.target.space == str(pathlib.Path("a.yaml").absolute())


def test_what_a_study_keeps_is_what_it_goes_on_with(tmp_path: pathlib.Path) -> None:
    """Engine and prices are those of its beginning, on all machines."""
    path, paid = other_engines.written(tmp_path), tmp_path / "paid.yaml"
    paid.write_text("core_hour: 0.04\ngib_hour: 0.005\n", encoding="utf-8")
    target = TargetSettings(model="thing", concurrency=2, engine=f"command:{path}")
    settings = dataclasses.replace(
        SETTINGS, target=target, measurement=MeasurementSettings(prices=str(paid))
    )
    inputs = dataclasses.replace(
        benches.inputs(settings, SERVED), target=targets.find_target(target)
    )
    kept = preparation.files_to_keep(settings, inputs.target)
    assert set(kept) == {"engine.yaml", "prices.yaml"}
    folder = RunFolder(tmp_path, "s")
    creation.create_study(folder, inputs, overwrite=False)
    path.write_text(path.read_text().replace("name: tiny", "name: edited"))
    paid.unlink()
    again = study_files.settings_of(folder)
    found = targets.find_target(again.target, kept=study_files.engine_copy(folder))
    assert preparation.files_to_keep(again, found) == kept
