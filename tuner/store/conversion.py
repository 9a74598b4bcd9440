"""Conversion of a study from format 1, in which names differ, to the current format.

Keys change in its settings, its JSON files and its trials' JSON; values stay.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import sqlite3
from collections.abc import Mapping

from serving.error_text import RENAMED
from tuner.errors import UsageError
from tuner.store.run_folder import MARK, OLD_MARK, SETTINGS_FILE, RunFolder, storage_errors

MEASURED = {"launch_s": "startup_s", "foreign_cpu_s": "neighbour_cpu_s"}
"""Mapping from old to current keys of a trial's JSON."""
KEYS = MEASURED | {
    "fresh_starts": "failure_counts",
    "finalists": "shortlist",
    "standings": "ranked_shortlist",
    "front": "pareto_front",
    "guess": "prediction",
    "against_guess": "against_prediction",
    "another_day": "between_session_interval",
    "launch_sd": "evaluation_sd",
    "starts": "evaluations",
    "launched": "evaluations",
    "finals": "selection_evaluations",
    "presumed_sd": "assumed_sd",
}
"""Mapping from old to current keys of a study's JSON files."""
FILES = {
    "verdict.json": "verdict.json",
    "verification/launches.json": "verification/evaluations.json",
    "verification/guess.npz": "verification/prediction.npz",
}
"""Mapping from old to current file names."""
TEXTS = ("best.yaml", "scenario.yaml", "space.yaml")
TABLES = ("study_user_attributes", "trial_user_attributes", "trial_system_attributes")
"""Optuna's tables that hold JSON in `value_json`."""


def convert(folder: RunFolder) -> None:
    """Convert a study, ending with `settings.yaml` so that a killed conversion can be repeated.

    Raises:
        UsageError: it is not in format 1, or its trials are in another storage.
        StorageFailed: the study cannot be written.
    """
    with storage_errors(f"study folder {folder.path}"):
        first, _, rest = (folder.path / SETTINGS_FILE).read_text(encoding="utf-8").partition("\n")
        if first != OLD_MARK:
            raise UsageError(
                f"{folder.path} is not a study of format 1: nothing is to be converted"
            )
        if not folder.database.exists():
            raise UsageError(f"{folder.path} has no study.db: only such studies can be converted")
        _convert_trials(folder.database)
        for old, new in FILES.items():
            path = folder.path / old
            if path.exists() and path.suffix == ".json":
                folder.write_text(new, current_json(path.read_text(encoding="utf-8")))
                if new != old:
                    path.unlink()
            elif path.exists():
                path.rename(folder.path / new)
        for name in TEXTS:
            path = folder.path / name
            if path.exists():
                folder.write_text(name, current_text(path.read_text(encoding="utf-8")))
        folder.write_text(SETTINGS_FILE, f"{MARK}\n{current_text(rest)}")


def current_json(text: str, keys: Mapping[str, str] = KEYS) -> str:
    """Convert JSON to the current names of keys, settings, arm and sampler."""
    for old, new in keys.items():
        text = re.sub(rf'"{old}"(?=\s*:)', f'"{new}"', text)
    text = re.sub(r'("(?:role|sampler)"\s*:\s*)"guess"', r'\1"prediction"', text)
    return _current_settings(text)


def current_text(text: str) -> str:
    """Convert YAML to the current setting names, whether dotted or grouped."""
    text = re.sub(r"\bloads_apart:", "concurrent_loads:", text)
    text = re.sub(r"\blag_us:", "message_latency_us:", text)
    text = re.sub(r"(?m)^(  sampler: )guess$", r"\1prediction", text)
    for old, new in (*_settings(), ("target.home", "target.spawner")):
        text = _in_group(text, old, new.partition(".")[2])
    return _current_settings(text)


def _in_group(text: str, old: str, new: str) -> str:
    group, _, leaf = old.partition(".")
    key = re.compile(rf"(?m)^( +){leaf}:")
    whole = re.compile(rf"(?m)^( *){group}:\n(?:\1 +.*\n)+")
    return whole.sub(lambda part: key.sub(rf"\1{new}:", part[0]), text)


def _current_settings(text: str) -> str:
    for old, new in _settings():
        text = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])", new, text)
    return text


def _settings() -> list[tuple[str, str]]:
    return [(old, new) for old, new in RENAMED.items() if "." in new]


def _convert_trials(database: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for table in sorted(known & {*TABLES}):
            rows = connection.execute(f"SELECT rowid, value_json FROM {table}").fetchall()  # noqa: S608 - own names
            connection.executemany(
                f"UPDATE {table} SET value_json = ? WHERE rowid = ?",  # noqa: S608 - own names
                [(current_json(text, MEASURED), row) for row, text in rows if text is not None],
            )
        connection.executemany(
            "UPDATE trial_params SET param_name = ? WHERE param_name = ?",
            [(new, old) for old, new in _settings()],
        )
