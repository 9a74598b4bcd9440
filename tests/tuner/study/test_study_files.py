"""A study read back whole."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from serving.spawners.process.spawner import OF_POD
from tests.fakes import benches, searches, studies
from tuner.errors import UsageError
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import study_files
from tuner.study.search import Search
from tuner.values.configuration import Configuration
from tuner.values.confirmation import Confirmation
from tuner.values.interval import Interval
from tuner.values.round_evaluation import FailureCount, RoundEvaluation
from tuner.values.study_record import StudyRecord
from tuner.values.trial import OK, Outcome
from tuner.values.verification_state import VerificationState

DIED = Outcome(status="infeasible", cause="oom", reason="peak 64 MiB")


@pytest.fixture
def searched(tmp_path: pathlib.Path) -> tuple[RunFolder, StudyStore, Search]:
    """A study of eight trials without an end."""
    return searches.searched(tmp_path)


def read(folder: RunFolder) -> StudyRecord:
    """The record, through the files alone."""
    settings = study_files.settings_of(folder)
    return study_files.read(folder, study_files.store_of(folder, settings), settings)


def test_an_unfinished_study_shows_its_lowest_and_says_so(
    searched: tuple[RunFolder, StudyStore, Search],
) -> None:
    """Without an end the best is the lowest measurement, and a note says that it flatters."""
    folder, _, search = searched
    record = read(folder)
    lowest = search.best_seen()
    assert lowest is not None
    assert record.best == lowest.configuration
    assert record.verdict is None
    command = f"resume with: tune resume {folder.path}"
    assert record.notes[-1] == f"{study_files.UNFINISHED}; {command}"
    assert record.trials == search.trials
    assert record.knobs == search.problem.knobs
    assert record.default == search.problem.default
    assert not study_files.is_finished(folder)
    assert not record.is_finished
    assert record.settings["search"]["initial"] == 2, "the one that was chosen for the user"


def test_the_end_is_kept_and_read(searched: tuple[RunFolder, StudyStore, Search]) -> None:
    """Best, verdict, round evaluations and the reason of the end come back as they were kept."""
    folder, store, search = searched
    store.note("payloads are synthetic")
    verdict = studies.study().verdict
    best = search.recommend()
    starts = (
        RoundEvaluation(role="default", outcome=OK, measurement=search.trials[0].measurement),
        RoundEvaluation(role="best", outcome=DIED, measurement=None),
    )
    ending = VerificationState(
        stopped="the budget is used up", best=best, pairs=1, evaluations=starts
    )
    study_files.save_verification_state(folder, ending)
    between = read(folder)
    assert (between.best, between.verdict) == (best, None)
    assert between.notes[-1].startswith(
        f"the budget is used up; {study_files.UNVERIFIED}; resume with: "
    )
    study_files.save_end(folder, ending, verdict)
    record = read(folder)
    assert (record.best, record.verdict) == (best, verdict)
    assert record.is_finished
    assert record.signature == studies.SIGNATURE
    assert record.failure_counts == between.failure_counts
    assert record.failure_counts["best"] == FailureCount(
        evaluations=1, failed=1, reason="peak 64 MiB"
    )
    told = json.loads((folder.path / "verdict.json").read_text(encoding="utf-8"))["failure_counts"]
    assert told["best"] == {"evaluations": 1, "failed": 1, "reason": "peak 64 MiB"}
    assert record.notes == ("payloads are synthetic", "the budget is used up")


def test_an_end_with_early_keys_is_read(searched: tuple[RunFolder, StudyStore, Search]) -> None:
    """Studies of format 2 that were kept before the keys had their present names; knobs keep theirs."""
    folder, _, _ = searched
    evaluations = (RoundEvaluation(role="best", outcome=DIED, measurement=None),)
    ending = VerificationState(
        stopped="s",
        best=Configuration({"front": 2, "starts": 1}),
        pairs=1,
        evaluations=evaluations,
        assumed_sd=0.2,
    )
    data = ending.as_json()
    data["starts"], data["finals"] = data.pop("evaluations"), data.pop("selection_evaluations")
    data["presumed_sd"] = data.pop("assumed_sd")
    folder.write_json(study_files.VERIFICATION_STATE_FILE, data)
    assert study_files.read_verification_state(folder) == ending


def test_another_machine_cannot_go_on(searched: tuple[RunFolder, StudyStore, Search]) -> None:
    """A space that differs from the one searched so far is refused, with the knob."""
    _, store, search = searched
    study_files.check_same_space(store, search.problem)
    other = benches.arena(benches.SPACE.replace("[1, 2, 3, 4]", "[1, 2]"))
    with pytest.raises(UsageError, match=r"replica\.count over \[1, 2, 3, 4\]"):
        study_files.check_same_space(store, other)


def test_other_limits_are_another_study(searched: tuple[RunFolder, StudyStore, Search]) -> None:
    """What was measured as a whole server does not go on with limits of each replica, nor without."""
    folder, _, _ = searched
    folder.write_json("environment.json", {"limits": OF_POD})
    study_files.check_same_limits(folder, OF_POD)
    for now in ("enforced", "not enforced: v1: no rights"):
        with pytest.raises(UsageError, match=f"limits {OF_POD}, but here they are {now}"):
            study_files.check_same_limits(folder, now)
    folder.write_json("environment.json", {"limits": "not enforced: one reason"})
    study_files.check_same_limits(folder, "not enforced: another")
    folder.write_json("environment.json", {})
    study_files.check_same_limits(folder, "enforced")


def test_confirmations_are_kept_in_order(searched: tuple[RunFolder, StudyStore, Search]) -> None:
    """Each is added to those before, and comes back as it was."""
    folder, _, _ = searched
    assert study_files.confirmations_of(folder) == ()
    first = Confirmation(
        where="http://127.0.0.1:8000",
        measured_at=1.5,
        configuration=Configuration({"replica.count": 2}),
        objective="mean",
        outcome="same",
        ratio=1.01,
        interval=Interval(low=0.98, high=1.04),
        margin=0.1,
        evaluations=(RoundEvaluation(role="export", outcome=DIED, measurement=None),),
        checked=("replica.count",),
        unchecked=("the limits of its container",),
        text="As in the study.",
    )
    second = dataclasses.replace(first, outcome="worse", trial=3)
    for one in (first, second):
        study_files.add_confirmation(folder, one)
    assert read(folder).confirmations == (first, second)
    folder.write_json(study_files.CONFIRMATIONS_FILE, {"confirmations": [{"where": 1, "other": 2}]})
    with pytest.raises(UsageError, match=r"confirmations\.json is broken"):
        read(folder)
