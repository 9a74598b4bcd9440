"""Figures of the requests to the best and the default: distribution and time course.

Requests are thinned (`tuner.report.requests`); a figure is None if there are no raw records.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.report import formatting, theme
from tuner.report.axes import log_axis
from tuner.report.requests import (
    Array,
    PhaseRequests,
    binned_median,
    phase,
    quantile_curve,
    thin,
)
from tuner.report.study import study_view
from tuner.values.measurement import MIN_FOR_P99
from tuner.values.study_record import StudyRecord

Phases = dict[study_view.ArmName, PhaseRequests]

MARKED = (0.5, 0.95, 0.99)

TICKS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
LABEL_SHARE = 0.12


def phases(study: StudyRecord) -> Phases:
    """Return the recorded phases by arm."""
    arms = study_view.ARMS if study_view.has_two_arms(study) else study_view.ARMS[:1]
    found = {role: phase(study, role) for role in arms}
    return {role: kept for role, kept in found.items() if kept and len(kept.measured_ms)}


def distribution(study: StudyRecord) -> theme.Figure | None:
    """Draw the latency distribution on a log axis that stretches the tail."""
    kept = phases(study)
    if not kept:
        return None
    drawn = theme.figure(height=420)
    for role, each in kept.items():
        others = [other.measured_ms for name, other in kept.items() if name != role]
        _add_curve(drawn, role, each.measured_ms, others)
    most = max(len(each.measured_ms) for each in kept.values())
    ticks = [share for share in TICKS if share <= 1 - 1 / most]
    values = np.concatenate([each.measured_ms for each in kept.values()])
    axis = log_axis([float(values.min()), float(values.max())], "latency (ms)")
    axis["range"][1] += LABEL_SHARE * (axis["range"][1] - axis["range"][0])
    drawn.layout.update(
        xaxis=axis,
        yaxis={
            "title": {"text": "percentile of requests (tail stretched)"},
            "tickvals": [_log_tail(share) for share in ticks],
            "ticktext": ["fastest" if s == 0 else f"p{100 * s:g}" for s in ticks],
            "range": [-0.05, _log_tail(1 - 0.5 / most) + 0.15],
        },
    )
    return drawn


def over_time(study: StudyRecord) -> theme.Figure | None:
    """Draw latencies over time: thinned requests, and medians per bin."""
    kept = phases(study)
    if not kept:
        return None
    drawn = theme.figure(height=420)
    for role, each in kept.items():
        chosen = thin(each)
        drawn.add_trace(
            x=_round_values(each.at_s[chosen]),
            y=_round_values(each.latency_ms[chosen]),
            mode="markers",
            marker={"size": 4, "color": theme.mark(role).colour, "opacity": 0.3},
            name=f"{role}, single requests",
            hovertemplate="%{y:.4g} ms at %{x:.3g} s<extra>" + role + "</extra>",
        )
    for role, each in kept.items():
        middles, medians = binned_median(each)
        drawn.add_trace(
            x=_round_values(middles),
            y=_round_values(medians),
            mode="lines",
            line={"width": 3, "color": theme.mark(role).colour},
            name=f"{role}, median",
            hovertemplate="median %{y:.4g} ms<extra>" + role + "</extra>",
        )
    for role, each in kept.items():
        if each.warmup_s is not None:
            colour = theme.mark(role).colour
            drawn.add_vline(each.warmup_s, width=1.5, dash="dot", color=colour)
    values = np.concatenate([each.latency_ms for each in kept.values()])
    drawn.layout.update(
        xaxis={"title": {"text": "time since the load began (s)"}, "rangemode": "tozero"},
        yaxis=log_axis([float(values.min()), float(values.max())], "latency (ms)"),
    )
    return drawn


def _log_tail(share: float) -> float:
    """Return -log10 of the share above, which is 1 at p90 and 2 at p99."""
    return float(-np.log10(1 - share))


def _add_curve(
    drawn: theme.Figure, arm: study_view.ArmName, values: Array, others: Sequence[Array]
) -> None:
    style = theme.mark(arm)
    times, shares = quantile_curve(values)
    drawn.add_trace(
        x=_round_values(times),
        y=_round_values(-np.log10(1 - shares)),
        text=[f"p{100 * share:.4g}" for share in shares],
        mode="lines",
        line={"width": 2.5, "color": style.colour},
        name=f"{arm} ({formatting.plural(len(values), 'request')})",
        hovertemplate="%{text}: %{x:.4g} ms<extra>" + arm + "</extra>",
    )
    enough = [s for s in MARKED if s < 0.99 or len(values) >= MIN_FOR_P99]
    marks = {share: _percentile(values, share) for share in enough}
    is_left = [
        all(mark <= _percentile(other, share) for other in others) for share, mark in marks.items()
    ]
    drawn.add_trace(
        x=list(marks.values()),
        y=[_log_tail(share) for share in marks],
        text=[f"p{100 * share:g} {formatting.number(value)}" for share, value in marks.items()],
        mode="markers+text",
        textposition=["top left" if left else "bottom right" for left in is_left],
        textfont={"color": style.colour, "size": 12},
        cliponaxis=False,
        marker=theme.marker(style, size=9),
        showlegend=False,
        hovertemplate="%{text}<extra>" + arm + "</extra>",
    )


def _percentile(values: Array, share: float) -> float:
    return float(np.quantile(values, share, method="inverted_cdf"))


def _round_values(values: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
