"""The Pareto front of two objectives, as a figure and a table."""

from __future__ import annotations

from tuner.metrics import objective as objectives
from tuner.report import formatting, tables, theme
from tuner.report.axes import escape, log_axis
from tuner.report.markup import Child, Markup, element, row, table
from tuner.report.search_figures import trial_hover
from tuner.report.study import study_view
from tuner.values.study_record import StudyRecord


def figure(study: StudyRecord) -> theme.Figure:
    """Draw every evaluation, the Pareto front, and the chosen point."""
    both = sides(study)
    front = study.pareto_front
    drawn = theme.figure(height=460)
    told = [(trial, trial.measured) for trial in study.trials if trial.measured is not None]
    for kind, name in (
        ("initial", "an evaluation"),
        ("infeasible", "an evaluation that misses a limit"),
    ):
        chosen = [pair for pair in told if (pair[0].measurement is None) == (kind == "infeasible")]
        if not chosen:
            continue
        x, y = ([side.value(measured) for _, measured in chosen] for side in both)
        drawn.add_trace(
            x=x,
            y=y,
            mode="markers",
            marker=theme.marker(theme.mark(kind), width=1.5, size=7, opacity=0.7),
            name=name,
            text=[trial_hover(study, trial) for trial, _ in chosen],
            hovertemplate=theme.HOVER,
        )
    if front:
        _add_front(drawn, study)
    mark = theme.mark("default")
    default = [one for trial, one in told if trial.configuration == study.default]
    x, y = ([side.value(one) for one in default] for side in both)
    drawn.add_trace(
        x=x, y=y, mode="markers", marker=theme.marker(mark), name=mark.label, hoverinfo="skip"
    )
    for place, (axis, side) in enumerate(zip(("xaxis", "yaxis"), both, strict=True)):
        values = [side.value(measured) for _, measured in told]
        values += [point.values[place] for point in front]
        drawn.layout[axis] = log_axis(values, side.axis, pad=0.08)
    return drawn


def _add_front(drawn: theme.Figure, study: StudyRecord) -> None:
    best, front, (first, second) = theme.mark("best"), study.pareto_front, sides(study)
    bars = []
    for place in (0, 1):
        ends = [(point.values[place], point.interval(place)) for point in front]
        above = [(end.high or value) - value for value, end in ends]
        below = [value - (end.low or value) for value, end in ends]
        bars.append(theme.error_bars(above, below, colour=best.colour, thickness=1, width=3))
    drawn.add_trace(
        x=[point.values[0] for point in front],
        y=[point.values[1] for point in front],
        mode="lines+markers",
        line={"width": 2, "color": best.colour, "dash": "dot"},
        marker={"symbol": "circle", "size": 10, "color": best.colour},
        error_x=bars[0],
        error_y=bars[1],
        name="front, by all evaluations together",
        text=[
            f"<b>{escape(study_view.in_short(study, point.configuration))}</b><br>"
            f"{escape(first.label)} {formatting.quantity(point.values[0], first.unit)}<br>"
            f"{escape(second.label)} {formatting.quantity(point.values[1], second.unit)}"
            for point in front
        ],
        hovertemplate=theme.HOVER,
    )
    chosen = [point for point in front if point.is_chosen]
    drawn.add_trace(
        x=[point.values[0] for point in chosen],
        y=[point.values[1] for point in chosen],
        mode="markers",
        marker=theme.marker(best, size=18),
        name="chosen",
        hoverinfo="skip",
    )


def points(study: StudyRecord) -> Markup:
    """Tabulate the points of the front."""
    both = sides(study)
    rows = []
    for point in study.pareto_front:
        shown = study_view.in_short(study, point.configuration)
        name = [element("b", shown), " (chosen)"] if point.is_chosen else [shown]
        cells = [element("td", *name, class_="text")]
        for place, value in enumerate(point.values):
            cells += [tables.cell(value), tables.interval_cell(point.interval(place))]
        cells.append(tables.cell(point.trial))
        rows.append(row(*cells, class_="is-best-row" if point.is_chosen else None))
    heads: list[Child] = ["configuration"]
    for side in both:
        heads += [side.axis, "95 % interval"]
    return table([*heads, "trial"], rows)


def sides(study: StudyRecord) -> tuple[objectives.Objective, objectives.Objective]:
    """Return both objectives."""
    assert study.second is not None
    return objectives.find_objective(study.objective), objectives.find_objective(study.second)
