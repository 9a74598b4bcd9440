"""Figures of a benchmark on tables: regret by trial, time to tolerance, and non-inferiority."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tuner.metrics.benchmark import (
    NonInferiority,
    NonInferiorityResult,
    SamplerResult,
    TableBenchmark,
    TimeToTolerance,
)
from tuner.report import formatting, theme
from tuner.report.axes import escape

FLOOR = 0.1
"""Smallest regret drawn, in per cent, on the log axis."""

REFERENCE, OTHER = "#0072B2", "#D55E00"
RESULT_MARKERS: dict[NonInferiorityResult, tuple[str, str]] = {
    "better": ("#009E73", "circle"),
    "non-inferior": ("#56A5D8", "circle-open"),
    "not shown": (theme.LINE, "diamond-open"),
    "worse": ("#D55E00", "x"),
}
PANELS_IN_A_ROW = 4
PALE = 0.25

Row = tuple[str, Mapping[float, TimeToTolerance]]

_TICKS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


def regret(table: TableBenchmark, reference: str) -> go.Figure:
    """Draw each sampler's median regret and quartiles, with the other medians behind."""
    order = rank_samplers(table, reference)
    columns = min(PANELS_IN_A_ROW, len(order))
    rows = math.ceil(len(order) / columns)
    drawn = theme.figure(height=110 + 190 * rows, has_legend=False, margin={"t": 54}).set_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        subplot_titles=[escape(one.sampler) for one in order],
        horizontal_spacing=0.02,
        vertical_spacing=min(0.1, 0.32 / rows),
    )
    for place, one in enumerate(order):
        panel = {"row": place // columns + 1, "col": place % columns + 1}
        for other in order:
            if other is not one:
                _add_line(drawn, other, theme.LINE, 1, opacity=0.4, hoverinfo="skip", **panel)
        _add_regret(drawn, one, REFERENCE if one.sampler == reference else OTHER, panel)
    highest = max(max(one.regret.high) for one in order)
    top = max(math.log10(max(100 * highest, 2 * FLOOR)), 0.5) + 0.08
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


def tolerance_figure(table: TableBenchmark, reference: str, trials: int) -> go.Figure:
    """Draw when each sampler's recommendation is within a tolerance for good."""
    rows = [
        (one.sampler, {each.share: each for each in one.within})
        for one in rank_samplers(table, reference)
    ]
    max_s = max(row[-1] for one in table.contestants for row in one.seconds)
    labels = {
        share: f"within {formatting.percent(table.tolerances[share])}" for share in theme.TOLERANCES
    }
    return time_to_tolerance(rows, labels, trials=trials, max_s=max_s)


def time_to_tolerance(
    rows: Sequence[Row], labels: Mapping[float, str], *, trials: int, max_s: float
) -> go.Figure:
    """Draw a bar to the median and a line to the 90th percentile; `labels` is by tolerance."""
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


def forest(found: Sequence[NonInferiority], margin: float) -> go.Figure:
    """Draw mean regret differences and upper bounds, by peer and budget."""
    budgets = sorted({one.budget for one in found})
    peers = list(dict.fromkeys(one.peer for one in found))[::-1]
    drawn = theme.figure(
        height=150 + 28 * len(peers),
        margin={"t": 62},
        legend={"y": 1.0, "yref": "container", "yanchor": "top", "itemsizing": "trace"},
    ).set_subplots(
        rows=1,
        cols=len(budgets),
        shared_yaxes=True,
        horizontal_spacing=0.02,
        subplot_titles=[f"after {formatting.plural(budget, 'trial')}" for budget in budgets],
    )
    named: set[NonInferiorityResult] = set()
    for column, budget in enumerate(budgets, start=1):
        panel = {"row": 1, "col": column}
        each = [one for one in found if one.budget == budget]
        for one in each:
            _add_difference(drawn, one, panel, has_name=one.standing not in named)
            named.add(one.standing)
        for place, dash in ((0.0, "solid"), (100 * margin, "dash")):
            drawn.add_vline(x=place, line={"width": 1, "dash": dash, "color": theme.LINE}, **panel)
        ends = [100 * (one.upper or one.difference) for one in each]
        starts = [100 * one.difference for one in each]
        low, high = min(*starts, 0.0), max(*ends, 100 * margin)
        # Bounds of few units are wide and may leave the figure.
        high = min(high, 2 * max(map(abs, starts)) + 1000 * margin)
        room = 0.08 * (high - low)
        drawn.update_xaxes(title={"text": "points"}, range=[low - room, high + room], **panel)
    drawn.update_yaxes(
        categoryorder="array",
        categoryarray=[escape(peer) for peer in peers],
        range=[-0.6, len(peers) - 0.4],
        ticks="",
    )
    return drawn


def rank_samplers(table: TableBenchmark, reference: str) -> list[SamplerResult]:
    """Return the reference, then the other samplers by mean regret."""
    return sorted(
        table.contestants,
        key=lambda one: (one.sampler != reference, sum(one.regret.mean)),
    )


def _add_line(drawn: go.Figure, one: SamplerResult, colour: str, width: float, **more: Any) -> None:
    drawn.add_scatter(
        x=list(range(1, len(one.regret.median) + 1)),
        y=_floor_regrets(one.regret.median),
        mode="lines",
        line={"width": width, "color": colour, "shape": "hv"},
        **more,
    )


def _add_regret(drawn: go.Figure, one: SamplerResult, colour: str, panel: dict[str, int]) -> None:
    found = one.regret
    each = zip(found.low, found.median, found.high, found.mean, strict=True)
    hover = [
        f"{escape(one.sampler)} after {formatting.plural(trial, 'trial')}<br>median {100 * median:.2f} %, "
        f"quartiles {100 * low:.2f} to {100 * high:.2f} %, mean {100 * mean:.2f} %"
        for trial, (low, median, high, mean) in enumerate(each, start=1)
    ]
    x = list(range(1, len(hover) + 1))
    low, high = _floor_regrets(found.low), _floor_regrets(found.high)
    theme.add_band(drawn, x, low, high, colour, 0.25, **panel)
    _add_line(drawn, one, colour, 3, text=hover, hovertemplate=theme.HOVER, **panel)


def _add_difference(
    drawn: go.Figure, one: NonInferiority, panel: dict[str, int], *, has_name: bool
) -> None:
    colour, symbol = RESULT_MARKERS[one.standing]
    style = theme.MarkerStyle(label=one.standing, colour=colour, symbol=symbol, size=10)
    y, centre = escape(one.peer), 100 * one.difference
    upper = centre if one.upper is None else 100 * one.upper
    drawn.add_scatter(
        x=[centre, upper],
        y=[y, y],
        mode="lines",
        line={"width": 2, "color": colour},
        showlegend=False,
        legendgroup=one.standing,
        hoverinfo="skip",
        **panel,
    )
    bound = "" if one.upper is None else f", upper bound {upper:+.2f}"
    told = f"{centre:+.2f} points{bound}: {one.standing}"
    drawn.add_scatter(
        x=[centre],
        y=[y],
        mode="markers",
        marker=theme.marker(style, width=2 if symbol.endswith("-open") else 0),
        name=one.standing,
        legendgroup=one.standing,
        showlegend=has_name,
        hovertemplate=f"{y}, {told}<extra></extra>",
        **panel,
    )


def _floor_regrets(values: Sequence[float]) -> list[float]:
    return [max(FLOOR, 100 * value) for value in values]


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
