"""A study in a notebook: tables that say what the record says."""

from __future__ import annotations

import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tuner
from tests.fakes import searches, studies
from tuner.errors import UnknownStudy, UsageError
from tuner.notebook import Study
from tuner.store import records
from tuner.store.run_folder import RunFolder
from tuner.study import study_files
from tuner.values.verification_state import VerificationState

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A study with a verdict, and with the requests of its first launch."""
    runs = tmp_path_factory.mktemp("notebook") / "runs"
    runs.mkdir()
    folder, _, search = searches.searched(runs)
    ending = VerificationState(
        stopped="the budget is used up", best=search.recommend(), pairs=4, evaluations=()
    )
    study_files.save_verification_state(folder, ending)
    study_files.save_end(folder, ending, studies.study().verdict)
    kept = studies.study().records["default"]
    folder.write_bytes("trials/0/requests.npz", records.encode(kept))
    return folder


def test_a_row_of_trials_says_what_the_trial_says(folder: RunFolder) -> None:
    """Knobs by name, figures with intervals, NaN where there is none."""
    study = tuner.load(folder.path)
    table = study.trials()
    assert list(table.index) == [trial.number for trial in study.record.trials]
    statuses = set()
    for trial in study.record.trials:
        row = table.loc[trial.number]
        statuses.add(row["status"])
        assert {name: row[name] for name in trial.configuration} == dict(trial.configuration)
        if trial.measurement is None:
            assert math.isnan(row["mean_ms"])
            assert math.isnan(row["p95_high_ms"])
            continue
        assert row["mean_ms"] == trial.measurement.mean_ms
        assert row["mean_low_ms"] == trial.measurement.mean_interval.low
        assert row["requests"] == trial.measurement.requests
        assert math.isnan(row["p99_ms"]) == (not trial.measurement.has_p99)
        assert math.isnan(row["p99_low_ms"]) or trial.measurement.has_p99
    assert statuses == {"ok", "infeasible"}


def test_requests_are_those_of_the_launch(folder: RunFolder) -> None:
    """All columns of the records; those that were measured lie in the measured part."""
    study = tuner.load(folder.path)
    table = study.requests(0)
    kept = studies.study().records["default"]
    np.testing.assert_array_equal(table["status"], kept.status)
    np.testing.assert_allclose(table["latency_ms"], (kept.finished_s - kept.intended_s) * 1e3)
    measurement = study.record.trials[0].measurement
    assert measurement is not None
    begin_s, end_s = measurement.warmup_s, measurement.warmup_s + measurement.seconds
    measured = table[table["is_measured"]]
    assert 0 < len(measured) < len(table)
    assert begin_s < measured["finished_s"].min()
    assert measured["finished_s"].max() <= end_s
    outside = table[~table["is_measured"]]["finished_s"]
    assert ((outside <= begin_s) | (outside > end_s)).all()


@pytest.mark.parametrize(
    ("trial", "said"),
    [(99, r"no trial 99 \(trials: 0 to 7\)"), (1, "trial 1 has no recorded requests")],
)
def test_requests_that_are_not_there_are_refused(folder: RunFolder, trial: int, said: str) -> None:
    """With the trials there are, or why there are none."""
    with pytest.raises(UsageError, match=said):
        tuner.load(folder.path).requests(trial)


def test_it_shows_the_verdict(folder: RunFolder) -> None:
    """As text, and in a notebook with the same words."""
    study = tuner.load(str(folder.path))
    verdict = studies.study().verdict
    assert verdict is not None
    assert study.verdict == verdict
    assert "best / default" in repr(study)
    assert verdict.text.split(":")[0] in study._repr_html_()
    assert study._repr_html_().startswith("<pre")


def test_a_study_is_found_by_name(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs/ of the working folder; what is none is refused with those there are."""
    monkeypatch.chdir(folder.path.parent.parent)
    assert tuner.load("s").record.name == "s"
    assert tuner.load("runs/s").record.name == "s"
    with pytest.raises(UnknownStudy, match=r"study 'runs/t' is not known .*runs: s\)"):
        tuner.load("runs/t")


def test_pandas_is_imported_by_load_alone() -> None:
    """Neither the package nor the command needs it."""
    code = "import sys, tuner, tuner.cli.main; print('pandas' in sys.modules, 'tuner.notebook' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_every_column_is_documented(folder: RunFolder) -> None:
    """In the page and in the docstrings."""
    page = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    study = tuner.load(folder.path)
    knobs = {knob.name for knob in study.record.knobs}
    for table, told in (
        (study.trials(), Study.trials.__doc__),
        (study.requests(0), Study.requests.__doc__),
    ):
        names = {name for name in table.columns if name not in knobs}
        assert {name for name in names if f"`{name}`" not in page} == set()
        plain = {name for name in names if not name.endswith(("_low_ms", "_high_ms"))}
        assert {name for name in plain if name not in (told or "")} == set()
