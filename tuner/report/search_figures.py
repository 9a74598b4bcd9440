"""Figures of the whole search: trials with the best so far, and the knobs' importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuner.metrics import objective as objectives
from tuner.report import formatting, theme
from tuner.report.axes import escape, log_axis
from tuner.report.importance import Importance, MainEffect
from tuner.report.study import study_view
from tuner.values.study_record import StudyRecord
from tuner.values.trial import Trial

FLOOR = 0.03
"""Height of failed trials, as a share of the plot."""


def convergence(study: StudyRecord) -> theme.Figure:
    """Draw every trial's objective, the best so far, and failures."""
    objective = objectives.find_objective(study.objective)
    drawn = theme.figure(height=440)
    if steps := study_view.best_so_far(study):
        drawn.add_trace(
            x=[number for number, _ in steps],
            y=[value for _, value in steps],
            mode="lines",
            line={"shape": "hv", "width": 2.5, "color": theme.mark("best").colour},
            name="best so far",
            hovertemplate="best so far: %{y:.4g} " + objective.unit + "<extra></extra>",
        )
    add_trials(drawn, study, study.trials)
    last = max((trial.number for trial in study.trials), default=0)
    ends: list[float] = []
    for trial in study_view.successful_trials(study.trials):
        assert trial.measurement is not None
        interval = objective.interval(trial.measurement)
        shown = interval.low, interval.high, objective.of(trial)
        ends += [end for end in shown if end is not None]
    drawn.layout.update(
        xaxis={"title": {"text": "trial number"}, "range": [-0.8, last + 0.8], "tickformat": "d"},
        yaxis=log_axis(ends, objective.axis, pad=0.1),
    )
    if last < 10:
        drawn.layout["xaxis"]["dtick"] = 1
    return drawn


def add_trials(
    drawn: theme.Figure,
    study: StudyRecord,
    trials: Sequence[Trial],
    *,
    x: Callable[[Trial], float] = lambda trial: trial.number,
    knob: str | None = None,
) -> None:
    """Add evaluations with intervals, the best as stars, and failures just above the x axis.

    `knob` limits the hover text to one knob, and leaves the intervals out.
    """
    objective = objectives.find_objective(study.objective)

    def add(kind: str, chosen: Sequence[Trial], y: Sequence[float], **more: Any) -> None:
        style = theme.mark(kind)
        texts = [trial_hover(study, trial, knob) for trial in chosen]
        if kind == "best":
            texts = [f"{text}<br><b>recommended</b>" for text in texts]
        drawn.add_trace(
            x=[x(trial) for trial in chosen],
            y=y,
            mode="markers",
            name=escape(style.label),
            text=texts,
            hovertemplate=theme.HOVER,
            **more,
        )

    good = study_view.successful_trials(trials)
    for origin in dict.fromkeys(trial.origin for trial in good):
        style = theme.mark(origin)
        chosen = [trial for trial in good if trial.origin == origin]
        measured = [trial.measurement for trial in chosen if trial.measurement is not None]
        centres = [objective.value(one) for one in measured]
        ends = [objective.interval(one) for one in measured]
        pairs = list(zip(centres, ends, strict=True))
        above = [0.0 if end.high is None else max(0.0, end.high - c) for c, end in pairs]
        below = [0.0 if end.low is None else max(0.0, c - end.low) for c, end in pairs]
        bars = theme.error_bars(above, below, colour=style.colour, thickness=1, width=0)
        shown = {} if knob else {"error_y": bars}
        add(origin, chosen, centres, marker=theme.marker(style, width=1.5), **shown)
    best = [
        (trial, value)
        for trial in good
        if trial.configuration == study.best and (value := objective.of(trial)) is not None
    ]
    if best:
        marker = theme.marker(theme.mark("best"))
        add("best", [trial for trial, _ in best], [value for _, value in best], marker=marker)
    for status in ("infeasible", "failed"):
        chosen = [trial for trial in trials if trial.outcome.status == status]
        if not chosen:
            continue
        marker = theme.marker(theme.mark(status), width=2)
        add(status, chosen, [FLOOR] * len(chosen), marker=marker, yaxis="y2")
        hidden = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
        drawn.layout["yaxis2"] = hidden


def trial_hover(study: StudyRecord, trial: Trial, knob: str | None = None) -> str:
    """Return hover text: outcome or metrics, then all knobs or the given one."""
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


def importance(found: Importance) -> theme.Figure:
    """Draw each knob's explained variance, interval and chance level."""
    shares = found.shares[::-1]
    names = [escape(share.knob.name) for share in shares]
    lows = [100 * (share.share - (share.interval.low or 0.0)) for share in shares]
    highs = [100 * ((share.interval.high or 0.0) - share.share) for share in shares]
    above, below = [max(0.0, high) for high in highs], [max(0.0, low) for low in lows]
    blue = theme.mark("guided").colour
    drawn = theme.figure(
        height=130 + 38 * len(shares),
        barmode="overlay",
        bargap=0.4,
        xaxis={
            "title": {"text": "share of the log variance (%)"},
            "range": [0, 105],
            "ticksuffix": " %",
        },
        yaxis={"showgrid": False, "title": {"text": ""}, "ticks": ""},
    )
    drawn.add_trace(
        type="bar",
        x=[100 * share.share for share in shares],
        y=names,
        orientation="h",
        marker={"color": blue, "opacity": 0.4},
        error_x=theme.error_bars(above, below, colour=blue, thickness=2, width=6),
        name="share explained, 95 % interval",
        text=[_share_hover(share) for share in shares],
        textposition="none",
        hovertemplate=theme.HOVER,
    )
    drawn.add_trace(
        x=[100 * share.chance for share in shares],
        y=names,
        mode="markers",
        marker=theme.marker(theme.mark("default"), width=2.5, symbol="line-ns-open", size=18),
        name="by chance in 5 % of shuffles",
        hovertemplate="by chance: up to %{x:.0f} %<extra></extra>",
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
