"""Figures of the knobs: the objective against one knob, and parallel coordinates of all.

Parallel coordinates are drawn as plain lines, because Plotly's own trace generates code at run
time, which the page's content security policy forbids.
"""

from __future__ import annotations

import math
from typing import Any

import plotly.colors

from tuner.metrics import objective as objectives
from tuner.report import formatting, theme
from tuner.report.axes import KnobAxis, escape, knob_axis, log_axis, log_ticks
from tuner.report.search_figures import add_trials, trial_hover
from tuner.report.study import study_view
from tuner.values.configuration import Value
from tuner.values.study_record import KnobInfo, StudyRecord
from tuner.values.trial import Trial

JITTER = 0.012
"""Sideways shift of identical values, as a share of the axis."""

SLICE_LETTERS, UPRIGHT_LETTERS = 26, 16


def slice_of(study: StudyRecord, knob: KnobInfo) -> theme.Figure:
    """Draw the objective against one knob; the other knobs vary."""
    objective = objectives.find_objective(study.objective)
    trials = [trial for trial in study.trials if knob.name in trial.configuration]
    places = _axis(study, knob)
    values = [value for trial in trials if (value := objective.of(trial)) is not None]
    title = _in_lines(objective.axis, SLICE_LETTERS)
    drawn = theme.figure(
        height=300,
        has_legend=False,
        margin={"l": 56 + 18 * title.count("<br>"), "r": 8, "t": 8, "b": 44},
        xaxis=places.axis(escape(formatting.knob_label(knob.name, knob.unit))),
        yaxis=log_axis(values, title, pad=0.1),
    )

    def x(trial: Trial) -> float:
        shift = JITTER * places.span * _step(trial)
        return places.positions[trial.configuration[knob.name]] + shift

    add_trials(drawn, study, trials, x=x, knob=knob.name)
    return drawn


def parallel(study: StudyRecord) -> theme.Figure:
    """Draw a line per trial through its knobs and objective."""
    objective = objectives.find_objective(study.objective)
    axes = [(knob, _axis(study, knob)) for knob in study_view.varied_knobs(study)]
    values = {t.number: v for t in study.trials if (v := objective.of(t)) is not None}
    low, high = _ends(list(values.values()))
    scales = [(formatting.knob_label(knob.name, knob.unit), _marks(axis)) for knob, axis in axes]
    if values:
        marks = {f"{t:,.6g}": _share(t, low, high) for t in log_ticks(low, high)}
        scales.append((objective.axis, marks))
    drawn = theme.figure(
        height=520,
        has_legend=False,
        margin={"l": 48, "r": 24, "t": 56, "b": 16},
        xaxis={"range": [-0.35, len(scales) - 0.65], "visible": False, "fixedrange": True},
        yaxis={"range": [-0.06, 1.06], "visible": False, "fixedrange": True},
        shapes=[_upright(index) for index in range(len(scales))],
        annotations=[
            text
            for index, (title, marks) in enumerate(scales)
            for text in _texts(index, title, marks)
        ],
    )
    for trial in sorted(study.trials, key=lambda trial: _layer(study, trial)):
        heights = [
            _height(axis, trial.configuration.get(knob.name)) + 0.006 * _step(trial)
            for knob, axis in axes
        ]
        share = None
        if trial.number in values:
            share = _share(values[trial.number], low, high)
            heights.append(share)
        line = _line(study, trial, share)
        drawn.add_trace(
            x=list(range(len(heights))),
            y=[None if math.isnan(height) else height for height in heights],
            mode="lines",
            line=line,
            opacity=1.0 if line["width"] > 2 else 0.8,
            text=trial_hover(study, trial),
            hovertemplate=theme.HOVER,
        )
    if values:
        _add_colour_scale(drawn, marks, objective.axis)
    return drawn


def _axis(study: StudyRecord, knob: KnobInfo) -> KnobAxis:
    tried = (trial.configuration.get(knob.name) for trial in study.trials)
    return knob_axis(knob, [value for value in tried if value is not None])


def _step(trial: Trial) -> int:
    return trial.number * 2 % 5 - 2


def _ends(values: list[float]) -> tuple[float, float]:
    if not values:
        return 1.0, 10.0
    low, high = min(values), max(values)
    return (low, high) if high > low * 1.05 else (low / 1.05, high * 1.05)


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _height(axis: KnobAxis, value: Value | None) -> float:
    if value is None:
        return math.nan
    return (axis.positions[value] - min(axis.positions.values())) / axis.span


def _layer(study: StudyRecord, trial: Trial) -> tuple[int, int]:
    if trial.configuration == study.best:
        return 3, trial.number
    if trial.origin == "default":
        return 2, trial.number
    return (1 if trial.measurement else 0), trial.number


def _line(study: StudyRecord, trial: Trial, share: float | None) -> dict[str, Any]:
    if trial.measurement is None or share is None:
        return {"color": theme.mark("failed").colour, "width": 1, "dash": "dot"}
    if trial.configuration == study.best:
        return {"color": theme.mark("best").colour, "width": 4}
    if trial.origin == "default":
        return {"color": theme.mark("default").colour, "width": 3}
    inside = min(1.0, max(0.0, share))
    (colour,) = plotly.colors.sample_colorscale(list(theme.SCALE), [inside])
    return {"color": colour, "width": 1.5}


def _add_colour_scale(drawn: theme.Figure, marks: dict[str, float], title: str) -> None:
    drawn.add_trace(
        x=[None],
        y=[None],
        mode="markers",
        hoverinfo="skip",
        marker={
            "colorscale": [[i / (len(theme.SCALE) - 1), c] for i, c in enumerate(theme.SCALE)],
            "cmin": 0,
            "cmax": 1,
            "color": [0],
            "showscale": True,
            "colorbar": {
                "title": {"text": title, "side": "right"},
                "thickness": 10,
                "len": 0.9,
                "outlinewidth": 0,
                "tickvals": list(marks.values()),
                "ticktext": list(marks),
            },
        },
    )


def _marks(axis: KnobAxis) -> dict[str, float]:
    return {axis.labels[value]: _height(axis, value) for value in axis.visible_values(gap=0.045)}


def _upright(index: int) -> dict[str, Any]:
    line = {"color": theme.LINE, "width": 1}
    ends = {"x0": index, "x1": index, "y0": -0.02, "y1": 1.02}
    return {"type": "line", "line": line, "layer": "below", **ends}


def _in_lines(title: str, letters: int) -> str:
    return "<br>".join(map(escape, formatting.wrap(title, letters)))


def _texts(index: int, title: str, marks: dict[str, float]) -> list[dict[str, Any]]:
    first, dot, rest = title.partition(".")
    name = f"{escape(first)}.<br>{escape(rest)}" if dot else _in_lines(title, UPRIGHT_LETTERS)
    common = {"x": index, "showarrow": False}
    head = {**common, "y": 1.03, "yanchor": "bottom", "text": name.replace(" (", "<br>(")}
    beside = {"xanchor": "right", "xshift": -4, "font": {"size": 11}}
    labels = [{**common, **beside, "y": y, "text": label} for label, y in marks.items()]
    return [head, *labels]
