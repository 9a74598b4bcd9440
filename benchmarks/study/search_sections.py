"""Sections on the searches as measured: one for each question.

In: the rows of a kind. Out: `Section`s. Pure.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import findings
import svg
from findings import Ratio
from records import Row, name_of
from result import Table
from sections import COLUMNS, GUIDED, SEARCHES, SHORT, Section, knobs_of, ratio_text

from tuner.report import formatting

HALF = svg.COLOURS[4]
ROLES = ("default", "random, half", *SEARCHES)
SIDES = (5, 20)
"""Up to the first a concurrency is low, from the second on high."""
FIGURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda one: one[0],
    "spread": lambda one: one[2] - one[1],
}
"""Of a round's mean, p5, p95 and p99: what is compared."""


def progress(data: Sequence[Row]) -> Section:
    """The best so far, trial by trial, of the first search at 20."""
    panels, rows = [], []
    better = count = 0
    for one in data:
        lines = {
            name: findings.best_so_far(found["objectives"])
            for name, found in one["searches"].items()
        }
        half = one["trials"] // 2
        better += lines["gpy"][-1] < lines["gpy"][half - 1]
        count += 1
        for name, line in lines.items():
            cells = (formatting.number(line[i - 1]) for i in (1, half, one["trials"]))
            rows.append((_load(one), name, *cells, str(_reached(line))))
        if one["unit"]["concurrency"] != 20 or one["unit"]["seed"]:
            continue
        ends = [2 * line[-1] for line in lines.values() if math.isfinite(line[-1])]
        x = svg.linear("trial", [one["trials"]])
        panel = svg.Panel(_load(one), x, svg.linear("mean round trip, ms", ends))
        for name, line in lines.items():
            panel.line(_steps(line), SEARCHES[name], name=f"best so far: {name}")
        panel.mark(half + 0.5, "GPy guided from here")
        panels.append(panel)
    return Section(
        name="c_progress",
        title="Progress of the searches",
        claim="after the random half, guided trials go on getting better",
        short=f"GPy saw a better value in its guided half in {better} of {count} searches",
        sure="the best of many single measurements is also the luckiest",
        found=("What the winners are worth is in the next section.",),
        picture=svg.picture(panels, columns=COLUMNS) if panels else None,
        tables=(
            Table(
                title="Best mean round trip seen, ms",
                head=("search", "sampler", "first trial", "half", "end", "within 5 % at trial"),
                rows=rows,
                left=2,
            ),
        ),
    )


def gains(data: Sequence[Row]) -> Section:
    """Random over guided against the concurrency, as the study compared them and fairly."""
    known = [
        (one, fair)
        for one in data
        if one["unit"]["client_batch"] == 1 and (fair := _mean_ratio(one, "random", "gpy"))
    ]
    panels, pooled = [], []
    rows, trends = [], []
    for name, each in itertools.groupby(known, key=lambda pair: name_of(pair[0])):
        units = list(each)
        fair = [(one["unit"]["concurrency"], ratio.value) for one, ratio in units]
        middle = statistics.geometric_mean([value for _, value in fair])
        pooled += [(n, value / middle) for n, value in fair]
        panels.append(_gain_panel(name, units))
        trends.append(_trend_row(name, fair))
        rows += [
            (
                _load(one),
                *(
                    ratio_text(ratio)
                    for second in ("gpy", "epsilon-greedy", "structured")
                    for ratio in [_mean_ratio(one, "random", second)]
                ),
                ratio_text(_mean_ratio(one, "random, half", "gpy")),
                "–" if (seen := findings.as_studied(one)) is None else f"{seen:.3g}",
                ratio_text(_mean_ratio(one, "default", "structured")),
            )
            for one, _ in units
        ]
    trends.append(_trend_row("all, each over its own mean", pooled))
    found = [_tally(known, role) for role in ("gpy", "epsilon-greedy", "structured")]
    low, high = _sides([(one["unit"]["concurrency"], ratio.value) for one, ratio in known])
    difference = findings.apart(high, low)
    short = "too few searches"
    if difference is not None:
        short = (
            f"gain of GPy over random at high concurrency over that at low: {ratio_text(difference)}; "
            + ("it rises", "no difference shown", "it falls")[1 - difference.outcome]
        )
    found.append(
        "The study contradicts itself: its introduction finds the gain largest where the concurrency is low, its "
        f"abstract and its conclusion where it is high. Here (low: up to {SIDES[0]}; high: from {SIDES[1]} on; "
        f"{len(low)} and {len(high)} searches): {short}."
    )
    return Section(
        name="d_gains",
        title="Gain of the guided over the random search",
        claim="Bayesian optimisation beats random search, and the more, the higher the concurrency (abstract, "
        "conclusion), or the lower (introduction)",
        short=f"{_tally(known, 'gpy')} {short[0].upper()}{short[1:]}",
        sure=f"{len(known)} searches with 50 trials each; 95 % intervals over searches",
        found=(
            *found,
            (
                "The study set 25 random trials against 25 random and 25 guided ones, by their best single "
                "measurements. Here each search has 50 trials, and the winners are measured side by side."
            ),
        ),
        picture=svg.picture(panels, columns=COLUMNS) if panels else None,
        tables=(
            Table(
                title="Rank correlation of the gain with the concurrency, over searches",
                head=("model", "searches", "correlation", "95 % interval", "p", "high over low"),
                rows=trends,
            ),
            Table(
                title="Mean round trip of the first winner over that of the second, with 95 % intervals of the rounds",
                head=(
                    "search",
                    "random / gpy",
                    "random / epsilon-greedy",
                    "random / structured",
                    "random, half / gpy",
                    "as the study compared",
                    "default / structured",
                ),
                rows=rows,
            ),
        ),
    )


def consistency(data: Sequence[Row]) -> Section:
    """Spread of the winners' round trips."""
    panels, rows = [], []
    ratios = []
    for one in data:
        rounds = {role: [r for r in one["rounds"].get(role, ()) if r] for role in ROLES}
        rounds = {role: each for role, each in rounds.items() if each}
        ratio = findings.ratio(one, "random", "gpy", FIGURES["spread"])
        ratios += [ratio] if ratio else []
        cells = [
            "–"
            if role not in rounds
            else " to ".join(f"{statistics.fmean(r[i] for r in rounds[role]):.3g}" for i in (1, 2))
            for role in ROLES
        ]
        rows.append((_load(one), *cells, ratio_text(ratio)))
        is_shown = (one["unit"]["concurrency"], one["unit"]["client_batch"]) in {(5, 4), (20, 1)}
        if not is_shown or one["unit"]["seed"] or not rounds:
            continue
        middles = {
            role: [statistics.fmean(r[i] for r in each) for i in range(3)]
            for role, each in rounds.items()
        }
        panel = svg.Panel(
            _load(one),
            svg.named(
                "winner",
                [SHORT.get(role, role) for role in rounds],
            ),
            svg.linear("round trip, ms: p5, mean, p95", [m[2] for m in middles.values()]),
        )
        for place, (role, (mean, low, high)) in enumerate(middles.items()):
            colour = SEARCHES.get(role, HALF if role != "default" else svg.GREY)
            panel.bar(place, low, high, colour)
            panel.dots([(place, mean)], colour)
        panels.append(panel)
    over = findings.joined([one.value for one in ratios])
    narrower = sum(one.outcome > 0 for one in ratios)
    wider = sum(one.outcome < 0 for one in ratios)
    return Section(
        name="e_consistency",
        title="Consistency of the winners",
        claim="the round trips of the guided search's best spread less than those of random's (p5 to p95)",
        short=f"spread of random over that of GPy: {ratio_text(over)}; narrower in {narrower}, wider in {wider} of "
        f"{len(ratios)}",
        sure="95 % interval over searches; each is of winners side by side",
        picture=svg.picture(panels, columns=COLUMNS) if panels else None,
        tables=(
            Table(
                title="p5 to p95 in ms, mean over the rounds",
                head=("search", *ROLES, "spread, random / gpy"),
                rows=rows,
            ),
        ),
    )


def winners(data: Sequence[Row]) -> Section:
    """The winning configurations, and how they move with the concurrency."""
    panels, rows, told = [], [], []
    for name, each in itertools.groupby(data, key=name_of):
        units = list(each)
        knobs = [k for k in ("replica.count", "batching.max_size") if k in units[0]["knobs"]]
        places = [one for one in units if one["unit"]["client_batch"] == 1]
        dots = {
            knob: [
                (one["unit"]["concurrency"], one["winners"][role][knob])
                for one in places
                for role in ("gpy", "structured")
                if role in one["winners"]
            ]
            for knob in knobs
        }
        values = [value for each in dots.values() for _, value in each]
        if values:
            panel = svg.Panel(
                name,
                svg.linear("concurrent requests", [n for n, _ in dots[knobs[0]]]),
                svg.linear("value of the winner", values),
            )
            for knob, colour in zip(knobs, svg.COLOURS, strict=False):
                panel.dots(dots[knob], colour, opacity=0.6, name=knob)
                moves = findings.trend(dots[knob])
                if moves is not None:
                    told.append(
                        f"{name}, {knob}: {moves.rho:+.2f} ({formatting.interval(moves.interval)})"
                    )
            panels.append(panel)
        for one in units:
            rows += [
                (_load(one), role, *(knobs_of(one["winners"][role]),))
                for role in ("random", "gpy", "structured")
                if role in one["winners"]
            ]
    return Section(
        name="f_winners",
        title="Winning configurations",
        claim="the optimum (batch 32, 2,778 us, 1 replica of 0.6 cores and 4,400 MB at 5 concurrent requests of 4 "
        "items) is found by the search; knobs do not just grow with the concurrency",
        short=f"rank correlation of the winners' knobs with the concurrency: {'; '.join(told) or 'too few'}",
        sure="winners of GPy and structured; bootstrap 95 % intervals; equally good ones differ widely",
        picture=svg.picture(panels, columns=COLUMNS) if panels else None,
        tables=(
            Table(title="Winners", head=("search", "sampler", "configuration"), rows=rows, left=3),
        ),
    )


def repeated(data: Sequence[Row]) -> Section:
    """The study's other rule: five iterations, repeated until the optimum stays."""
    rows, ratios, ends = [], [], []
    for one in data:
        found = one["searches"]["repeated"]
        count = findings.stays_at(found["configurations"], found["objectives"])
        ratio = _mean_ratio(one, "repeated", "gpy")
        ends.append(count)
        ratios += [ratio] if ratio else []
        rows.append((_load(one), f"{count // 5 - 1}", f"{count}", ratio_text(ratio)))
    over = findings.joined([one.value for one in ratios])
    return Section(
        name="h_repeated",
        title="Five iterations, repeated until the optimum stays",
        claim="repeating GPy's five iterations until the optimum stays finds it",
        short=f"it ended after {statistics.fmean(ends):.3g} of {data[0]['trials']} trials; mean over that of "
        f"25 + 25 trials: {ratio_text(over)}",
        sure=formatting.plural(len(data), "search"),
        found=(
            (
                "Read as: five random trials, then five guided ones at a time on all that is known, until a repeat "
                "leaves the best value seen where it was."
            ),
        ),
        picture=None,
        tables=(
            Table(
                title="Winner of the rule over that of 25 random and 25 guided trials, side by side",
                head=("search", "repeats", "trials", "mean over that of 25 + 25"),
                rows=rows,
            ),
        ),
    )


def _gain_panel(name: str, units: Sequence[tuple[Row, Ratio]]) -> svg.Panel:
    seen = [
        (one["unit"]["concurrency"], value)
        for one, _ in units
        if (value := findings.as_studied(one)) is not None
    ]
    ends = [end or 1.0 for _, ratio in units for end in (ratio.interval.low, ratio.interval.high)]
    values = ends + [value for _, value in seen]
    panel = svg.Panel(
        name,
        svg.linear("concurrent requests", [one["unit"]["concurrency"] for one, _ in units]),
        svg.linear("random / gpy", [*values, 1.0], from_zero=False),
    )
    panel.level(1.0, svg.GREY)
    panel.dots(seen, HALF, opacity=0.7, name="as the study compared")
    panel.dots(
        [(one["unit"]["concurrency"], ratio.value) for one, ratio in units],
        GUIDED,
        name="equal budgets, side by side",
    )
    for one, ratio in units:
        low, high = ratio.interval.low or 0.0, ratio.interval.high or 9.0
        panel.bar(one["unit"]["concurrency"], low, high, GUIDED)
    return panel


def _trend_row(name: str, pairs: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    trend = findings.trend(pairs)
    low, high = _sides(pairs)
    apart = ratio_text(findings.apart(high, low))
    if trend is None:
        return (name, f"{len(pairs)}", "–", "–", "–", apart)
    interval = formatting.interval(trend.interval)
    return (name, f"{len(pairs)}", f"{trend.rho:+.2f}", interval, f"{trend.p:.2g}", apart)


def _sides(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    low = [value for n, value in pairs if n <= SIDES[0]]
    return low, [value for n, value in pairs if n >= SIDES[1]]


def _tally(known: Sequence[tuple[Row, Ratio]], role: str) -> str:
    ratios = [found for one, _ in known if (found := _mean_ratio(one, "random", role))]
    better = sum(one.outcome > 0 for one in ratios)
    worse = sum(one.outcome < 0 for one in ratios)
    over = findings.joined([one.value for one in ratios])
    return (
        f"Random over {role}: {ratio_text(over)} over all; {role} shown better in {better} and worse "
        f"in {worse} of {len(ratios)} searches."
    )


def _mean_ratio(row: Row, first: str, second: str) -> Ratio | None:
    return findings.ratio(row, first, second, FIGURES["mean"])


def _load(row: Row) -> str:
    unit = row["unit"]
    items = "" if unit["client_batch"] == 1 else f" x {unit['client_batch']}"
    return f"{name_of(row)} at {unit['concurrency']}{items}, seed {unit['seed']}"


def _steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """Corners of a line that falls at each trial, from trial 1 on."""
    corners: list[tuple[float, float]] = []
    for trial, value in enumerate(values, start=1):
        if math.isfinite(value):
            corners += [(trial, corners[-1][1])] if corners else []
            corners.append((trial, value))
    return corners


def _reached(line: Sequence[float]) -> int:
    """First trial at which the best so far was within 5 % of its end, or 0 if none worked."""
    return next((trial for trial, v in enumerate(line, start=1) if v <= 1.05 * line[-1]), 0)
