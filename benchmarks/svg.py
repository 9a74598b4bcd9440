"""Small pictures in SVG: panels with axes, points, lines, boxes. Plain text, so that a change shows.

In: numbers in the axes' own units. Out: the text of a picture. Knows nothing of what is drawn.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Those of Okabe and Ito, which the colour-blind can tell apart."""
GREY = "#888888"
WIDTH, HEIGHT = 300, 210
"""Of a panel's inside."""
LEFT, TOP, RIGHT, BOTTOM = 64, 34, 16, 46
"""Room around it."""
LEGEND = 16
"""Height of a row of the legend, which stands under the panel."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range with ticks; `labels` replace the numbers where they are given."""

    title: str
    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...] = ()
    is_log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def texts(self) -> tuple[str, ...]:
        """What stands at the ticks."""
        return self.labels or tuple(f"{tick:,.6g}" for tick in self.ticks)


def linear(title: str, values: Iterable[float], *, from_zero: bool = True) -> Axis:
    """An axis over the values, with some five round ticks."""
    known = [value for value in values if math.isfinite(value)]
    low, high = (0.0 if from_zero else min(known)), max(known)
    room = 0.05 * ((high - low) or abs(high) or 1.0)
    low, high = (low if from_zero else low - room), high + room
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    ticks = tuple(index * step for index in range(first, math.floor(high / step + 1e-9) + 1))
    return Axis(title=title, low=low, high=high, ticks=ticks)


def listed(title: str, values: Sequence[float], *, is_log: bool = False) -> Axis:
    """An axis with a tick at each value; several values, ascending and, if log, above 0."""
    if is_log:
        room = (values[-1] / values[0]) ** 0.05
        low, high = values[0] / room, values[-1] * room
    else:
        room = 0.05 * (values[-1] - values[0])
        low, high = values[0] - room, values[-1] + room
    return Axis(title=title, low=low, high=high, ticks=tuple(values), is_log=is_log)


def named(title: str, names: Sequence[str]) -> Axis:
    """An axis of places 0, 1, 2, ... with a name each."""
    ticks = tuple(float(place) for place in range(len(names)))
    return Axis(title=title, low=-0.6, high=len(names) - 0.4, ticks=ticks, labels=tuple(names))


class Panel:
    """One pair of axes; everything drawn is cut at its edges."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._title = title
        self._x = x
        self._y = y
        self._parts: list[str] = []
        self._legend: list[tuple[str, str]] = []

    @property
    def legend_rows(self) -> int:
        """How many names it has to explain."""
        return len(self._legend)

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        dashed: bool = False,
        name: str = "",
    ) -> None:
        """Points joined by a line; a name makes a row of the legend."""
        path = " ".join(f"{self._at_x(x):.1f},{self._at_y(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'
        )
        if name:
            self._legend.append((name, colour))

    def dots(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        radius: float = 3.0,
        opacity: float = 1.0,
        name: str = "",
    ) -> None:
        """Points; a name makes a row of the legend."""
        marks = "".join(
            f'<circle cx="{self._at_x(x):.1f}" cy="{self._at_y(y):.1f}" r="{radius:g}"/>'
            for x, y in points
        )
        self._parts.append(f'<g fill="{colour}" fill-opacity="{opacity:g}">{marks}</g>')
        if name:
            self._legend.append((name, colour))

    def bar(self, x: float, low: float, high: float, colour: str) -> None:
        """An interval at x."""
        at, bottom, top = self._at_x(x), self._at_y(low), self._at_y(high)
        self._parts.append(
            f'<path d="M{at:.1f} {bottom:.1f}V{top:.1f}M{at - 4:.1f} {bottom:.1f}h8M{at - 4:.1f} '
            f'{top:.1f}h8" stroke="{colour}" stroke-width="1.4" fill="none"/>'
        )

    def level(self, y: float, colour: str, text: str = "") -> None:
        """A line from side to side, with words at its right end."""
        at = self._at_y(y)
        self._parts.append(
            f'<path d="M0 {at:.1f}H{WIDTH}" stroke="{colour}" stroke-dasharray="5 4" fill="none"/>'
        )
        if text:
            below = 14 if at < 16 else -4
            self._parts.append(
                f'<text x="{WIDTH - 4}" y="{at + below:.1f}" text-anchor="end" fill="{colour}" '
                f'stroke="white" stroke-width="3" paint-order="stroke">{html.escape(text)}</text>'
            )

    def mark(self, x: float, text: str) -> None:
        """A vertical line with words at its foot."""
        at = self._at_x(x)
        self._parts.append(
            f'<path d="M{at:.1f} 0V{HEIGHT}" stroke="{GREY}" stroke-dasharray="2 3" fill="none"/>'
            f'<text x="{at + 4:.1f}" y="{HEIGHT - 6}" fill="{GREY}">{html.escape(text)}</text>'
        )

    def box(self, x: float, five: Sequence[float], colour: str) -> None:
        """A box plot at x: whisker, quartile, median, quartile, whisker, ascending."""
        ends = [self._at_y(value) for value in five]
        middle = self._at_x(x)
        half = 0.3 * (self._at_x(x + 1) - middle)
        left, right = middle - half, middle + half
        self._parts.append(
            f'<g stroke="{colour}" stroke-width="1.6" fill="none">'
            f'<path d="M{middle:.1f} {ends[0]:.1f}V{ends[1]:.1f}M{middle:.1f} {ends[3]:.1f}V{ends[4]:.1f}'
            f"M{left + half / 2:.1f} {ends[0]:.1f}h{half:.1f}M{left + half / 2:.1f} {ends[4]:.1f}"
            f'h{half:.1f}"/>'
            f'<rect x="{left:.1f}" y="{ends[3]:.1f}" width="{right - left:.1f}" '
            f'height="{ends[1] - ends[3]:.1f}" fill="{colour}" fill-opacity="0.2"/>'
            f'<path d="M{left:.1f} {ends[2]:.1f}H{right:.1f}" stroke-width="2.6"/></g>'
        )

    def text(self, number: int) -> str:
        """The panel as SVG around its own origin; `number` makes its clip path unique."""
        # Left of the widest number, where a digit is some 6 wide.
        title_at = max(44, 14 + 6 * max(map(len, self._y.texts()), default=0))
        inside = f'<clipPath id="p{number}"><rect width="{WIDTH}" height="{HEIGHT}"/></clipPath>'
        parts = [
            inside,
            f'<text x="0" y="-12" font-weight="bold">{html.escape(self._title)}</text>',
        ]
        for tick, label in zip(self._y.ticks, self._y.texts(), strict=True):
            at = self._at_y(tick)
            parts.append(
                f'<path d="M0 {at:.1f}H{WIDTH}" stroke="#ddd"/>'
                f'<text x="-6" y="{at + 4:.1f}" text-anchor="end">{html.escape(label)}</text>'
            )
        for tick, label in zip(self._x.ticks, self._x.texts(), strict=True):
            parts.append(
                f'<text x="{self._at_x(tick):.1f}" y="{HEIGHT + 16}" text-anchor="middle">'
                f"{html.escape(label)}</text>"
            )
        parts += [
            f'<text x="{WIDTH / 2}" y="{HEIGHT + 34}" text-anchor="middle">{html.escape(self._x.title)}</text>',
            (
                f'<text transform="translate({-title_at} {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
                f"{html.escape(self._y.title)}</text>"
            ),
            f'<g clip-path="url(#p{number})">',
            *self._parts,
            "</g>",
            f'<path d="M0 0V{HEIGHT}H{WIDTH}" stroke="#444" fill="none"/>',
        ]
        for row, (name, colour) in enumerate(self._legend):
            at = HEIGHT + BOTTOM + LEGEND * row
            parts.append(
                f'<circle cx="10" cy="{at}" r="4" fill="{colour}"/>'
                f'<text x="19" y="{at + 4}">{html.escape(name)}</text>'
            )
        return "\n".join(parts)

    def _at_x(self, value: float) -> float:
        return WIDTH * self._x.place(value)

    def _at_y(self, value: float) -> float:
        return HEIGHT * (1 - self._y.place(value))


def picture(panels: Sequence[Panel], *, columns: int) -> str:
    """Panels in rows, left to right."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    legend = LEGEND * max(panel.legend_rows for panel in panels)
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM + legend
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * width} {rows * height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{columns * width}" height="{rows * height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        left, top = column * width + LEFT, row * height + TOP
        parts += [f'<g transform="translate({left} {top})">', panel.text(number), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"
