import dataclasses
import json
import math

import pytest

from tests.fakes import studies
from tuner.metrics.benchmark import TimeToTolerance
from tuner.report.comparison import figures as comparison_figures
from tuner.report.comparison import page as comparison_page
from tuner.values.sampler_comparison import ComparisonRecord

RECORD = studies.comparison()
HOSTILE = "</script><img src=x>"


def _edge_records():
    empty = dataclasses.replace(RECORD, runs=(), differences=(), notes=())
    failed = tuple(
        dataclasses.replace(
            run, objectives=(None,) * 5, best_so_far=(None,) * 5, winner=None, remeasured=()
        )
        for run in RECORD.runs
    )
    return {
        "whole": RECORD,
        "three samplers, two repeats": studies.comparison(
            samplers=("random", "gp", "tpe"), repeats=2, trials=8, is_remeasured=False
        ),
        "one sampler": studies.comparison(samplers=("gp",), repeats=1, trials=4),
        "no run": empty,
        "all failed": dataclasses.replace(RECORD, runs=failed, differences=()),
        "throughput": dataclasses.replace(RECORD, objective="throughput"),
    }


EDGE_RECORDS = _edge_records()


@pytest.mark.parametrize("name", EDGE_RECORDS)
def test_awkward_comparisons_have_a_page(name, read_page):
    """The page is well formed, whatever is missing."""
    parsed = read_page(comparison_page.render(EDGE_RECORDS[name]))
    assert parsed.tags.count("h1") == 1
    assert parsed.tags.count("h2") == 3


def test_the_difference_is_said_with_its_interval(read_page):
    """Each pair's sentence, ratio and interval open the page."""
    text = read_page(comparison_page.render(RECORD)).text
    head = text[: text.index("Best so far")]
    for difference in RECORD.differences:
        assert difference.text in head
        assert f"× {difference.ratio:.2f} (" in head


def test_no_difference_is_an_answer(read_page):
    """A difference that could not be shown is not coloured as a win."""
    same = dataclasses.replace(
        RECORD.differences[0],
        outcome="no difference shown",
        text="No difference that could be shown.",
    )
    text = comparison_page.render(dataclasses.replace(RECORD, differences=(same,)))
    assert same.text in read_page(text).text
    assert 'class="verdict shown"' not in text


def test_every_run_has_its_line_and_its_row(read_page):
    """Each run is a thin line in the figure and a row in the table, with its winner."""
    parsed = read_page(comparison_page.render(RECORD))
    lines = [t for t in parsed.figures["best-so-far"]["data"] if t["line"]["width"] == 1]
    assert len(lines) == len(RECORD.runs)
    studies_named = [row[-1] for row in parsed.rows if len(row) > 6]
    assert all(run.study in studies_named for run in RECORD.runs)


def test_hostile_samplers_stay_text(read_page):
    """A sampler's name with tags in it appears as text."""
    runs = tuple(
        dataclasses.replace(run, sampler=HOSTILE) if run.sampler == "gp" else run
        for run in RECORD.runs
    )
    record = dataclasses.replace(
        RECORD, samplers=("random", HOSTILE), runs=runs, differences=(), name=HOSTILE
    )
    parsed = read_page(comparison_page.render(record))
    assert "img" not in parsed.tags
    assert HOSTILE in parsed.text


def test_few_repeats_are_a_caution():
    """Below five repeats the page warns of luck."""
    few = dataclasses.replace(RECORD, repeats=2)
    assert "luck" in comparison_page.cautions(few)[0]
    assert comparison_page.cautions(RECORD) == ()


def test_a_comparison_survives_its_json():
    """A record read back from JSON equals the one written."""
    assert ComparisonRecord.from_json(json.loads(json.dumps(RECORD.as_json()))) == RECORD


def test_trials_are_counted_in_whole_numbers():
    """A short budget has a tick at each trial, and no two at one label."""
    drawn = comparison_figures.best_so_far(studies.comparison(repeats=2, trials=3))
    assert drawn.layout["xaxis"]["dtick"] == 1


@pytest.mark.parametrize(
    ("counts", "runs", "said"),
    [
        ([3, 5, 9], 3, "5 (3 of 3 runs got there)"),
        ([3, 5], 3, "5 (2 of 3 runs got there)"),
        ([3], 2, "1 of 2 runs got there"),
        ([], 2, "no run got there"),
    ],
)
def test_how_soon_runs_are_good_is_said_in_words(counts, runs, said):
    """The median where most got there, else how many did."""
    trials = [*counts, *[math.inf] * (runs - len(counts))]
    assert comparison_page._reached_text(TimeToTolerance.over(0.05, trials, trials)) == said


def test_a_run_is_near_the_best_with_the_first_value_that_is():
    """Within 5 % of the best that any run saw, after so many trials and seconds of its own."""
    seen = {"random": (20.0, 11.0, 10.3), "gp": (20.0, 10.0, 10.0)}
    runs = tuple(
        dataclasses.replace(
            RECORD.runs[0], sampler=name, objectives=values, best_so_far=values, seconds=(4, 8, 12)
        )
        for name, values in seen.items()
    )
    record = dataclasses.replace(RECORD, samplers=("random", "gp"), runs=runs, differences=())
    assert comparison_page.sampler_time_to_tolerance(record, "random", 0.05).trials == (3.0,)
    assert comparison_page.sampler_time_to_tolerance(record, "random", 0.10).seconds == (8,)
    assert comparison_page.sampler_time_to_tolerance(record, "gp", 0.03).trials == (2.0,)


def test_times_make_bars_of_how_soon(read_page):
    """In trials and in seconds; a record without times has none."""
    assert "soon" in read_page(comparison_page.render(RECORD)).figures
    older = tuple(dataclasses.replace(run, seconds=()) for run in RECORD.runs)
    without = dataclasses.replace(RECORD, runs=older)
    assert "soon" not in read_page(comparison_page.render(without)).figures
