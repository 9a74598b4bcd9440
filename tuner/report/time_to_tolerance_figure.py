"""Figure of each sampler's time to tolerance, in trials and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import plotly.subplots

from tuner.metrics.benchmark import TimeToTolerance
from tuner.report import formatting, theme
from tuner.report.axes import escape

Row = tuple[str, Mapping[float, TimeToTolerance]]

LINE = "#8b949e"
PALE = 0.25


def time_to_tolerance(
    rows: Sequence[Row], labels: Mapping[float, str], *, trials: int, max_s: float
) -> go.Figure:
    """Draw a bar to the median and a line to the 90th percentile; `labels` are of the shares."""
    drawn = plotly.subplots.make_subplots(
        rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.03
    )
    for share, label in reversed(list(labels.items())):
        each = [(sampler, within[share]) for sampler, within in reversed(rows)]
        colour = theme.TOLERANCES[share]
        drawn.add_trace(_bars(each, colour, label, end=trials), row=1, col=1)
        drawn.add_trace(_bars(each, colour, label, end=max_s, is_time=True), row=1, col=2)
    drawn.update_layout(
        template=theme.LIGHT,
        height=110 + 58 * len(rows),
        barmode="group",
        bargap=0.25,
        margin={"l": 64, "r": 16, "t": 16, "b": 48},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.01,
            "yanchor": "bottom",
            "traceorder": "reversed",
            "bgcolor": "rgba(0,0,0,0)",
        },
    )
    drawn.update_xaxes(title={"text": "trials"}, range=[0, 1.05 * trials], row=1, col=1)
    drawn.update_xaxes(title={"text": "seconds"}, range=[0, 1.05 * max_s], row=1, col=2)
    drawn.update_yaxes(showgrid=False, ticks="", title={"text": ""})
    return drawn


def _bars(
    each: Sequence[tuple[str, TimeToTolerance]],
    colour: str,
    label: str,
    *,
    end: float,
    is_time: bool = False,
) -> go.Bar:
    medians = [one.median_s if is_time else one.median for _, one in each]
    highs = [one.p90_s if is_time else one.p90 for _, one in each]
    reach = [
        None if median is None else max(0.0, (end if high is None else high) - median)
        for median, high in zip(medians, highs, strict=True)
    ]
    return go.Bar(
        x=[end if median is None else median for median in medians],
        y=[escape(sampler) for sampler, _ in each],
        orientation="h",
        name=label,
        legendgroup=label,
        showlegend=not is_time,
        marker={
            "color": colour,
            "opacity": [PALE if median is None else 1.0 for median in medians],
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "array": reach,
            "arrayminus": [None if length is None else 0.0 for length in reach],
            "thickness": 1.5,
            "width": 3,
            "color": LINE,
        },
        text=["not reached" if median is None else "" for median in medians],
        textposition="inside",
        insidetextanchor="middle",
        textfont={"size": 10, "color": LINE},
        hovertext=[_hover(one, label, is_time=is_time) for _, one in each],
        hovertemplate="%{y}: %{hovertext}<extra></extra>",
    )


def _hover(one: TimeToTolerance, label: str, *, is_time: bool) -> str:
    median, high = (one.median_s, one.p90_s) if is_time else (one.median, one.p90)
    unit = "s" if is_time else "trials"
    half = "not in half of the searches" if median is None else f"median {median:,.0f} {unit}"
    most = "not in nine of ten" if high is None else f"90th percentile {high:,.0f} {unit}"
    return f"{escape(label)}: {half}, {most}, reached in {formatting.percent(one.reached)}"
