"""Picture of the page: mean regret against time, ours, the oracle's and peers'.

In: what `measure.py` has kept. Out: the text of a picture. Measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import measure
import svg
from replayed_case import ReplayedCase

SHOWN = ("structured", "hill-climb", "random", "tpe", "optuna-gp", "smac")
"""Samplers with a line, one for each colour; the oracle has a grey one."""
BOUND = "oracle"


def regrets(cases: Sequence[ReplayedCase]) -> str | None:
    """Draw mean regrets over main cases, over all and over those that judge; None without data."""
    main = [case for case in cases if case.facts["is_main"]]
    halves = {"all recordings": main, "judges": [case for case in main if case.is_judged]}
    panels = [panel for name, half in halves.items() if (panel := _panel(name, half))]
    return svg.picture(panels, columns=2) if panels else None


def _panel(name: str, cases: Sequence[ReplayedCase]) -> svg.Panel | None:
    lines = {who: _line(cases, who) for who in (*SHOWN, BOUND)}
    values = [value for line in lines.values() for _, value in line]
    if not values:
        return None
    seconds = svg.listed(
        "seconds, starts and warm-up included", [s for s in measure.AT_S if s != 53]
    )
    panel = svg.Panel(
        f"{name}, mean of {len(cases)}",
        seconds,
        svg.linear("regret of what is recommended, %", values),
    )
    for who, colour in zip((*SHOWN, BOUND), (*svg.COLOURS, svg.GREY), strict=True):
        if lines[who]:
            panel.line(lines[who], colour, dashed=who == BOUND, name=who)
    return panel


def _line(cases: Sequence[ReplayedCase], sampler: str) -> list[tuple[float, float]]:
    """Return time in s and mean regret in % where it is known of every case."""
    found = [(at_s, [case.regret(sampler, at_s) for case in cases]) for at_s in measure.AT_S]
    return [
        (at_s, 100 * statistics.fmean(known))
        for at_s, each in found
        if (known := [one for one in each if one is not None]) and len(known) == len(each)
    ]
