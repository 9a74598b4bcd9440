"""Studies of format 1: refused with the command that converts them, and converted."""

from __future__ import annotations

import json
import pathlib
import sqlite3

import pytest

from tuner.errors import UsageError
from tuner.store import conversion
from tuner.store.run_folder import OLD_MARK, RunFolder

SETTINGS = f"""{OLD_MARK}
target:
  model: echo
  home: process
search:
  sampler: guess
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> RunFolder:
    """A study as it was written."""
    made = RunFolder(tmp_path, "one")
    made.path.mkdir()
    made.write_text("settings.yaml", SETTINGS)
    made.write_text("best.yaml", "clockwork:\n  guard: 0.2\n")
    made.write_text("verification/launches.json", json.dumps({"guess": None, "finalists": []}))
    made.write_bytes("verification/guess.npz", b"x")
    made.write_text("verdict.json", json.dumps({"verdict": {"another_day": 1}, "front": []}))
    with sqlite3.connect(made.database) as connection:
        for table in conversion.TABLES:
            connection.execute(f"CREATE TABLE {table} (value_json TEXT)")
        connection.execute("CREATE TABLE trial_params (param_name TEXT)")
        connection.execute("INSERT INTO trial_params VALUES ('clockwork.guard')")
        facts = json.dumps({"launch_s": 0.1, "clockwork.guard": 0.2})
        connection.execute("INSERT INTO trial_user_attributes VALUES (?)", (facts,))
    connection.close()
    return made


def test_it_is_refused_with_the_command(folder: RunFolder) -> None:
    assert folder.is_study()
    with pytest.raises(UsageError, match="convert it with: tune convert"):
        folder.settings()


def test_it_is_converted(folder: RunFolder) -> None:
    conversion.convert(folder)
    assert folder.settings() == {
        "target": {"model": "echo", "spawner": "process"},
        "search": {"sampler": "prediction"},
    }
    assert "duration_margin: 0.2" in (folder.path / "best.yaml").read_text()
    assert folder.read_json("verification/evaluations.json") == {
        "prediction": None,
        "shortlist": [],
    }
    assert sorted(path.name for path in (folder.path / "verification").iterdir()) == [
        "evaluations.json",
        "prediction.npz",
    ]
    assert folder.read_json("verdict.json") == {
        "verdict": {"between_session_interval": 1},
        "pareto_front": [],
    }
    with sqlite3.connect(folder.database) as connection:
        (text,) = connection.execute("SELECT value_json FROM trial_user_attributes").fetchone()
        (name,) = connection.execute("SELECT param_name FROM trial_params").fetchone()
    connection.close()
    assert json.loads(text) == {"startup_s": 0.1, "clockwork.duration_margin": 0.2}
    assert name == "clockwork.duration_margin"


def test_it_is_converted_once(folder: RunFolder) -> None:
    conversion.convert(folder)
    with pytest.raises(UsageError, match="not a study of format 1"):
        conversion.convert(folder)
