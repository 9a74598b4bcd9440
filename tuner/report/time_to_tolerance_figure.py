"""Figure of each sampler's time to tolerance, in trials and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from tuner.metrics.benchmark import TimeToTolerance
from tuner.report import formatting, theme
from tuner.report.axes import escape

Row = tuple[str, Mapping[float, TimeToTolerance]]
"""A sampler and its time to each tolerance, by the tolerance's share."""

PALE = 0.25


def time_to_tolerance(
    rows: Sequence[Row], labels: Mapping[float, str], *, trials: int, max_s: float
) -> go.Figure:
    """Draw a bar to the median and a line to the 90th percentile; `labels` are by share."""
    drawn = theme.figure(
        height=110 + 58 * len(rows),
        barmode="group",
        bargap=0.25,
        legend={"y": 1.01, "traceorder": "reversed", "itemsizing": "trace"},
    ).set_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.03)
    axes = (("trials", trials), ("seconds", max_s))
    for share, label in reversed(list(labels.items())):
        within = [(sampler, times[share]) for sampler, times in reversed(rows)]
        for column, (unit, end) in enumerate(axes, start=1):
            bars = _bars(within, label, end=end, is_time=unit == "seconds")
            bars["marker"]["color"] = theme.TOLERANCES[share]
            drawn.add_trace(bars, row=1, col=column)
    for column, (unit, end) in enumerate(axes, start=1):
        drawn.update_xaxes(title={"text": unit}, range=[0, 1.05 * end], row=1, col=column)
    drawn.update_yaxes(showgrid=False, ticks="", title={"text": ""})
    return drawn


def _bars(
    within: Sequence[tuple[str, TimeToTolerance]], label: str, *, end: float, is_time: bool
) -> go.Bar:
    medians = [one.median_s if is_time else one.median for _, one in within]
    highs = [one.p90_s if is_time else one.p90 for _, one in within]
    above = [
        None if median is None else max(0.0, (end if high is None else high) - median)
        for median, high in zip(medians, highs, strict=True)
    ]
    below = [None if length is None else 0.0 for length in above]
    return go.Bar(
        x=[end if median is None else median for median in medians],
        y=[escape(sampler) for sampler, _ in within],
        orientation="h",
        name=label,
        legendgroup=label,
        showlegend=not is_time,
        marker={"opacity": [PALE if median is None else 1.0 for median in medians]},
        error_x=theme.error_bars(above, below, colour=theme.LINE, thickness=1.5, width=3),
        text=["not reached" if median is None else "" for median in medians],
        textposition="inside",
        insidetextanchor="middle",
        textfont={"size": 10, "color": theme.LINE},
        hovertext=[_hover(one, label, is_time=is_time) for _, one in within],
        hovertemplate="%{y}: %{hovertext}<extra></extra>",
    )


def _hover(one: TimeToTolerance, label: str, *, is_time: bool) -> str:
    median, high = (one.median_s, one.p90_s) if is_time else (one.median, one.p90)
    unit = "s" if is_time else "trials"
    half = "not in half of the searches" if median is None else f"median {median:,.0f} {unit}"
    most = "not in nine of ten" if high is None else f"90th percentile {high:,.0f} {unit}"
    return f"{escape(label)}: {half}, {most}, reached in {formatting.percent(one.reached)}"
