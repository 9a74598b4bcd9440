"""Section on searches replayed on recorded tables.

In: the rows of that kind. Out: a `Section`. Pure.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import findings
import svg
from records import Row
from result import Table
from sections import SEARCHES, SHORT, Section, ratio_text


def replays(data: Sequence[Row]) -> Section:
    """Replayed searches on recorded tables, whose true values are known."""
    panels, rows, told = [], [], []
    for name, each in itertools.groupby(data, key=lambda row: row["unit"]["model"]):
        blocks = list(each)
        regrets = {
            sampler: [pair for block in blocks for pair in block["regrets"][sampler]]
            for sampler in SEARCHES
        }
        repeats = [pair for block in blocks for pair in block["repeated"]]
        seeds = len(repeats)
        gain = findings.joined(
            [
                (1 + random[1]) / (1 + guided[1])
                for random, guided in zip(regrets["random"], regrets["gpy"], strict=True)
            ]
        )
        half = findings.joined(
            [
                (1 + random[0]) / (1 + guided[1])
                for random, guided in zip(regrets["random"], regrets["gpy"], strict=True)
            ]
        )
        told.append(f"{name} {ratio_text(gain)}")
        means = [
            f"{100 * statistics.fmean(pair[1] for pair in each):.1f}" for each in regrets.values()
        ]
        rows.append(
            (
                name,
                f"{seeds}",
                *means,
                ratio_text(gain),
                ratio_text(half),
                (
                    f"{100 * statistics.fmean(regret for _, regret in repeats):.1f} after "
                    f"{statistics.fmean(count for count, _ in repeats):.0f}"
                ),
            )
        )
        panel = svg.Panel(
            name,
            svg.named("sampler", [SHORT.get(one, one) for one in SEARCHES]),
            svg.linear(
                "regret after all trials, %", [100 * p[1] for e in regrets.values() for p in e]
            ),
        )
        for place, (sampler, pairs) in enumerate(regrets.items()):
            ordered = sorted(100 * pair[1] for pair in pairs)
            five = [ordered[round(q * (seeds - 1))] for q in (0.05, 0.25, 0.5, 0.75, 0.95)]
            panel.box(place, five, SEARCHES[sampler])
        panels.append(panel)
    return Section(
        name="i_replays",
        title="The same searches, replayed on recorded tables",
        claim="as above; many seeds, and true values instead of measured ones",
        short=f"gain of GPy over random: {'; '.join(told)}",
        sure="95 % intervals over seeds; replays of recorded launches, not measured again",
        picture=svg.picture(panels, columns=2),
        tables=(
            Table(
                title="Regret after all trials, %, and the true mean of random's choice over that of GPy's",
                head=(
                    "table",
                    "seeds",
                    *SEARCHES,
                    "random / gpy",
                    "random, half / gpy",
                    "until the optimum stays",
                ),
                rows=rows,
            ),
        ),
    )
