"""Numbers, intervals and knob values as readable text."""

from __future__ import annotations

import math
import textwrap

from tuner.metrics.tail_latency import TailLatency
from tuner.values.configuration import Value
from tuner.values.interval import Interval


def number(value: float | None) -> str:
    """Format three significant digits: 0.0345, 16.0, 1,234; "–" if unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 100:
        return f"{value:,.0f}"
    if abs(rounded) < 1e-4:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}"


def quantity(value: float | None, unit: str) -> str:
    """Format a number with its unit."""
    return f"{number(value)} {unit}".strip() if value is not None else "–"


def interval(ends: Interval) -> str:
    """Format an interval, or name its unknown end."""
    if ends.low is None and ends.high is None:
        return "not known"
    if ends.low is None:
        return f"up to {number(ends.high)}, no lower end"
    if ends.high is None:
        return f"from {number(ends.low)}, no upper end"
    return f"{number(ends.low)} to {number(ends.high)}"


def tail(found: TailLatency) -> str:
    """Format a p99 with interval and effective requests; "–" if not reportable."""
    if not found.is_reportable:
        return "–"
    return f"{number(found.value_ms)} {tail_spread(found)}"


def tail_spread(found: TailLatency) -> str:
    """Format a p99's interval and effective requests."""
    return f"({interval(found.interval)}; n {found.effective:,.0f})"


def ratio(value: float, ends: Interval) -> str:
    """Format a ratio with its interval, or report too few pairs."""
    return f"× {number(value)} ({'too few pairs to tell' if ends.is_vague else interval(ends)})"


LEAST_SHARE = 0.0005
"""Smallest share that `percent` does not round to 0 %."""


def percent(share: float) -> str:
    """Format a share as a percentage: 0.034 -> 3.4 %."""
    shown = share * 100
    return f"{shown:.0f} %" if abs(shown) >= 10 or shown == 0 else f"{shown:.1f} %"


def knob_value(value: Value | None) -> str:
    """Format a knob's value as in a settings file; "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def knob_label(name: str, unit: str) -> str:
    """Format a knob's name with its unit in brackets."""
    return f"{name} ({unit})" if unit else name


def duration(seconds: float) -> str:
    """Format seconds: 12 s, 3 min 5 s, 2 h 4 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{number(seconds)} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: 1 trial, 2 trials, 2 searches."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"


def trials(trials: float | None) -> str:
    """Format a number of trials; None is "not reached"."""
    return "not reached" if trials is None else f"{trials:.0f}"


def wrap(text: str, width: int = 60) -> list[str]:
    """Return lines of at most `width` characters; longer words are cut."""
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)
