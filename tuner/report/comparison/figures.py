"""Figures of a sampler comparison: best so far by trial, and the winners' re-evaluations.

A sampler keeps its colour and dash in every figure.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.metrics import objective as objectives
from tuner.report import formatting, theme
from tuner.report.axes import escape, log_axis
from tuner.values.sampler_comparison import ComparisonRecord, SamplerRun

MIN_FOR_QUARTILES = 4
"""Minimum number of runs for quartiles; with fewer, the band is the range."""

Array = NDArray[np.float64]


def style(record: ComparisonRecord, sampler: str) -> tuple[str, str]:
    """Return a sampler's colour and dash."""
    index = record.samplers.index(sampler)
    return (
        theme.SAMPLERS[index % len(theme.SAMPLERS)],
        theme.DASHES[index // len(theme.SAMPLERS) % len(theme.DASHES)],
    )


def runs_of(record: ComparisonRecord, sampler: str) -> tuple[SamplerRun, ...]:
    """Return a sampler's runs by repeat."""
    chosen = (run for run in record.runs if run.sampler == sampler)
    return tuple(sorted(chosen, key=lambda run: run.repeat))


def curves(record: ComparisonRecord, sampler: str) -> Array:
    """Return best values so far (runs, trials): NaN before the first; ended runs keep the last."""
    runs = runs_of(record, sampler)
    length = max((len(run.best_so_far) for run in record.runs), default=0)
    table = np.full((len(runs), length), np.nan)
    for row, run in zip(table, runs, strict=True):
        for index, value in enumerate(run.best_so_far):
            row[index] = np.nan if value is None else value
        if run.best_so_far and run.best_so_far[-1] is not None:
            row[len(run.best_so_far) :] = run.best_so_far[-1]
    return table


def spread(table: Array) -> tuple[Array, Array, Array]:
    """Return (low, median, high) at each trial: quartiles, or the full range of up to three runs.

    NaN where any run has no value yet.
    """
    shares = (0.25, 0.5, 0.75) if len(table) >= MIN_FOR_QUARTILES else (0.0, 0.5, 1.0)
    low, middle, high = np.quantile(table, shares, axis=0) if len(table) else np.empty((3, 0))
    return low, middle, high


def best_so_far(record: ComparisonRecord) -> theme.Figure:
    """Draw each sampler's runs, their median and band."""
    objective = objectives.find_objective(record.objective)
    drawn = theme.figure(height=460)
    tables = {sampler: curves(record, sampler) for sampler in record.samplers}
    for sampler, table in tables.items():
        _add_median(drawn, record, sampler, table)
    for sampler, table in tables.items():  # above the bands, which would hide them
        name, (colour, _) = escape(sampler), style(record, sampler)
        for run, row in zip(runs_of(record, sampler), table, strict=True):
            told = f"{name}, repeat {run.repeat}: %{{y:.4g}} after %{{x}} trials<extra></extra>"
            drawn.add_trace(
                x=np.arange(1, len(row) + 1).tolist(),
                y=[None if np.isnan(value) else float(value) for value in row],
                mode="lines",
                line={"width": 1, "color": colour, "shape": "hv"},
                opacity=0.8,
                showlegend=False,
                legendgroup=name,
                hovertemplate=told,
            )
    values = np.concatenate([table.ravel() for table in tables.values()] or [np.empty(0)])
    drawn.layout.update(
        xaxis={"title": {"text": "trials done"}, "tickformat": "d"},
        yaxis=log_axis(values.tolist(), f"best {objective.axis} so far"),
    )
    if max((table.shape[1] for table in tables.values()), default=0) <= 10:
        drawn.layout["xaxis"]["dtick"] = 1
    return drawn


def winners(record: ComparisonRecord) -> theme.Figure | None:
    """Draw the winners' re-evaluations, if there are any."""
    objective = objectives.find_objective(record.objective)
    drawn = theme.figure(height=130 + 70 * len(record.samplers), has_legend=False)
    values: list[float] = []
    for row, sampler in enumerate(record.samplers):
        colour, _ = style(record, sampler)
        points = [(run, one) for run in runs_of(record, sampler) for one in run.remeasured]
        if not points:
            continue
        found = [objective.value(measured) for _, measured in points]
        values += found
        drawn.add_trace(
            x=found,
            y=[row + 0.3 * (run.repeat + 1) / (record.repeats + 1) - 0.15 for run, _ in points],
            mode="markers",
            marker={"size": 8, "color": colour, "opacity": 0.55},
            text=[_winner_hover(run) for run, _ in points],
            hovertemplate="%{x:.4g} " + objective.unit + "<br>%{text}<extra></extra>",
        )
        upright = theme.MarkerStyle(label="", colour=colour, symbol="line-ns-open", size=40)
        drawn.add_trace(
            x=[float(np.exp(np.mean(np.log(found))))],
            y=[row],
            mode="markers",
            marker=theme.marker(upright, width=3),
            hovertemplate="geometric mean %{x:.4g} " + objective.unit + "<extra></extra>",
        )
    if not values:
        return None
    drawn.layout.update(
        xaxis=log_axis(values, objective.axis),
        yaxis={
            "tickvals": list(range(len(record.samplers))),
            "ticktext": [escape(sampler) for sampler in record.samplers],
            "range": [len(record.samplers) - 0.5, -0.5],
            "showgrid": False,
            "title": {"text": ""},
        },
    )
    return drawn


def _add_median(drawn: theme.Figure, record: ComparisonRecord, sampler: str, table: Array) -> None:
    name, (colour, dash) = escape(sampler), style(record, sampler)
    low, middle, high = spread(table)
    is_known = ~np.isnan(middle)
    x = (np.flatnonzero(is_known) + 1).tolist()
    if not x:
        return
    low, middle, high = (ends[is_known].tolist() for ends in (low, middle, high))
    theme.add_band(drawn, x, low, high, colour, 0.15, legendgroup=name, showlegend=False)
    drawn.add_trace(
        x=x,
        y=middle,
        mode="lines",
        line={"width": 3, "color": colour, "dash": dash, "shape": "hv"},
        name=f"{name}, median of {formatting.plural(len(table), 'run')}",
        legendgroup=name,
        hovertemplate=f"{name}, median: %{{y:.4g}} after %{{x}} trials<extra></extra>",
    )


def _winner_hover(run: SamplerRun) -> str:
    lines = [f"{run.sampler}, repeat {run.repeat}"]
    lines += [f"{name} = {formatting.knob_value(v)}" for name, v in (run.winner or {}).items()]
    return "<br>".join(map(escape, lines))
