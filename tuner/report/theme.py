"""Colours, marker symbols and Plotly templates of all figures.

The colours suit colour-vision deficiencies (Okabe and Ito, 2008) and both backgrounds. The page
applies `LIGHT` or `DARK` by the reader's system.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import plotly.graph_objects as go


@dataclasses.dataclass(frozen=True, slots=True)
class MarkerStyle:
    """How one kind of trial is drawn."""

    label: str
    colour: str
    symbol: str
    size: int = 9


MARKS = {
    "default": MarkerStyle("default", "#D55E00", "diamond", 13),
    "initial": MarkerStyle("initial design", "#56A5D8", "circle-open", 9),
    "guided": MarkerStyle("guided", "#0072B2", "circle", 9),
    "replicate": MarkerStyle("repeated launch", "#E69F00", "square-open", 9),
    "check": MarkerStyle("checked again", "#999999", "square-open", 9),
    "best": MarkerStyle("best", "#009E73", "star", 15),
    "infeasible": MarkerStyle("infeasible", "#CC79A7", "x-thin", 9),
    "failed": MarkerStyle("failed", "#CC79A7", "triangle-down-open", 9),
}

SAMPLERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56A5D8")
DASHES = ("solid", "dash", "dot", "dashdot")

TOLERANCES = {0.10: "#9ecae1", 0.05: "#4292c6", 0.03: "#084594"}
"""Tolerances as shares of the best; tighter is darker."""

SCALE = ("#2A6FB5", "#7A8798", "#C08A00")
"""Blue over grey to gold."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def mark(kind: str) -> MarkerStyle:
    """Origin's, arm's or outcome's marker; unknown ones look guided."""
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
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "align": "left",
                "bgcolor": card,
                "bordercolor": line,
                "font": {"family": FONT, "size": 12, "color": ink},
            },
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": line, "activecolor": ink},
            "annotationdefaults": {"bgcolor": veil, "borderpad": 1},
            "colorway": list(SAMPLERS),
        }
    }


LIGHT = _template(
    ink="#24292f", grid="#e6e9ed", line="#8b949e", card="#ffffff", veil="rgba(255,255,255,0.75)"
)
DARK = _template(
    ink="#d5dae0", grid="#30363d", line="#768390", card="#22272e", veil="rgba(20,24,29,0.75)"
)


def figure(*, height: int, has_legend: bool = True, **layout: Any) -> go.Figure:
    """Empty light figure with its legend above the plot.

    The layout is set at once, as Plotly checks the template at each update.
    """
    legend = {
        "orientation": "h",
        "x": 0,
        "y": 1.02,
        "yanchor": "bottom",
        "xanchor": "left",
        "bgcolor": "rgba(0,0,0,0)",
        "itemsizing": "constant",
    }
    return go.Figure(
        layout={
            "template": LIGHT,
            "height": height,
            "margin": {"l": 64, "r": 16, "t": 16, "b": 48},
            "showlegend": has_legend,
            "legend": legend,
            "hovermode": "closest",
            **layout,
        }
    )
