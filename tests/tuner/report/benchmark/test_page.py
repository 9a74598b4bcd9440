"""The page of a contest: the answer first, whole with one table or several, and nobody's name a tag."""

import dataclasses
import functools

import pytest

from tests.fakes import contests
from tuner.metrics.benchmark import BenchmarkRecord
from tuner.report import files
from tuner.report.benchmark import figures as benchmark_figures
from tuner.report.benchmark import page as benchmark_page

RECORD = contests.record(tables=5)
HOSTILE = "</script><img src=x>"
RECORDS = {
    "five tables": RECORD,
    "two tables": contests.record(),
    "one table": contests.record(tables=1),
    "one seed": contests.record(tables=1, seeds=1),
    "few trials": contests.record(trials=6),
    "two samplers": contests.record(samplers=("gp", "random")),
}


@functools.cache
def page_of(name):
    """The page of a record, made once."""
    return benchmark_page.render(RECORDS[name])


@pytest.mark.parametrize("name", RECORDS)
def test_every_contest_has_a_page(name, read_page):
    record = RECORDS[name]
    parsed = read_page(page_of(name))
    assert benchmark_page.title_of(record) in parsed.text
    for table in record.tables:
        assert table.name in parsed.text
    for place in range(len(record.tables)):
        assert {f"regret-{place}", f"within-{place}"} <= parsed.figures.keys()
    assert ("forest" in parsed.figures) == bool(record.over_tables)


def test_the_head_says_against_whom_nothing_is_shown(read_page):
    text = read_page(page_of("five tables")).text
    assert "After 15 trials structured is" in text
    few = read_page(page_of("two tables")).text
    assert "undecided against all of the 4 others" in few
    assert "Nothing is shown of fewer than 5 tables; here 2." in few
    alone = read_page(page_of("one seed")).text
    assert "undecided against all of the 4 others" in alone


def test_what_is_shown_is_no_more_than_the_record_says():
    each = [one for one in RECORD.over_tables if one.budget == 50]
    better = [dataclasses.replace(one, standing="better") for one in each]
    assert "no worse than any of the 4 others" in benchmark_page._sentence(RECORD, better, 50)
    worse = [dataclasses.replace(each[0], standing="worse"), *better[1:]]
    said = benchmark_page._sentence(RECORD, worse, 50)
    assert said.endswith("no worse than tpe, botorch and hill-climb; worse than random.")
    mixed = [dataclasses.replace(each[0], standing="not shown"), *better[1:]]
    assert "undecided against random." in benchmark_page._sentence(RECORD, mixed, 50)


def test_every_difference_stands_in_a_table_with_its_bound(read_page):
    rows = read_page(page_of("five tables")).rows
    one = RECORD.over_tables[0]
    row = next(row for row in rows if row and row[0] == one.peer and len(row) == 13)
    first = 1 + 4 * [15, 30, 50].index(one.budget)
    assert row[first : first + 2] == [f"{100 * one.difference:+.2f}", f"{100 * one.upper:+.2f}"]
    assert row[first + 3].endswith(one.standing)


def test_each_panel_has_its_own_sampler_over_the_others():
    table = RECORD.tables[0]
    drawn = benchmark_figures.regret(table, "structured")
    thick = [trace for trace in drawn.data if trace["line"]["width"] == 3]
    assert len(thick) == len(table.contestants)
    assert drawn.layout["annotations"][0]["text"] == "structured"
    medians = [100 * value for value in table.contestants[0].regret.median]
    assert thick[0]["y"] == [max(benchmark_figures.FLOOR, value) for value in medians]


def test_a_tolerance_that_is_not_reached_is_a_pale_bar_to_the_end():
    table = RECORD.tables[0]
    drawn = benchmark_figures.tolerance_figure(table, "structured", RECORD.trials)
    strict = next(trace for trace in drawn.data if trace["name"] == "within 3.0 %")
    place = strict["y"].index("hill-climb")
    assert (strict["x"][place], strict["text"][place]) == (50, "not reached")
    assert strict["marker"]["opacity"][place] < 1


def test_a_bar_goes_to_the_median_and_its_line_to_the_90th_percentile():
    table = RECORD.tables[0]
    drawn = benchmark_figures.tolerance_figure(table, "structured", RECORD.trials)
    wide = next(trace for trace in drawn.data if trace["name"] == "within 10 %")
    place = wide["y"].index("structured")
    reached = table.of("structured").time_to_tolerance(0.10)
    assert wide["x"][place] == reached.median
    assert wide["x"][place] + wide["error_x"]["array"][place] == pytest.approx(reached.p90)


def test_hostile_names_stay_text(read_page):
    table = dataclasses.replace(RECORD.tables[0], name=HOSTILE, notes=(HOSTILE,))
    record = dataclasses.replace(RECORD, tables=(table,), over_tables=(), name=HOSTILE)
    parsed = read_page(benchmark_page.render(record))
    assert "img" not in parsed.tags
    assert HOSTILE in parsed.text


def test_it_is_written_whole(tmp_path):
    path = files.write_benchmark(RECORDS["one seed"], tmp_path / "compare.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_all_figures_of_a_record_are_in_its_json():
    assert isinstance(RECORD, BenchmarkRecord)
    data = RECORD.as_json()
    assert data["tables"][0]["good_candidates"] == {"0.1": 20, "0.05": 9, "0.03": 4}
    assert len(data["tables"][1]["contestants"]) == len(contests.SAMPLERS)
