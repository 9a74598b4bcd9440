"""Figures as plain data, their colours, marker symbols and Plotly templates.

The colours suit colour-vision deficiencies (Okabe and Ito, 2008) and both backgrounds. The page
applies `LIGHT` or `DARK`, as the reader's system is set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class MarkerStyle:
    """The look of one kind of trial."""

    label: str
    colour: str
    symbol: str
    size: int = 9


MARKS = {
    "default": MarkerStyle("default", "#D55E00", "diamond", 13),
    "initial": MarkerStyle("initial design", "#56A5D8", "circle-open", 9),
    "guided": MarkerStyle("guided", "#0072B2", "circle", 9),
    "replicate": MarkerStyle("repeated evaluation", "#E69F00", "square-open", 9),
    "check": MarkerStyle("checked again", "#999999", "square-open", 9),
    "best": MarkerStyle("best", "#009E73", "star", 15),
    "infeasible": MarkerStyle("infeasible", "#CC79A7", "x-thin", 9),
    "failed": MarkerStyle("failed", "#CC79A7", "triangle-down-open", 9),
}

SAMPLERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56A5D8")

DASHES = ("solid", "dash", "dot", "dashdot")

TOLERANCES = {0.10: "#9ecae1", 0.05: "#4292c6", 0.03: "#084594"}
"""Colours by tolerance, a share of the best; tighter is darker."""

SCALE = ("#2A6FB5", "#7A8798", "#C08A00")
"""Colours from blue through grey to gold."""

LINE = "#8b949e"

CLEAR = "rgba(0,0,0,0)"

HOVER = "%{text}<extra></extra>"
"""Hover template that shows `text` alone."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """Layout and traces as Plotly's script takes them; Plotly's Python checks are far slower than the rest."""

    layout: dict[str, Any]
    data: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add_trace(self, **trace: Any) -> None:
        """Add lines or markers, or what `type` names."""
        self.data.append({"type": "scatter", **trace})

    def add_vline(self, x: float, *, xaxis: str = "x", yaxis: str = "y", **line: Any) -> None:
        """Add an upright line over the whole height of a panel."""
        ends = {"x0": x, "x1": x, "xref": xaxis, "y0": 0, "y1": 1, "yref": f"{yaxis} domain"}
        self.layout.setdefault("shapes", []).append({"type": "line", "line": line, **ends})


def mark(kind: str) -> MarkerStyle:
    """Return the marker of an origin, arm or outcome, or that of guided trials if it is unknown."""
    return MARKS.get(kind) or dataclasses.replace(MARKS["guided"], label=kind)


def _template(*, ink: str, grid: str, line: str, card: str, veil: str) -> dict[str, Any]:
    axis = {
        "gridcolor": grid,
        "linecolor": line,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": line,
        "ticklen": 4,
        "showline": True,
        "automargin": True,
        "title": {"standoff": 10},
    }
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "align": "left",
                "bgcolor": card,
                "bordercolor": line,
                "font": {"family": FONT, "size": 12, "color": ink},
            },
            "modebar": {"bgcolor": CLEAR, "color": line, "activecolor": ink},
            "annotationdefaults": {"bgcolor": veil, "borderpad": 1},
            "colorway": list(SAMPLERS),
        }
    }


LIGHT = _template(
    ink="#24292f", grid="#e6e9ed", line=LINE, card="#ffffff", veil="rgba(255,255,255,0.75)"
)
DARK = _template(
    ink="#d5dae0", grid="#30363d", line="#768390", card="#22272e", veil="rgba(20,24,29,0.75)"
)


def marker(style: MarkerStyle, *, width: float = 0.0, **changes: Any) -> dict[str, Any]:
    """Return a trace's `marker`, with an outline of `width` pixels."""
    line = {"width": width, "color": style.colour}
    shape = {"symbol": style.symbol, "size": style.size, "color": style.colour, "line": line}
    return shape | changes


def error_bars(
    above: Sequence[float | None],
    below: Sequence[float | None],
    *,
    colour: str,
    thickness: float,
    width: float,
) -> dict[str, Any]:
    """Return a trace's error bars from their lengths."""
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "thickness": thickness,
        "width": width,
        "color": colour,
    }


def add_band(
    drawn: Figure,
    x: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    colour: str,
    opacity: float,
    **common: Any,
) -> None:
    """Fill the steps between `low` and `high`; `common` holds properties for both traces."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    common |= {"x": x, "mode": "lines", "line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip"}
    drawn.add_trace(y=low, **common)
    fill = f"rgba({red},{green},{blue},{opacity})"
    drawn.add_trace(y=high, fill="tonexty", fillcolor=fill, **common)


def figure(
    *,
    height: int,
    has_legend: bool = True,
    margin: Mapping[str, int] | None = None,
    legend: Mapping[str, Any] | None = None,
    **layout: Any,
) -> Figure:
    """Return an empty figure; `margin` and `legend` override single properties."""
    above = {
        "orientation": "h",
        "x": 0,
        "y": 1.02,
        "yanchor": "bottom",
        "xanchor": "left",
        "bgcolor": CLEAR,
        "itemsizing": "constant",
    }
    return Figure(
        {
            "height": height,
            "margin": {"l": 64, "r": 16, "t": 16, "b": 48, **(margin or {})},
            "showlegend": has_legend,
            "legend": above | dict(legend or {}),
            "hovermode": "closest",
            **layout,
        }
    )
