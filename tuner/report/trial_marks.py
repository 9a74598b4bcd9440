"""Trials in a figure: points with intervals, failures, hover text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from tuner.metrics import objective as objectives
from tuner.report import formatting, theme
from tuner.report.axes import escape
from tuner.values.study_record import StudyRecord
from tuner.values.trial import Trial

FLOOR = 0.03


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlotContext:
    """Trials' x positions, and the knobs in their hover text."""

    x: Callable[[Trial], float] = lambda trial: trial.number
    knob: str | None = None


BY_NUMBER = PlotContext()


def add_trials(
    drawn: go.Figure,
    study: StudyRecord,
    trials: Sequence[Trial],
    kind: str,
    *,
    at: PlotContext = BY_NUMBER,
) -> None:
    """Add ok trials as points with intervals."""
    objective = objectives.find_objective(study.objective)
    points = [(trial, trial.measurement) for trial in trials if trial.measurement is not None]
    if not points:
        return
    drawn_as = theme.mark(kind)
    centres = [objective.value(measured) for _, measured in points]
    ends = [objective.interval(measured) for _, measured in points]
    pairs = list(zip(centres, ends, strict=True))
    drawn.add_trace(
        go.Scatter(
            x=[at.x(trial) for trial, _ in points],
            y=centres,
            mode="markers",
            marker=_marker(drawn_as, width=1.5),
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [0.0 if e.high is None else max(0.0, e.high - c) for c, e in pairs],
                "arrayminus": [0.0 if e.low is None else max(0.0, c - e.low) for c, e in pairs],
                "thickness": 1,
                "width": 0,
                "color": drawn_as.colour,
            },
            name=escape(drawn_as.label),
            text=[trial_hover(study, trial, at.knob) for trial, _ in points],
            hovertemplate="%{text}<extra></extra>",
        )
    )


def add_failures(
    drawn: go.Figure, study: StudyRecord, trials: Sequence[Trial], *, at: PlotContext = BY_NUMBER
) -> None:
    """Add failed trials just above the x axis."""
    for status in ("infeasible", "failed"):
        chosen = [trial for trial in trials if trial.outcome.status == status]
        if not chosen:
            continue
        drawn_as = theme.mark(status)
        drawn.add_trace(
            go.Scatter(
                x=[at.x(trial) for trial in chosen],
                y=[FLOOR] * len(chosen),
                yaxis="y2",
                mode="markers",
                marker=_marker(drawn_as, width=2),
                name=drawn_as.label,
                text=[trial_hover(study, trial, at.knob) for trial in chosen],
                hovertemplate="%{text}<extra></extra>",
            )
        )
        drawn.layout.yaxis2 = {
            "overlaying": "y",
            "range": [0, 1],
            "visible": False,
            "fixedrange": True,
        }


def add_best(drawn: go.Figure, study: StudyRecord, *, at: PlotContext = BY_NUMBER) -> None:
    """Add the recommended configuration as stars."""
    objective = objectives.find_objective(study.objective)
    chosen = [
        (trial, value)
        for trial in study.trials
        if trial.configuration == study.best and (value := objective.of(trial)) is not None
    ]
    if not chosen:
        return
    best = theme.mark("best")
    texts = [trial_hover(study, trial, at.knob) for trial, _ in chosen]
    drawn.add_trace(
        go.Scatter(
            x=[at.x(trial) for trial, _ in chosen],
            y=[value for _, value in chosen],
            mode="markers",
            marker=_marker(best, width=0),
            name=best.label,
            text=[f"{text}<br><b>recommended</b>" for text in texts],
            hovertemplate="%{text}<extra></extra>",
        )
    )


def trial_hover(study: StudyRecord, trial: Trial, knob: str | None = None) -> str:
    """Hover text: outcome or metrics, then knobs."""
    objective = objectives.find_objective(study.objective)
    lines = [f"<b>trial {trial.number}</b>, {escape(theme.mark(trial.origin).label)}"]
    if trial.measurement is None:
        cause = f", {trial.outcome.cause}" if trial.outcome.cause else ""
        lines.append(f"{trial.outcome.status}{cause}")
        lines += [escape(line) for line in formatting.wrap(trial.outcome.reason)]
    else:
        measured = trial.measurement
        ends = formatting.interval(objective.interval(measured))
        centre = formatting.quantity(objective.value(measured), objective.unit)
        lines.append(f"{objective.label} {centre} ({ends})")
        if knob is None:
            lines.append(
                f"p99 {formatting.number(measured.reportable_p99_ms)} ms, "
                f"{formatting.number(measured.throughput_per_s)} requests/s, "
                f"{formatting.plural(measured.requests, 'request')}"
            )
    lines += [
        escape(f"{name} = {formatting.knob_value(value)}")
        for name, value in trial.configuration.items()
        if knob is None or name == knob
    ]
    return "<br>".join(lines)


def _marker(drawn_as: theme.MarkerStyle, *, width: float) -> dict[str, Any]:
    return {
        "symbol": drawn_as.symbol,
        "size": drawn_as.size,
        "color": drawn_as.colour,
        "line": {"width": width, "color": drawn_as.colour},
    }
