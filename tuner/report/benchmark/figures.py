"""Figures of a table benchmark: regret by trial, time to tolerance, and non-inferiority."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go
import plotly.subplots

from tuner.metrics.benchmark import (
    NonInferiority,
    NonInferiorityResult,
    SamplerResult,
    TableBenchmark,
)
from tuner.report import formatting, theme
from tuner.report.axes import escape
from tuner.report.time_to_tolerance_figure import time_to_tolerance

FLOOR = 0.1
"""Smallest regret drawn, in per cent, for the logarithm."""
REFERENCE, OTHER, FAINT = "#0072B2", "#D55E00", "#8b949e"
RESULT_MARKERS: dict[NonInferiorityResult, tuple[str, str]] = {
    "better": ("#009E73", "circle"),
    "non-inferior": ("#56A5D8", "circle-open"),
    "not shown": ("#8b949e", "diamond-open"),
    "worse": ("#D55E00", "x"),
}
PANELS_IN_A_ROW = 4
_TICKS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


def regret(surface: TableBenchmark, reference: str) -> go.Figure:
    """Draw each sampler's median and quartiles over the others' medians."""
    order = rank_samplers(surface, reference)
    columns = min(PANELS_IN_A_ROW, len(order))
    rows = math.ceil(len(order) / columns)
    drawn = plotly.subplots.make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        subplot_titles=[escape(one.sampler) for one in order],
        horizontal_spacing=0.02,
        vertical_spacing=min(0.1, 0.32 / rows),
    )
    for place, one in enumerate(order):
        row, column = place // columns + 1, place % columns + 1
        for other in order:
            if other is not one:
                drawn.add_trace(_grey(other), row=row, col=column)
        colour = REFERENCE if one.sampler == reference else OTHER
        for trace in _band(one, colour):
            drawn.add_trace(trace, row=row, col=column)
    highest = max(max(one.regret.high) for one in order)
    top = max(math.log10(max(100 * highest, 2 * FLOOR)), 0.5) + 0.08
    drawn.update_layout(
        template=theme.LIGHT,
        height=110 + 190 * rows,
        margin={"l": 64, "r": 16, "t": 54, "b": 48},
        showlegend=False,
        hovermode="closest",
    )
    drawn.update_yaxes(
        type="log",
        range=[math.log10(FLOOR) - 0.08, top],
        tickvals=list(_TICKS),
        ticktext=[f"{tick:g} %" if tick > FLOOR else f"≤ {tick:g} %" for tick in _TICKS],
    )
    drawn.update_xaxes(tickformat="d")
    drawn.update_xaxes(title={"text": "trials"}, row=rows)
    drawn.update_yaxes(title={"text": "regret"}, col=1)
    return drawn


def tolerance_figure(surface: TableBenchmark, reference: str, trials: int) -> go.Figure:
    """Draw when the recommendation stays within tolerance."""
    rows = [
        (one.sampler, {each.share: each for each in one.within})
        for one in rank_samplers(surface, reference)
    ]
    max_s = max(row[-1] for one in surface.contestants for row in one.seconds)
    labels = {
        share: f"within {formatting.percent(surface.tolerances[share])}"
        for share in theme.TOLERANCES
    }
    return time_to_tolerance(rows, labels, trials=trials, max_s=max_s)


def forest(found: Sequence[NonInferiority], margin: float) -> go.Figure:
    """Draw mean regret differences and upper bounds, by peer and budget."""
    budgets = sorted({one.budget for one in found})
    peers = list(dict.fromkeys(one.peer for one in found))[::-1]
    drawn = plotly.subplots.make_subplots(
        rows=1,
        cols=len(budgets),
        shared_yaxes=True,
        horizontal_spacing=0.02,
        subplot_titles=[f"after {formatting.plural(budget, 'trial')}" for budget in budgets],
    )
    named: set[NonInferiorityResult] = set()
    for column, budget in enumerate(budgets, 1):
        for one in (each for each in found if each.budget == budget):
            for trace in _difference(one, has_name=one.standing not in named):
                drawn.add_trace(trace, row=1, col=column)
            named.add(one.standing)
        for place, dash in ((0.0, "solid"), (100 * margin, "dash")):
            drawn.add_vline(
                x=place, line={"width": 1, "dash": dash, "color": FAINT}, row=1, col=column
            )
        ends = [100 * (one.upper or one.difference) for one in found if one.budget == budget]
        starts = [100 * one.difference for one in found if one.budget == budget]
        low, high = min(*starts, 0.0), max(*ends, 100 * margin)
        # Bounds of few units are wide and may leave the figure.
        high = min(high, 2 * max(map(abs, starts)) + 1000 * margin)
        room = 0.08 * (high - low)
        drawn.update_xaxes(
            title={"text": "points"}, range=[low - room, high + room], row=1, col=column
        )
    drawn.update_layout(
        template=theme.LIGHT,
        height=150 + 28 * len(peers),
        margin={"l": 64, "r": 16, "t": 62, "b": 48},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.0,
            "yref": "container",
            "yanchor": "top",
            "bgcolor": "rgba(0,0,0,0)",
        },
        hovermode="closest",
    )
    drawn.update_yaxes(
        categoryorder="array",
        categoryarray=[escape(peer) for peer in peers],
        range=[-0.6, len(peers) - 0.4],
        ticks="",
    )
    return drawn


def rank_samplers(surface: TableBenchmark, reference: str) -> list[SamplerResult]:
    """Reference, then the others by mean regret."""
    return sorted(
        surface.contestants,
        key=lambda one: (one.sampler != reference, sum(one.regret.mean)),
    )


def _grey(one: SamplerResult) -> go.Scatter:
    return go.Scatter(
        x=list(range(1, len(one.regret.median) + 1)),
        y=_floor_regrets(one.regret.median),
        mode="lines",
        line={"width": 1, "color": FAINT, "shape": "hv"},
        opacity=0.4,
        hoverinfo="skip",
    )


def _band(one: SamplerResult, colour: str) -> tuple[go.Scatter, ...]:
    x = list(range(1, len(one.regret.median) + 1))
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    edge = {"width": 0, "shape": "hv"}
    hover = [
        f"{escape(one.sampler)} after {formatting.plural(trial, 'trial')}<br>median {100 * median:.2f} %, "
        f"quartiles {100 * low:.2f} to {100 * high:.2f} %, mean {100 * mean:.2f} %"
        for trial, low, median, high, mean in zip(
            x, one.regret.low, one.regret.median, one.regret.high, one.regret.mean, strict=True
        )
    ]
    return (
        go.Scatter(
            x=x, y=_floor_regrets(one.regret.low), mode="lines", line=edge, hoverinfo="skip"
        ),
        go.Scatter(
            x=x,
            y=_floor_regrets(one.regret.high),
            mode="lines",
            line=edge,
            fill="tonexty",
            fillcolor=f"rgba({red},{green},{blue},0.25)",
            hoverinfo="skip",
        ),
        go.Scatter(
            x=x,
            y=_floor_regrets(one.regret.median),
            mode="lines",
            line={"width": 3, "color": colour, "shape": "hv"},
            text=hover,
            hovertemplate="%{text}<extra></extra>",
        ),
    )


def _difference(one: NonInferiority, *, has_name: bool) -> tuple[go.Scatter, ...]:
    colour, symbol = RESULT_MARKERS[one.standing]
    y, centre = escape(one.peer), 100 * one.difference
    upper = centre if one.upper is None else 100 * one.upper
    line = go.Scatter(
        x=[centre, upper],
        y=[y, y],
        mode="lines",
        line={"width": 2, "color": colour},
        showlegend=False,
        legendgroup=one.standing,
        hoverinfo="skip",
    )
    bound = "" if one.upper is None else f", upper bound {upper:+.2f}"
    told = f"{centre:+.2f} points{bound}: {one.standing}"
    dot = go.Scatter(
        x=[centre],
        y=[y],
        mode="markers",
        marker={
            "size": 10,
            "color": colour,
            "symbol": symbol,
            "line": {"width": 2 if symbol.endswith("-open") else 0, "color": colour},
        },
        name=one.standing,
        legendgroup=one.standing,
        showlegend=has_name,
        hovertemplate=f"{y}, {told}<extra></extra>",
    )
    return line, dot


def _floor_regrets(values: Sequence[float]) -> list[float]:
    return [max(FLOOR, 100 * value) for value in values]
