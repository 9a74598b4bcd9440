"""Figures of the whole search: convergence and the knobs' importance."""

from __future__ import annotations

import plotly.graph_objects as go

from tuner.metrics import objective as objectives
from tuner.report import formatting, theme
from tuner.report.axes import escape, log_axis
from tuner.report.importance import Importance, MainEffect
from tuner.report.study import study_view
from tuner.report.trial_marks import add_best, add_failures, add_trials
from tuner.values.study_record import StudyRecord


def convergence(study: StudyRecord) -> go.Figure:
    """Draw every trial's objective, the best so far, and failures."""
    objective = objectives.find_objective(study.objective)
    drawn = theme.figure(height=440)
    steps = study_view.best_so_far(study)
    if steps:
        drawn.add_trace(
            go.Scatter(
                x=[number for number, _ in steps],
                y=[value for _, value in steps],
                mode="lines",
                line={"shape": "hv", "width": 2.5, "color": theme.mark("best").colour},
                name="best so far",
                hovertemplate="best so far: %{y:.4g} " + objective.unit + "<extra></extra>",
            )
        )
    good = study_view.successful_trials(study.trials)
    for origin in dict.fromkeys(trial.origin for trial in good):
        add_trials(drawn, study, [trial for trial in good if trial.origin == origin], origin)
    add_best(drawn, study)
    add_failures(drawn, study, study_view.failed_trials(study.trials))
    last = max((trial.number for trial in study.trials), default=0)
    ends = [
        end
        for trial in good
        if trial.measurement
        for interval in (objective.interval(trial.measurement),)
        for end in (interval.low, interval.high, objective.of(trial))
        if end is not None
    ]
    drawn.update_layout(
        xaxis={"title": {"text": "trial number"}, "range": [-0.8, last + 0.8], "tickformat": "d"},
        yaxis=log_axis(ends, objective.axis, pad=0.1),
    )
    if last < 10:
        drawn.update_xaxes(dtick=1)
    return drawn


def importance(found: Importance) -> go.Figure:
    """Draw each knob's explained variance, interval and chance level."""
    shares = found.shares[::-1]
    names = [escape(share.knob.name) for share in shares]
    centres = [100 * share.share for share in shares]
    lows = [100 * (share.share - (share.interval.low or 0.0)) for share in shares]
    highs = [100 * ((share.interval.high or 0.0) - share.share) for share in shares]
    drawn = theme.figure(height=130 + 38 * len(shares), barmode="overlay", bargap=0.4)
    drawn.add_trace(
        go.Bar(
            x=centres,
            y=names,
            orientation="h",
            marker={"color": theme.mark("guided").colour, "opacity": 0.4},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, high) for high in highs],
                "arrayminus": [max(0.0, low) for low in lows],
                "thickness": 2,
                "width": 6,
                "color": theme.mark("guided").colour,
            },
            name="share explained, 95 % interval",
            text=[_share_hover(share) for share in shares],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    )
    drawn.add_trace(
        go.Scatter(
            x=[100 * share.chance for share in shares],
            y=names,
            mode="markers",
            marker={
                "symbol": "line-ns-open",
                "size": 18,
                "color": theme.mark("default").colour,
                "line": {"width": 2.5},
            },
            name="by chance in 5 % of shuffles",
            hovertemplate="by chance: up to %{x:.0f} %<extra></extra>",
        )
    )
    drawn.update_layout(
        xaxis={
            "title": {"text": "share of the log variance (%)"},
            "range": [0, 105],
            "ticksuffix": " %",
        },
        yaxis={"showgrid": False, "title": {"text": ""}, "ticks": ""},
    )
    return drawn


def _share_hover(share: MainEffect) -> str:
    return (
        f"<b>{escape(share.knob.name)}</b><br>explains {formatting.percent(share.share)} "
        f"({formatting.percent(share.interval.low or 0.0)} to "
        f"{formatting.percent(share.interval.high or 0.0)})<br>"
        f"by chance: up to {formatting.percent(share.chance)}<br>"
        f"{formatting.plural(share.levels, 'level')} compared"
    )
