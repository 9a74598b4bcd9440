"""How trials appear in a figure: points with intervals, failures, the text under the pointer.

In: a figure to add to, `StudyRecord` and its trials. The figure decides what x means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from tuner.report import objective as objectives
from tuner.report import reading, theme, wording
from tuner.report.axes import escaped
from tuner.values import StudyRecord, Trial

FLOOR = 0.03
"""Height of the marks of failed trials, as a share of the plot."""


def add_trials(
    drawn: go.Figure,
    study: StudyRecord,
    trials: Sequence[Trial],
    kind: str,
    *,
    x: Sequence[float] | None = None,
) -> None:
    """Add ok trials as points with intervals; x is the trial number unless given."""
    objective = objectives.named(study.objective)
    points = [(trial, trial.measurement) for trial in trials if trial.measurement is not None]
    if not points:
        return
    drawn_as = theme.mark(kind)
    centres = [objective.value(measured) for _, measured in points]
    ends = [objective.interval(measured) for _, measured in points]
    pairs = list(zip(centres, ends, strict=True))
    drawn.add_trace(
        go.Scatter(
            x=[trial.number for trial, _ in points] if x is None else list(x),
            y=centres,
            mode="markers",
            marker={
                "symbol": drawn_as.symbol,
                "size": drawn_as.size,
                "color": drawn_as.colour,
                "line": {"width": 1.5, "color": drawn_as.colour},
            },
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [0.0 if e.high is None else max(0.0, e.high - c) for c, e in pairs],
                "arrayminus": [0.0 if e.low is None else max(0.0, c - e.low) for c, e in pairs],
                "thickness": 1,
                "width": 0,
                "color": drawn_as.colour,
            },
            name=escaped(drawn_as.label),
            text=[trial_hover(study, trial) for trial, _ in points],
            hovertemplate="%{text}<extra></extra>",
        )
    )


def add_failures(
    drawn: go.Figure, study: StudyRecord, points: Sequence[tuple[float, Trial]]
) -> None:
    """Add trials without a figure, (x, trial) each, as marks just above the x axis."""
    if not points:
        return
    for status in ("infeasible", "failed"):
        chosen = [(x, trial) for x, trial in points if trial.outcome.status == status]
        if not chosen:
            continue
        drawn_as = theme.mark(status)
        drawn.add_trace(
            go.Scatter(
                x=[x for x, _ in chosen],
                y=[FLOOR] * len(chosen),
                yaxis="y2",
                mode="markers",
                marker={
                    "symbol": drawn_as.symbol,
                    "size": drawn_as.size,
                    "color": drawn_as.colour,
                    "line": {"width": 2, "color": drawn_as.colour},
                },
                name=drawn_as.label,
                text=[trial_hover(study, trial) for _, trial in chosen],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    drawn.update_layout(
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    )


def add_best(
    drawn: go.Figure, study: StudyRecord, x: Callable[[Trial], float] | None = None
) -> None:
    """Add the recommended configuration as a star, at its launches in the search."""
    objective = objectives.named(study.objective)
    chosen = [
        (trial, value)
        for trial in reading.searched(study)
        if trial.configuration == study.best and (value := objective.of(trial)) is not None
    ]
    if not chosen:
        return
    best = theme.mark("best")
    drawn.add_trace(
        go.Scatter(
            x=[trial.number if x is None else x(trial) for trial, _ in chosen],
            y=[value for _, value in chosen],
            mode="markers",
            marker={"symbol": best.symbol, "size": best.size, "color": best.colour},
            name=best.label,
            text=[trial_hover(study, trial) + "<br><b>recommended</b>" for trial, _ in chosen],
            hovertemplate="%{text}<extra></extra>",
        )
    )


def trial_hover(study: StudyRecord, trial: Trial) -> str:
    """What a pointer over a trial shows: outcome or figures, then the configuration."""
    objective = objectives.named(study.objective)
    lines = [f"<b>trial {trial.number}</b>, {escaped(theme.mark(trial.origin).label)}"]
    if trial.measurement is None:
        cause = f", {trial.outcome.cause}" if trial.outcome.cause else ""
        lines.append(f"{trial.outcome.status}{cause}")
        lines += [escaped(line) for line in wording.wrapped(trial.outcome.reason)]
    else:
        measured = trial.measurement
        ends = wording.interval(objective.interval(measured))
        centre = wording.quantity(objective.value(measured), objective.unit)
        lines.append(f"{objective.label} {centre} ({ends})")
        lines.append(
            f"p99 {wording.number(measured.p99_ms)} ms, "
            f"{wording.number(measured.throughput_per_s)} requests/s, "
            f"{wording.plural(measured.requests, 'request')}"
        )
    lines += [
        escaped(f"{name} = {wording.knob_value(value)}")
        for name, value in trial.configuration.items()
    ]
    return "<br>".join(lines)
