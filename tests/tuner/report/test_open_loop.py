"""What is said of default and best in an open loop."""

from __future__ import annotations

import dataclasses

import pytest

from tests.fakes import studies
from tuner.measurement.outcome import overload_outcome
from tuner.report import open_loop, page, terminal
from tuner.report.study import study_notes
from tuner.values.interval import Interval
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.study_record import StudyRecord
from tuner.values.trial import OK
from tuner.values.verification_state import OpenLoopCheck

STUDY = studies.study(trials=14)


def shown(default_ms: float | None, best_ms: float | None, *, requests: int = 1000) -> StudyRecord:
    """The study with these means in an open loop; None: overloaded."""
    assert STUDY.verdict is not None
    starts = []
    for role, mean_ms in (("default", default_ms), ("best", best_ms)):
        measurement = None
        if mean_ms is not None:
            measurement = dataclasses.replace(
                STUDY.verdict.best[0],
                mean_ms=mean_ms,
                p99_ms=3 * mean_ms,
                p99_interval=Interval(low=2.5 * mean_ms, high=4 * mean_ms),
                p99_effective=float(requests),
            )
        outcome = (
            OK if measurement else overload_outcome(312.0, "it fell behind by 40 % of the requests")
        )
        starts.append(RoundEvaluation(role=role, outcome=outcome, measurement=measurement))
    found = OpenLoopCheck(rate_per_s=312.0, share=0.8, evaluations=tuple(starts))
    assert OpenLoopCheck.from_json(found.as_json()) == found
    return dataclasses.replace(STUDY, open_loop=found)


def test_nothing_is_said_where_it_was_not_done() -> None:
    """No sentence, no caution, no table."""
    assert list(open_loop.sentences(STUDY)) == []
    assert list(open_loop.cautions(STUDY)) == []
    assert open_loop.section(STUDY) == ()


def test_both_sides_are_said_with_the_rate_and_how_often() -> None:
    """Mean and p99 of each, and that it is one launch."""
    (sentence,) = open_loop.sentences(shown(20.0, 10.0))
    assert sentence == (
        "In an open loop at 80 % of the best's rate (312 requests/s, Poisson arrivals), one evaluation "
        "each: the best mean 10.0 ms, p99 30.0 (25.0 to 40.0; n 1,000) ms; the default mean 20.0 ms, p99 60.0 "
        "(50.0 to 80.0; n 1,000) ms."
    )
    assert list(open_loop.cautions(shown(20.0, 10.0))) == []


def test_a_p99_of_few_requests_is_refused() -> None:
    """Under 459 it is not known, in the sentence and in the table."""
    study = shown(20.0, 10.0, requests=458)
    (sentence,) = open_loop.sentences(study)
    assert "p99 not known from 458 effective requests" in sentence
    assert "too few" in "".join(map(str, open_loop.section(study)))


def test_an_overloaded_default_is_said() -> None:
    """The best is faster than it ever can be: that is no reason for a caution."""
    study = shown(None, 10.0)
    (sentence,) = open_loop.sentences(study)
    assert "the default infeasible (cannot serve 312 requests/s: it fell behind by 40 %" in sentence
    assert list(open_loop.cautions(study)) == []


@pytest.mark.parametrize(
    ("default_ms", "best_ms", "said"),
    [
        (10.0, 11.0, None),
        (10.0, 12.0, "the mean of the best was 1.20 times that of the default"),
        (10.0, None, "The best could not serve 80 % of its own rate"),
        (None, None, "The best could not serve 80 % of its own rate"),
    ],
)
def test_a_best_that_loses_there_is_a_caution(
    default_ms: float | None, best_ms: float | None, said: str | None
) -> None:
    """Where it is slower by more than a launch may be, or cannot serve what it made in the closed loop."""
    study = shown(default_ms, best_ms)
    cautions = list(open_loop.cautions(study))
    assert len(cautions) == (said is not None)
    assert said is None or said in cautions[0]
    assert set(cautions) <= set(study_notes.warnings(study))


def test_it_stands_in_the_page_and_in_the_terminal(read_page) -> None:
    """The page has a table of both sides."""
    study = shown(20.0, 10.0)
    parsed = read_page(page.render(study))
    assert "In an open loop" in parsed.text
    assert ["mean (ms)", "20.0", "10.0"] in parsed.rows
    told = " ".join(" ".join(terminal.lines(study, {})).split())
    assert "In an open loop at 80 % of the best's rate" in told
