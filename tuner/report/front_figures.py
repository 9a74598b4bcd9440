"""The Pareto front of two objectives, as figure and table."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from tuner.metrics import objective as objectives
from tuner.report import formatting, tables, theme
from tuner.report.axes import escape, log_axis
from tuner.report.markup import Child, Markup, element, table
from tuner.report.study import study_view
from tuner.report.trial_marks import trial_hover
from tuner.values.study_record import StudyRecord
from tuner.values.verification_state import ParetoPoint


def figure(study: StudyRecord) -> go.Figure:
    """Draw every evaluation, the Pareto front, and the chosen point."""
    first, second = sides(study)
    drawn = theme.figure(height=460)
    told = [trial for trial in study.trials if trial.measured is not None]
    for kind in ("kept", "missed"):
        chosen = [t for t in told if (t.measurement is not None) == (kind == "kept")]
        if not chosen:
            continue
        mark = theme.mark("initial" if kind == "kept" else "infeasible")
        drawn.add_trace(
            go.Scatter(
                x=[first.value(t.measured) for t in chosen if t.measured is not None],
                y=[second.value(t.measured) for t in chosen if t.measured is not None],
                mode="markers",
                marker={
                    "symbol": mark.symbol,
                    "size": 7,
                    "color": mark.colour,
                    "opacity": 0.7,
                    "line": {"width": 1.5, "color": mark.colour},
                },
                name="a launch" if kind == "kept" else "a launch that misses a limit",
                text=[trial_hover(study, t) for t in chosen],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    _add_front(drawn, study, first, second)
    _add_default(drawn, study, first, second)
    values = [
        [side.value(t.measured) for t in told if t.measured is not None]
        + [point.values[place] for point in study.pareto_front]
        for place, side in enumerate((first, second))
    ]
    drawn.update_layout(
        xaxis=log_axis(values[0], first.axis, pad=0.08),
        yaxis=log_axis(values[1], second.axis, pad=0.08),
    )
    return drawn


def points(study: StudyRecord) -> Markup:
    """Row per front point."""
    first, second = sides(study)
    rows = []
    for point in study.pareto_front:
        shown = study_view.in_short(study, point.configuration)
        name = [element("b", shown), " (chosen)"] if point.is_chosen else [shown]
        rows.append(
            element(
                "tr",
                element("td", *name, class_="text"),
                *_cells(point),
                tables.cell(point.trial),
                class_="is-best-row" if point.is_chosen else None,
            )
        )
    heads: list[Child] = ["configuration"]
    for side in (first, second):
        heads += [side.axis, "95 % interval"]
    return table([*heads, "trial"], rows)


def sides(study: StudyRecord) -> tuple[objectives.Objective, objectives.Objective]:
    """Both objectives."""
    assert study.second is not None
    return objectives.find_objective(study.objective), objectives.find_objective(study.second)


def _cells(point: ParetoPoint) -> list[Markup]:
    found = []
    for place, value in enumerate(point.values):
        ends = point.interval(place)
        found.append(tables.cell(value))
        found.append(element("td", formatting.interval(ends), class_="number", data_value=ends.low))
    return found


def _add_front(
    drawn: go.Figure,
    study: StudyRecord,
    first: objectives.Objective,
    second: objectives.Objective,
) -> None:
    if not study.pareto_front:
        return
    best = theme.mark("best")
    xs, ys = ([point.values[place] for point in study.pareto_front] for place in (0, 1))
    spans = [
        {
            "type": "data",
            "symmetric": False,
            "array": [
                value * (math.exp(1.96 * sd) - 1) for value, sd in zip(values, sds, strict=True)
            ],
            "arrayminus": [
                value * (1 - math.exp(-1.96 * sd)) for value, sd in zip(values, sds, strict=True)
            ],
            "thickness": 1,
            "width": 3,
            "color": best.colour,
        }
        for values, sds in (
            (xs, [point.sds[0] for point in study.pareto_front]),
            (ys, [point.sds[1] for point in study.pareto_front]),
        )
    ]
    drawn.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines+markers",
            line={"width": 2, "color": best.colour, "dash": "dot"},
            marker={"symbol": "circle", "size": 10, "color": best.colour},
            error_x=spans[0],
            error_y=spans[1],
            name="front, by all launches together",
            text=[
                f"<b>{escape(study_view.in_short(study, point.configuration))}</b><br>"
                f"{escape(first.label)} {formatting.quantity(point.values[0], first.unit)}<br>"
                f"{escape(second.label)} {formatting.quantity(point.values[1], second.unit)}"
                for point in study.pareto_front
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    chosen = [point for point in study.pareto_front if point.is_chosen]
    drawn.add_trace(
        go.Scatter(
            x=[point.values[0] for point in chosen],
            y=[point.values[1] for point in chosen],
            mode="markers",
            marker={"symbol": best.symbol, "size": 18, "color": best.colour},
            name="chosen",
            hoverinfo="skip",
        )
    )


def _add_default(
    drawn: go.Figure,
    study: StudyRecord,
    first: objectives.Objective,
    second: objectives.Objective,
) -> None:
    mark = theme.mark("default")
    measured = [
        one
        for trial in study.trials
        if trial.configuration == study.default and (one := trial.measured) is not None
    ]
    drawn.add_trace(
        go.Scatter(
            x=[first.value(one) for one in measured],
            y=[second.value(one) for one in measured],
            mode="markers",
            marker={"symbol": mark.symbol, "size": mark.size, "color": mark.colour},
            name=mark.label,
            hoverinfo="skip",
        )
    )
