"""Figures of a benchmark on tables: regret by trial, time to tolerance, and non-inferiority."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def regret(table: TableBenchmark, reference: str) -> theme.Figure:
    """Draw each sampler's median regret and quartiles, with the other medians behind."""
    order = rank_samplers(table, reference)
    columns = min(PANELS_IN_A_ROW, len(order))
    rows = math.ceil(len(order) / columns)
    highest = max(max(one.regret.high) for one in order)
    top = max(math.log10(max(100 * highest, 2 * FLOOR)), 0.5) + 0.08
    panels = _panels(
        rows,
        columns,
        heads=[escape(one.sampler) for one in order],
        gap=0.02,
        row_gap=min(0.1, 0.32 / rows),
        x={"title": {"text": "trials"}, "tickformat": "d"},
        y={
            "title": {"text": "regret"},
            "type": "log",
            "range": [math.log10(FLOOR) - 0.08, top],
            "tickvals": list(_TICKS),
            "ticktext": [f"{tick:g} %" if tick > FLOOR else f"≤ {tick:g} %" for tick in _TICKS],
        },
    )
    drawn = theme.figure(height=110 + 190 * rows, has_legend=False, margin={"t": 54}, **panels)
    for place, one in enumerate(order):
        panel = _panel(place)
        for other in order:
            if other is not one:
                _add_line(drawn, other, theme.LINE, 1, opacity=0.4, hoverinfo="skip", **panel)
        _add_regret(drawn, one, REFERENCE if one.sampler == reference else OTHER, panel)
    return drawn


def tolerance_figure(table: TableBenchmark, reference: str, trials: int) -> theme.Figure:
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
) -> theme.Figure:
    """Draw a bar to the median and a line to the 90th percentile; `labels` is by tolerance."""
    drawn = theme.figure(
        height=110 + 58 * len(rows),
        barmode="group",
        bargap=0.25,
        legend={"y": 1.01, "traceorder": "reversed", "itemsizing": "trace"},
        **_panels(1, 2, gap=0.03, y={"title": {"text": ""}, "showgrid": False, "ticks": ""}),
    )
    for share, label in reversed(list(labels.items())):
        within = [(sampler, times[share]) for sampler, times in reversed(rows)]
        for place, end in enumerate((trials, max_s)):
            bars = _bars(within, label, end=end, is_time=place == 1)
            bars["marker"]["color"] = theme.TOLERANCES[share]
            drawn.add_trace(**bars, **_panel(place))
    drawn.layout["xaxis"] |= {"title": {"text": "trials"}, "range": [0, 1.05 * trials]}
    drawn.layout["xaxis2"] |= {"title": {"text": "seconds"}, "range": [0, 1.05 * max_s]}
    return drawn


def forest(found: Sequence[NonInferiority], margin: float) -> theme.Figure:
    """Draw mean regret differences and upper bounds, by peer and budget."""
    budgets = sorted({one.budget for one in found})
    peers = list(dict.fromkeys(one.peer for one in found))[::-1]
    drawn = theme.figure(
        height=150 + 28 * len(peers),
        margin={"t": 62},
        legend={"y": 1.0, "yref": "container", "yanchor": "top", "itemsizing": "trace"},
        **_panels(
            1,
            len(budgets),
            heads=[f"after {formatting.plural(budget, 'trial')}" for budget in budgets],
            gap=0.02,
            y={
                "categoryorder": "array",
                "categoryarray": [escape(peer) for peer in peers],
                "range": [-0.6, len(peers) - 0.4],
                "ticks": "",
            },
        ),
    )
    named: set[NonInferiorityResult] = set()
    for place, budget in enumerate(budgets):
        panel = _panel(place)
        each = [one for one in found if one.budget == budget]
        for one in each:
            _add_difference(drawn, one, panel, has_name=one.standing not in named)
            named.add(one.standing)
        for x, dash in ((0.0, "solid"), (100 * margin, "dash")):
            drawn.add_vline(x, width=1, dash=dash, color=theme.LINE, **panel)
        ends = [100 * (one.upper or one.difference) for one in each]
        starts = [100 * one.difference for one in each]
        low, high = min(*starts, 0.0), max(*ends, 100 * margin)
        # Bounds of few units are wide and may leave the figure.
        high = min(high, 2 * max(map(abs, starts)) + 1000 * margin)
        room = 0.08 * (high - low)
        axis = drawn.layout[f"xaxis{panel['xaxis'][1:]}"]
        axis |= {"title": {"text": "points"}, "range": [low - room, high + room]}
    return drawn


def rank_samplers(table: TableBenchmark, reference: str) -> list[SamplerResult]:
    """Return the reference, then the other samplers by mean regret."""
    return sorted(
        table.contestants,
        key=lambda one: (one.sampler != reference, sum(one.regret.mean)),
    )


def _panels(
    rows: int,
    columns: int,
    *,
    gap: float,
    row_gap: float = 0.0,
    heads: Sequence[str] = (),
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the layout of panels that share axis `y`, and `x` if given; outer ones bear title and labels."""
    layout: dict[str, Any] = {"annotations": []}
    width, height = (1 - gap * (columns - 1)) / columns, (1 - row_gap * (rows - 1)) / rows
    first = _panel((rows - 1) * columns)
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        panel, left = _panel(place), column * (width + gap)
        bottom = (rows - 1 - row) * (height + row_gap)
        right, top = min(left + width, 1.0), min(bottom + height, 1.0)
        for name, anchor, domain, shared, is_outer in (
            ("xaxis", "yaxis", [left, right], x, row == rows - 1),
            ("yaxis", "xaxis", [bottom, top], y, column == 0),
        ):
            axis = {"anchor": panel[anchor], "domain": domain, **(shared or {})}
            if shared and not is_outer:
                axis |= {"title": {"text": ""}, "showticklabels": False}
            if shared and panel != first:
                axis["matches"] = first[name]
            layout[f"{name}{panel[name][1:]}"] = axis
        if place < len(heads):
            at = {"x": left + width / 2, "y": top, "xanchor": "center", "yanchor": "bottom"}
            looks = {"xref": "paper", "yref": "paper", "showarrow": False, "font": {"size": 16}}
            layout["annotations"].append({"text": heads[place], **at, **looks})
    return layout


def _panel(place: int) -> dict[str, str]:
    """Return the axes of a panel as a trace names them."""
    number = place + 1 if place else ""
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def _add_line(
    drawn: theme.Figure, one: SamplerResult, colour: str, width: float, **more: Any
) -> None:
    drawn.add_trace(
        x=list(range(1, len(one.regret.median) + 1)),
        y=_floor_regrets(one.regret.median),
        mode="lines",
        line={"width": width, "color": colour, "shape": "hv"},
        **more,
    )


def _add_regret(
    drawn: theme.Figure, one: SamplerResult, colour: str, panel: dict[str, str]
) -> None:
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
    drawn: theme.Figure, one: NonInferiority, panel: dict[str, str], *, has_name: bool
) -> None:
    colour, symbol = RESULT_MARKERS[one.standing]
    style = theme.MarkerStyle(label=one.standing, colour=colour, symbol=symbol, size=10)
    y, centre = escape(one.peer), 100 * one.difference
    upper = centre if one.upper is None else 100 * one.upper
    drawn.add_trace(
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
    drawn.add_trace(
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
) -> dict[str, Any]:
    medians = [one.median_s if is_time else one.median for _, one in within]
    highs = [one.p90_s if is_time else one.p90 for _, one in within]
    above = [
        None if median is None else max(0.0, (end if high is None else high) - median)
        for median, high in zip(medians, highs, strict=True)
    ]
    below = [None if length is None else 0.0 for length in above]
    return {
        "type": "bar",
        "x": [end if median is None else median for median in medians],
        "y": [escape(sampler) for sampler, _ in within],
        "orientation": "h",
        "name": label,
        "legendgroup": label,
        "showlegend": not is_time,
        "marker": {"opacity": [PALE if median is None else 1.0 for median in medians]},
        "error_x": theme.error_bars(above, below, colour=theme.LINE, thickness=1.5, width=3),
        "text": ["not reached" if median is None else "" for median in medians],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textfont": {"size": 10, "color": theme.LINE},
        "hovertext": [_hover(one, label, is_time=is_time) for _, one in within],
        "hovertemplate": "%{y}: %{hovertext}<extra></extra>",
    }


def _hover(one: TimeToTolerance, label: str, *, is_time: bool) -> str:
    median, high = (one.median_s, one.p90_s) if is_time else (one.median, one.p90)
    unit = "s" if is_time else "trials"
    half = "not in half of the searches" if median is None else f"median {median:,.0f} {unit}"
    most = "not in nine of ten" if high is None else f"90th percentile {high:,.0f} {unit}"
    return f"{escape(label)}: {half}, {most}, reached in {formatting.percent(one.reached)}"
