"""What a user is told to run: the default, unless something better was shown."""

from __future__ import annotations

import dataclasses

import pytest

from tests.fakes import studies
from tuner import advice, export
from tuner.errors import UsageError
from tuner.report import page_header, terminal
from tuner.report.study import headline
from tuner.values.interval import Interval
from tuner.values.round_evaluation import FailureCount
from tuner.values.study_record import SharedModels, StudyRecord
from tuner.values.trial import Outcome
from tuner.values.verdict import VerdictOutcome

STUDY = studies.study(trials=20)
BEST = next(t.number for t in STUDY.trials if t.configuration == STUDY.best and t.measurement)


def with_verdict(outcome: VerdictOutcome) -> StudyRecord:
    """The study with another end."""
    assert STUDY.verdict is not None
    return dataclasses.replace(STUDY, verdict=dataclasses.replace(STUDY.verdict, outcome=outcome))


def with_default_lost(record: StudyRecord, outcome: Outcome) -> StudyRecord:
    """The study with a default that did not work."""
    lost = dataclasses.replace(record.trials[0], outcome=outcome, measurement=None, objective=None)
    return dataclasses.replace(record, trials=(lost, *record.trials[1:]))


TOO_SLOW = Outcome(status="infeasible", cause="constraint", reason="p99 of 9 ms is above 5 ms")
BROKE = Outcome(status="failed", cause="crash", reason="the server ended")
BARE = dataclasses.replace(STUDY, verdict=None, failure_counts={})
UNLUCKY = with_default_lost(BARE, BROKE)


@pytest.mark.parametrize(
    ("record", "is_best", "said"),
    [
        (with_verdict("better"), True, "it was shown to be better"),
        (with_verdict("no difference shown"), False, "no difference was shown"),
        (with_verdict("worse"), False, "the best found was shown to be worse"),
        (BARE, False, "not re-evaluated"),
        (dataclasses.replace(BARE, best=STUDY.default), False, "no better configuration"),
        (UNLUCKY, True, "the default does not work here (the server ended)"),
        (with_default_lost(with_verdict("worse"), TOO_SLOW), False, "shown to be worse"),
        (with_default_lost(with_verdict("worse"), BROKE), False, "shown to be worse"),
    ],
)
def test_the_default_is_advised_unless_the_best_was_shown_to_be_better(
    record: StudyRecord, is_best: bool, said: str
) -> None:
    """Or unless no launch of the default worked, in the search or afresh."""
    found = advice.advise(record)
    assert found is not None
    assert found.configuration == (record.best if is_best else record.default)
    assert said in found.reason
    assert (advice.export_of_best(record) is None) == (found.configuration == record.best)


def test_a_difference_of_one_day_is_advised_with_a_word_of_caution() -> None:
    """Where the interval for another session includes none."""
    better = with_verdict("better")
    assert better.verdict is not None
    for high, is_told in ((1.01, True), (0.99, False)):
        interval = Interval(low=0.7, high=high)
        verdict = dataclasses.replace(better.verdict, between_session_interval=interval)
        found = advice.advise(dataclasses.replace(better, verdict=verdict))
        assert found is not None
        assert found.configuration == STUDY.best
        assert found.reason.endswith("; on another day the difference may vanish.") == is_told


def with_failures(record: StudyRecord, default: int, best: int, *, of: int = 10) -> StudyRecord:
    """The study with a verification in which so many round evaluations failed."""
    tallies = {
        role: FailureCount(evaluations=of, failed=count, reason="peak 64 MiB" if count else "")
        for role, count in (("default", default), ("best", best))
    }
    return dataclasses.replace(record, failure_counts=tallies)


@pytest.mark.parametrize(
    ("record", "is_best", "said", "result"),
    [
        (
            with_failures(with_verdict("better"), 0, 8),
            False,
            "the best found failed 8 of 10 evaluations (peak 64 MiB), the default none",
            "no solution: it failed 8 of 10 evaluations (peak 64 MiB), the default none",
        ),
        (with_failures(with_verdict("better"), 1, 2), False, "the default 1 of 10", "no solution"),
        (with_failures(with_verdict("better"), 2, 2), True, "shown to be better", "is better"),
        (with_failures(with_verdict("worse"), 2, 0), False, "shown to be worse", ""),
        (with_failures(UNLUCKY, 0, 10), False, "the default none", "no solution"),
        (
            with_failures(BARE, 10, 0),
            True,
            "the default failed 10 of 10 evaluations (peak 64 MiB), the best none",
            "The default failed 10 of 10 evaluations",
        ),
        (with_failures(with_verdict("worse"), 8, 0), True, "the default failed 8 of 10", "8 of 10"),
        (with_failures(BARE, 10, 10), False, "too few pairs", "Too few pairs"),
        (
            with_failures(UNLUCKY, 10, 0),
            True,
            "the default does not work here (peak 64 MiB)",
            "does not work here (peak 64 MiB); the best worked in 10 of 10 evaluations",
        ),
        (with_failures(UNLUCKY, 10, 3), True, "but the best failed 3 of 10", "worked in 7 of 10"),
    ],
)
def test_fresh_starts_that_fail_are_evidence(
    record: StudyRecord, is_best: bool, said: str, result: str
) -> None:
    """What fails more often is not advised, whatever the figures of the starts that worked."""
    found = advice.advise(record)
    assert found is not None
    assert found.configuration == (record.best if is_best else record.default)
    assert said in found.reason
    assert result in headline.headline(record)
    texts = [
        "\n".join(terminal.lines(record, {}, width=300)),
        str(export.best_files(record, found)["best.yaml"]),
        str(page_header.answer(record)),
    ]
    for text in texts:
        assert found.reason in text
        for sentence in advice.failures(record):
            assert sentence in text


def test_nothing_is_advised_where_neither_works_afresh() -> None:
    """A best that worked by chance once is no solution."""
    record = with_failures(UNLUCKY, 10, 10)
    assert advice.advise(record) is None
    assert advice.export_of_best(record) is None
    assert "failed 10 of 10 evaluations" in advice.why_nothing(record)
    assert "The default does not work here" in headline.headline(record)
    assert "best.yaml" not in str(page_header.answer(record))


@pytest.mark.parametrize(
    ("record", "tone"),
    [
        (with_failures(with_verdict("better"), 0, 8), "worse"),
        (with_failures(with_verdict("worse"), 8, 0), "better"),
        (with_verdict("better"), "better"),
        (with_verdict("no difference shown"), None),
    ],
)
def test_the_answer_is_green_only_where_the_best_is_better(
    record: StudyRecord, tone: str | None
) -> None:
    """Failures of round evaluations colour it, too."""
    assert headline.tone(record) == tone


def test_nothing_is_advised_where_nothing_worked() -> None:
    """And there is nothing to export."""
    assert advice.advise(studies.all_failed()) is None
    assert advice.export_of_best(studies.all_failed()) is None


@pytest.mark.parametrize("outcome", ["better", "worse", "no difference shown"])
def test_terminal_file_and_page_say_the_same(outcome: VerdictOutcome) -> None:
    """The reason, and the command that exports what was found where it is not advised."""
    record = with_verdict(outcome)
    found = advice.advise(record)
    assert found is not None
    command = advice.export_of_best(record)
    assert command == (
        None if outcome == "better" else f"tune export /srv/runs/resnet-20 --trial {BEST}"
    )
    texts = [
        "\n".join(terminal.lines(record, {}, width=200)),
        str(export.best_files(record, found)["best.yaml"]),
        str(page_header.answer(record)),
    ]
    for text in texts:
        assert found.reason in text
        assert (f"tune export /srv/runs/resnet-20 --trial {BEST}" in text) == (command is not None)


def test_the_command_works_from_anywhere() -> None:
    """It names the folder, with blanks quoted, and the storage whose password was not kept."""
    url = "postgresql://u:***@host/db"
    record = dataclasses.replace(
        with_verdict("worse"), folder="/my runs/s", settings={"store": {"storage": url}}
    )
    command = f"tune export '/my runs/s' --trial {BEST} --storage '{url}'"
    assert advice.export_of_best(record) == command
    many = dataclasses.replace(record, shared=SharedModels(groups={"m": ("echo", 2)}, settings={}))
    command = f"tune export '/my runs/s' --trial {BEST} --out trial-{BEST} --storage '{url}'"
    assert advice.export_of_best(many) == command, "several files need a folder"


def test_a_trial_can_be_had_if_it_worked() -> None:
    """Another number, and one without a measurement, are refused with what there is."""
    assert advice.of_trial(STUDY, BEST).configuration == STUDY.best
    with pytest.raises(UsageError, match=r"--trial 99: .* has no such trial \(trials: 0 to 19\)"):
        advice.of_trial(STUDY, 99)
    lost = next(trial for trial in STUDY.trials if trial.measurement is None)
    with pytest.raises(UsageError, match="did not work"):
        advice.of_trial(STUDY, lost.number)
