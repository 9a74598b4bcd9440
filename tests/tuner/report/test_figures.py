import dataclasses

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.fakes import contests, studies
from tuner.report import (
    front_figures,
    importance,
    knob_figures,
    request_figures,
    search_figures,
    theme,
)
from tuner.report.benchmark import figures as benchmark_figures
from tuner.report.comparison import figures as comparison_figures
from tuner.values.verification_state import ParetoPoint

STUDY = studies.study()


def validated(drawn):
    """The figure as Plotly's own classes, which refuse what Plotly does not know."""
    return go.Figure(drawn.data, drawn.layout)


def titles(drawn):
    return drawn.layout["xaxis"]["title"]["text"], drawn.layout["yaxis"]["title"]["text"]


def points(figure):
    return [
        (trace, x, y)
        for trace in figure.data
        if trace.mode and "markers" in trace.mode
        for x, y in zip(trace.x, trace.y, strict=True)
    ]


def test_a_long_name_of_an_objective_has_room():
    """In lines, beside a small figure and above an upright axis; a short one stays in one."""
    study = dataclasses.replace(studies.study(objective="goodput"), verdict=None)
    knob = study.knobs[0]
    _, y = titles(knob_figures.slice_of(study, knob))
    assert y == "responses within the<br>deadline (requests/s)"
    assert "<br>" not in titles(knob_figures.slice_of(STUDY, knob))[1]
    told = studies.study(objective="throughput")
    heads = [note["text"] for note in knob_figures.parallel(told).layout["annotations"]]
    assert "throughput<br>(requests/s)" in heads


def test_convergence_shows_every_trial_once():
    """Each trial is a point at its number: ok ones with their value, others on the axis with reason."""
    drawn = validated(search_figures.convergence(STUDY))
    shown = [(trace, x) for trace, x, _ in points(drawn) if trace.name != "best"]
    assert sorted(x for _, x in shown) == [trial.number for trial in STUDY.trials]
    for trial in STUDY.trials:
        (trace,) = [trace for trace, x in shown if x == trial.number]
        text = trace.text[list(trace.x).index(trial.number)]
        assert f"trial {trial.number}<" in text
        assert (trace.yaxis == "y2") == (trial.measurement is None)
        if trial.outcome.reason:
            assert trial.outcome.reason[:30] in text.replace("<br>", " ")


@pytest.mark.parametrize(
    ("objective", "title"),
    [("mean", "mean latency (ms)"), ("throughput", "throughput (requests/s)")],
)
def test_axes_have_titles_with_units(objective, title):
    """The objective's axis names it with its unit, in every figure that shows it."""
    study = studies.study(seed=2, objective=objective, trials=20)
    assert titles(search_figures.convergence(study)) == ("trial number", title)
    for knob in study.knobs:
        x, y = titles(knob_figures.slice_of(study, knob))
        assert x == (f"{knob.name} ({knob.unit})" if knob.unit else knob.name)
        assert y == title
    assert titles(request_figures.distribution(study))[0] == "latency (ms)"
    assert titles(request_figures.over_time(study)) == (
        "time since the load began (s)",
        "latency (ms)",
    )


def test_throughput_is_shown_rising():
    """A maximised objective is drawn as it is, never negated, and its best so far rises."""
    study = studies.study(seed=2, objective="throughput", trials=20)
    drawn = validated(search_figures.convergence(study))
    (line,) = [t for t in drawn.data if t.name == "best so far"]
    assert list(line.y) == sorted(line.y)
    assert min(line.y) > 0


def test_percentiles_are_marked_where_they_are_known():
    """p50, p95 and p99 are written at the curve; p99 is not below 459 requests."""
    drawn = validated(request_figures.distribution(STUDY))
    marks = [t for t in drawn.data if t.mode == "markers+text"]
    assert all([text.split()[0] for text in t.text] == ["p50", "p95", "p99"] for t in marks)
    records = STUDY.records["best"]
    columns = {f.name: getattr(records, f.name)[:300] for f in dataclasses.fields(records)}
    few = dataclasses.replace(STUDY, records={"best": type(records)(**columns)})
    drawn = validated(request_figures.distribution(few))
    (mark,) = [t for t in drawn.data if t.mode == "markers+text"]
    assert [text.split()[0] for text in mark.text] == ["p50", "p95"]


def test_zero_of_a_log_knob_is_drawn():
    """Trials at zero of a log knob lie left of all others."""
    knob = next(knob for knob in STUDY.knobs if knob.name == "batching.timeout_us")
    drawn = validated(knob_figures.slice_of(STUDY, knob))
    assert drawn.layout.xaxis.ticktext[0] == "0"
    zeros = sum(trial.configuration[knob.name] == 0 for trial in STUDY.trials)
    left = [x for trace, x, _ in points(drawn) if trace.name != "best" and x < 1.85]
    assert len(left) == zeros > 0


def test_parallel_coordinates_hold_every_trial():
    """One line per trial; those without a figure end before the objective."""
    drawn = validated(knob_figures.parallel(STUDY))
    lines = [trace for trace in drawn.data if trace.mode == "lines"]
    assert len(lines) == len(STUDY.trials)
    short = sum(trial.measurement is None for trial in STUDY.trials)
    assert sum(len(line.y) == len(STUDY.knobs) for line in lines) == short


def test_colours_mean_the_same_everywhere():
    """Default and best have one colour each in all figures of a study."""
    curves = validated(request_figures.distribution(STUDY)).data
    assert curves[0].line.color == theme.MARKS["default"].colour
    assert curves[2].line.color == theme.MARKS["best"].colour
    knob = STUDY.knobs[0]
    for drawn in (search_figures.convergence(STUDY), knob_figures.slice_of(STUDY, knob)):
        by_name = {trace.name: trace.marker.color for trace in validated(drawn).data}
        assert by_name["default"] == theme.MARKS["default"].colour
        assert by_name["best"] == theme.MARKS["best"].colour


def test_importance_shows_interval_and_chance():
    """Every knob has a bar with two-sided errors and a mark of chance, within 0 to 100 %."""
    found = importance.main_effects(STUDY, np.random.default_rng(0))
    bars, chance = validated(search_figures.importance(found)).data
    assert len(bars.x) == len(chance.x) == len(found.shares)
    assert all(
        x - low >= 0 and x + high <= 100.001
        for x, low, high in zip(bars.x, bars.error_x.arrayminus, bars.error_x.array, strict=True)
    )


def test_figures_of_awkward_studies_are_valid(edge_study):
    """To Plotly's own checks, which the product leaves out, whatever is missing."""
    drawn = [search_figures.convergence(edge_study), knob_figures.parallel(edge_study)]
    drawn += [knob_figures.slice_of(edge_study, knob) for knob in edge_study.knobs]
    kept = [request_figures.distribution(edge_study), request_figures.over_time(edge_study)]
    assert all((figure is not None) == bool(edge_study.records) for figure in kept)
    for figure in (*drawn, *filter(None, kept)):
        validated(figure)


@pytest.mark.parametrize("points", [0, 2])
def test_the_figure_of_a_front_is_valid(points):
    """With points, and before there are any."""
    front = tuple(
        ParetoPoint(
            configuration=trial.configuration,
            values=(trial.measurement.mean_ms, trial.measurement.throughput_per_s),
            sds=(0.01, 0.02),
            trial=trial.number,
            is_chosen=trial.number == 0,
        )
        for trial in [trial for trial in STUDY.trials if trial.measurement][:points]
    )
    study = dataclasses.replace(STUDY, second="throughput", pareto_front=front)
    names = [trace.name for trace in validated(front_figures.figure(study)).data]
    assert ("chosen" in names) == bool(points)


def test_figures_of_a_comparison_and_a_benchmark_are_valid():
    """Panels and their axes included, in one row and in two."""
    comparison, benchmark = studies.comparison(), contests.record(tables=5, seeds=5)
    table = benchmark.tables[0]
    for figure in (
        comparison_figures.best_so_far(comparison),
        comparison_figures.winners(comparison),
        benchmark_figures.tolerance_figure(table, benchmark.reference, benchmark.trials),
        benchmark_figures.forest(benchmark.over_tables, benchmark.margin),
        benchmark_figures.regret(table, benchmark.reference),
    ):
        validated(figure)


def test_plotly_refuses_a_property_that_it_does_not_know():
    """Else the tests above would show nothing."""
    with pytest.raises(ValueError, match="Invalid property"):
        validated(theme.figure(height=300, no_such_property=1))


def test_a_median_begins_where_every_run_has_a_figure():
    """A run that has nothing yet is not left out, which would flatter its sampler."""
    table = np.array([[np.nan, 4.0, 3.0], [6.0, 5.0, 5.0]])
    low, middle, high = comparison_figures.spread(table)
    assert np.isnan([low[0], middle[0], high[0]]).all()
    assert (low[1:].tolist(), middle[1:].tolist(), high[1:].tolist()) == (
        [4.0, 3.0],
        [4.5, 4.0],
        [5.0, 5.0],
    )


def test_a_run_that_ended_early_keeps_its_last_value():
    """Curves are as long as the longest run."""
    record = studies.comparison(repeats=2, trials=6)
    short = dataclasses.replace(
        record.runs[0],
        objectives=record.runs[0].objectives[:3],
        best_so_far=record.runs[0].best_so_far[:3],
    )
    record = dataclasses.replace(record, runs=(short, *record.runs[1:]))
    table = comparison_figures.curves(record, short.sampler)
    assert table.shape == (2, 6)
    assert (table[0, 3:] == short.best_so_far[-1]).all()


def test_winners_are_drawn_only_when_re_measured():
    """Without re-measurements there is no figure of winners."""
    assert comparison_figures.winners(studies.comparison(repeats=2, trials=6)) is not None
    bare = studies.comparison(repeats=2, trials=6, is_remeasured=False)
    assert comparison_figures.winners(bare) is None
