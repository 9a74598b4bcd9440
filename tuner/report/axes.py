"""Axes of figures: ticks of log axes, and positions of a knob's values.

Plotly labels short log axes poorly and cannot show zero, which lies one step left of a log knob's
smallest positive value here. Choices are placed at their index.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tuner.report import formatting
from tuner.values.configuration import Value
from tuner.values.study_record import KnobInfo

_STEPS = (
    (1.0,),
    (1.0, 3.0),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
)
MAX_TICKS = 9


def escape(text: str) -> str:
    """Escape a string for Plotly, which interprets tags in labels."""
    return html.escape(text, quote=False)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round ticks in [low, high], both positive, preferably at least four."""
    best: list[float] = []
    for steps in _STEPS:
        decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) <= MAX_TICKS or not best:
            best = ticks
        if len(best) >= 4:
            return best
    return best if len(best) >= 3 else _even_ticks(low, high)


def _even_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 4 or low / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [index * step for index in range(first, last + 1) if index > 0]


def log_axis(values: Iterable[float], title: str, *, pad: float = 0.06) -> dict[str, Any]:
    """Return a padded log axis around the positive values, or a linear axis without any."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return {"title": {"text": title}, "range": [0, 1], "showticklabels": False}
    low, high = math.log10(min(known)), math.log10(max(known))
    room = max(pad * (high - low), 0.02)
    low, high = low - room, high + room
    ticks = log_ticks(10**low, 10**high)
    return {
        "title": {"text": title},
        "type": "log",
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": [f"{tick:,.6g}" for tick in ticks],
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnobAxis:
    """Positions and labels of a knob's values."""

    positions: dict[Value, float]
    labels: dict[Value, str]
    has_words: bool = False

    @property
    def span(self) -> float:
        """Distance between the outermost positions; 1 for a single value."""
        places = self.positions.values()
        return (max(places) - min(places)) or 1.0

    def visible_values(self, *, gap: float, letter: float = 0.0) -> list[Value]:
        """Return values whose labels fit, including both ends.

        Args:
            gap: minimum distance between labels, as a share of the axis.
            letter: width of a letter in the same unit; 0 for stacked labels.
        """
        order = sorted(self.positions, key=self.positions.__getitem__)
        last = order[-1]
        kept: list[Value] = []

        def fits(value: Value, other: Value) -> bool:
            needed = gap + letter * (len(self.labels[value]) + len(self.labels[other])) / 2
            distance = abs(self.positions[value] - self.positions[other])
            return distance >= needed * self.span or self.has_words

        for value in order[:-1]:
            if not kept or (fits(value, kept[-1]) and fits(value, last)):
                kept.append(value)
        return [*kept, last]

    def axis(self, title: str) -> dict[str, Any]:
        """Return a horizontal Plotly axis for a width of about 300 pixels."""
        shown = self.visible_values(gap=0.022, letter=0.024)
        low, high = min(self.positions.values()), max(self.positions.values())
        room = (0.35 if self.has_words else 0.08) * self.span
        return {
            "title": {"text": title},
            "type": "linear",
            "range": [low - room, high + room],
            "tickangle": 0,
            "ticklabeloverflow": "allow",
            "tickvals": [self.positions[value] for value in shown],
            "ticktext": [self.labels[value] for value in shown],
        }


def knob_axis(knob: KnobInfo, values: Sequence[Value]) -> KnobAxis:
    """Return an axis that covers a knob's grid and further values."""
    every = list(dict.fromkeys((*knob.values, *values)))
    labels = {value: escape(formatting.knob_value(value)) for value in every}
    numbers = [v for v in every if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(every):
        indices = {value: float(index) for index, value in enumerate(every)}
        return KnobAxis(positions=indices, labels=labels, has_words=True)
    if knob.scale == "log" and any(number > 0 for number in numbers):
        logs = {number: math.log10(number) for number in numbers if number > 0}
        places = sorted(logs.values())
        step = (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else 0.3
        off = places[0] - step
        return KnobAxis(positions={n: logs.get(n, off) for n in numbers}, labels=labels)
    return KnobAxis(positions={number: float(number) for number in numbers}, labels=labels)
