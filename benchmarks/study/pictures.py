"""One section of the page for each question: the claim, what was found, a picture and a table.

In: the rows of a kind. Out: `Section`s. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import findings
import svg
from findings import Ratio
from records import Row, name_of
from result import Table

from tuner.report import formatting

RANDOM, GUIDED, HALF = svg.COLOURS[1], svg.COLOURS[0], svg.COLOURS[4]
COLUMNS = 3
SEARCHES = {
    "random": RANDOM,
    "gpy": GUIDED,
    "epsilon-greedy": svg.COLOURS[2],
    "structured": svg.COLOURS[3],
}
ROLES = ("default", "random, half", *SEARCHES)
SHORT = {"random, half": "half", "epsilon-greedy": "ε-greedy", "structured": "struct."}
"""Names that fit under a picture."""
SIDES = (5, 20)
"""Up to the first a concurrency is low, from the second on high."""
FIGURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda one: one[0],
    "spread": lambda one: one[2] - one[1],
}
"""Of a round's mean, p5, p95 and p99: what is compared."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the page says of one question."""

    name: str
    """Name of the picture's file."""
    title: str
    claim: str
    short: str
    """What was found, in the page's first table."""
    sure: str
    """How sure that is."""
    found: tuple[str, ...] = ()
    picture: str | None
    tables: tuple[Table, ...]


def clusters(data: Sequence[Row]) -> Section:
    """Single round trips, and the clusters that they lie in."""
    panels, told, rows = [], [], []
    for one in data:
        name, counts = name_of(one), []
        for n, launches in findings.by_key(one["launches"], "concurrency").items():
            row = launches[0]
            groups = findings.clusters(row["took_ms"])
            counts.append(f"{len(groups)} at {n}")
            rows += [
                (name, f"{n}", f"{group.median_ms:.3g}", f"{100 * group.share:.0f}")
                for group in groups
            ]
            x = svg.linear("time, s", row["begun_s"])
            panel = svg.Panel(
                f"{name}, {n} at a time", x, svg.linear("round trip, ms", row["took_ms"])
            )
            dots = zip(row["begun_s"], row["took_ms"], strict=True)
            panel.dots(dots, GUIDED, radius=1.3, opacity=0.5)
            for group in groups:
                text = f"{group.median_ms:.3g} ms, {100 * group.share:.0f} %"
                panel.level(group.median_ms, RANDOM, text)
            panels.append(panel)
        told.append(f"{name}: {', '.join(counts)}")
    return Section(
        name="a_clusters",
        title="Round trips lie in clusters",
        claim="at 5 and at 20 concurrent requests, round trips lie in a few clusters",
        short=f"clusters: {'; '.join(told)}",
        sure="one launch each",
        found=(
            (
                "Two causes are known: at 20, more requests are in flight than fit into a batch, so that some wait one "
                "batch longer; and a replica whose CPU quota is spent stands still to the end of its 100 ms."
            ),
        ),
        picture=svg.picture(panels, columns=2),
        tables=(
            Table(
                title="Clusters of round trips of one launch of the default configuration",
                head=("model", "concurrency", "median, ms", "share, %"),
                rows=rows,
            ),
        ),
    )


def growth(data: Sequence[Row]) -> Section:
    """The mean against the concurrency, with the line that fits best."""
    panels, told, rows = [], [], []
    for one in data:
        by_concurrency = findings.by_key(one["launches"], "concurrency")
        line = findings.fit(by_concurrency)
        dots = [(n, row["mean_ms"]) for n, each in by_concurrency.items() for row in each]
        x = svg.linear("concurrent requests", by_concurrency)
        panel = svg.Panel(
            name_of(one), x, svg.linear("mean round trip, ms", [mean for _, mean in dots])
        )
        panel.dots(dots, GUIDED, opacity=0.6)
        if line is not None:
            ends = (min(by_concurrency), max(by_concurrency))
            fitted = [(n, line.base_ms + line.slope_ms * n) for n in ends]
            panel.line(fitted, RANDOM, dashed=True)
            told.append(
                f"{name_of(one)}: {line.base_ms:.3g} ms + {line.slope_ms:.3g} ms a request, "
                f"R² {line.r_squared:.4f}, at most {100 * line.worst:.0f} % off (at {line.worst_at})"
            )
        panels.append(panel)
        for n, each in by_concurrency.items():
            means = [row["mean_ms"] for row in each]
            rate = statistics.fmean(row["throughput_per_s"] for row in each)
            rows.append(
                (
                    name_of(one),
                    f"{n}",
                    f"{statistics.fmean(means):.4g}",
                    f"{min(means):.4g} to {max(means):.4g}",
                    f"{rate:,.0f}",
                )
            )
    return Section(
        name="b_growth",
        title="The mean round trip grows with the concurrency",
        claim="the mean round trip is linear in the number of concurrent requests",
        short="; ".join(told),
        sure="five launches at each concurrency",
        found=(
            (
                "In a closed loop it has to be, as soon as the throughput no longer grows: mean = concurrency / "
                "throughput (Little's law). Where the line is missed, batches still gain."
            ),
        ),
        picture=svg.picture(panels, columns=COLUMNS),
        tables=(
            Table(
                title="Default configuration",
                head=("model", "concurrency", "mean, ms", "launches, ms", "requests/s"),
                rows=rows,
            ),
        ),
    )


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
                    _said(ratio)
                    for second in ("gpy", "epsilon-greedy", "structured")
                    for ratio in [_mean_ratio(one, "random", second)]
                ),
                _said(_mean_ratio(one, "random, half", "gpy")),
                "–" if (seen := findings.as_studied(one)) is None else f"{seen:.3g}",
                _said(_mean_ratio(one, "default", "structured")),
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
            f"gain of GPy over random at high concurrency over that at low: {_said(difference)}; "
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
        short=f"{_tally(known, 'gpy')} {short}",
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
        rows.append((_load(one), *cells, _said(ratio)))
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
        short=f"spread of random over that of GPy: {_said(over)}; narrower in {narrower}, wider in {wider} of "
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
                (_load(one), role, *(_knobs(one["winners"][role]),))
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


def sample(data: Sequence[Row]) -> Section:
    """Table 1: random configurations in several environments."""
    tables, panels, told = [], [], []
    for one in data:
        cells: dict[tuple[int, int], dict[int, list[float]]] = {}
        told_of = {}
        for row in one["launches"]:
            key = row["key"]
            told_of[key["configuration"]] = row["configuration"]
            if row["status"] == "ok":
                at = cells.setdefault((key["concurrency"], key["client_batch"]), {})
                at.setdefault(key["configuration"], []).append(row["mean_ms"])
        means = {
            at: {c: statistics.fmean(v) for c, v in each.items()} for at, each in cells.items()
        }
        names = [f"{n}" if items == 1 else f"{n} x {items}" for n, items in means]
        tables.append(
            Table(
                title=f"{name_of(one)}: mean round trip in ms, by concurrent requests (x items)",
                head=("configuration", *names),
                rows=[
                    (
                        "default" if not number else _knobs(configuration),
                        *(
                            f"{each[number]:.3g}" if number in each else "failed"
                            for each in means.values()
                        ),
                    )
                    for number, configuration in told_of.items()
                ],
            )
        )
        orders = [
            trend.rho
            for first, second in itertools.combinations(means.values(), 2)
            if len(both := sorted(set(first) & set(second))) >= 4
            and (trend := findings.trend([(first[c], second[c]) for c in both]))
        ]
        if orders:
            told.append(f"{name_of(one)}: {min(orders):.2f} to {max(orders):.2f}")
        panel = svg.Panel(
            name_of(one),
            svg.named("concurrent requests (x items)", names),
            svg.linear("mean over the default's", [3.0]),
        )
        panel.level(1.0, svg.GREY)
        for number in told_of:
            dots = [
                (place, each[number] / each[0])
                for place, each in enumerate(means.values())
                if number in each and 0 in each
            ]
            panel.line(dots, svg.COLOURS[number % len(svg.COLOURS)])
        panels.append(panel)
    return Section(
        name="g_sample",
        title="Random configurations in several environments (table 1)",
        claim="which configuration is good depends on the environment",
        short=f"rank correlation of the same configurations between two environments: {'; '.join(told)}",
        sure="ten random configurations and the default, three launches each",
        picture=svg.picture(panels, columns=COLUMNS),
        tables=tuple(tables),
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
        rows.append((_load(one), f"{count // 5 - 1}", f"{count}", _said(ratio)))
    over = findings.joined([one.value for one in ratios])
    return Section(
        name="h_repeated",
        title="Five iterations, repeated until the optimum stays",
        claim="repeating GPy's five iterations until the optimum stays finds it",
        short=f"it ended after {statistics.fmean(ends):.3g} of {data[0]['trials']} trials; mean over that of "
        f"25 + 25 trials: {_said(over)}",
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
        told.append(f"{name} {_said(gain)}")
        means = [
            f"{100 * statistics.fmean(pair[1] for pair in each):.1f}" for each in regrets.values()
        ]
        rows.append(
            (
                name,
                f"{seeds}",
                *means,
                _said(gain),
                _said(half),
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


def variants(data: Sequence[Row]) -> Section:
    """Latency of the model's variants, whose accuracy differs."""
    rows, told = [], []
    for one in data:
        cells: dict[tuple[str, int], list[float]] = {}
        for row in one["launches"]:
            if row["status"] == "ok":
                key = (row["key"]["model.variant"], row["key"]["concurrency"])
                cells.setdefault(key, []).append(row["mean_ms"])
        rows += [
            (name, f"{n}", f"{statistics.fmean(v):.3g}", f"{min(v):.3g} to {max(v):.3g}")
            for (name, n), v in cells.items()
        ]
        told += [f"{name} at {n}: {statistics.fmean(v):.3g} ms" for (name, n), v in cells.items()]
    return Section(
        name="j_variants",
        title="Accuracy against latency",
        claim="a less accurate model answers sooner (Clipper's trade-off)",
        short="; ".join(told),
        sure="five launches each; accuracies 0.907, 0.920 and 0.930 of 10,000 (model.yaml)",
        picture=None,
        tables=(
            Table(
                title="Default configuration",
                head=("variant", "concurrency", "mean, ms", "launches, ms"),
                rows=rows,
            ),
        ),
    )


def reviewed(
    name: str, knob: str, axis: str, title: str, claim: str, *, is_log: bool
) -> Callable[[Sequence[Row]], Section]:
    """A figure of the Clipper review: throughput and total time against one knob."""

    def section(data: Sequence[Row]) -> Section:
        panels: dict[str, svg.Panel] = {}
        rows, told = [], []
        for one in data:
            unit = one["unit"]
            by_value = findings.by_key(one["launches"], knob)
            if len(by_value) < 2:
                continue
            rate = {
                n: statistics.fmean(row["throughput_per_s"] for row in each)
                for n, each in by_value.items()
            }
            label = _form(unit)
            first, top = min(rate), max(rate, key=rate.__getitem__)
            last = max(rate)
            told.append(
                f"{unit['model']}, {label}: {rate[top] / rate[first]:.2f} x from {first} to {top}"
                + ("" if top == last else f", {rate[last] / rate[top]:.2f} x from there to {last}")
            )
            title_of = f"{unit['model']}, {unit['concurrency']} clients"
            if title_of not in panels:
                same = [
                    row["throughput_per_s"]
                    for other in data
                    if (other["unit"]["model"], other["unit"]["concurrency"])
                    == (unit["model"], unit["concurrency"])
                    for row in other["launches"]
                    if row["status"] == "ok"
                ]
                panels[title_of] = svg.Panel(
                    title_of,
                    svg.listed(axis, list(by_value), is_log=is_log),
                    svg.linear("requests/s", same),
                )
            panel = panels[title_of]
            colour = svg.COLOURS[panel.legend_rows]
            panel.line(rate.items(), colour, name=label)
            panel.dots(
                [(n, row["throughput_per_s"]) for n, each in by_value.items() for row in each],
                colour,
            )
            for n, each in by_value.items():
                ends = [row["throughput_per_s"] for row in each]
                rows.append(
                    (
                        unit["model"],
                        label,
                        f"{n}",
                        f"{rate[n]:,.0f}",
                        f"{min(ends):,.0f} to {max(ends):,.0f}",
                        f"{100_000 / rate[n]:.1f}",
                        f"{statistics.fmean(row['p99_ms'] for row in each):.4g}",
                        f"{sum(row['requests'] for row in each):,}",
                        str(sum(row["errors"] for row in each)),
                    )
                )
        return Section(
            name=name,
            title=title,
            claim=claim,
            short="; ".join(told),
            sure="two launches each, in opposite order",
            picture=svg.picture(list(panels.values()), columns=COLUMNS) if panels else None,
            tables=(
                Table(
                    title="Throughput, and the time that 100,000 queries take at it",
                    head=(
                        "model",
                        "load",
                        axis,
                        "requests/s",
                        "launches",
                        "100,000 queries, s",
                        "p99, ms",
                        "requests",
                        "failed",
                    ),
                    rows=rows,
                    left=2,
                ),
            ),
        )

    return section


SECTIONS: Sequence[tuple[str, Callable[[Sequence[Row]], Section]]] = (
    ("search", gains),
    ("search", consistency),
    ("search", winners),
    ("search", progress),
    ("sample", sample),
    ("repeated", repeated),
    ("replay", replays),
    ("clusters", clusters),
    ("growth", growth),
    ("variants", variants),
    (
        "batch",
        reviewed(
            "review_batch",
            "batching.max_size",
            "batch size, items",
            "Throughput and total time by the size of a batch",
            "larger batches raise the throughput, and those that are not filled lower it again",
            is_log=True,
        ),
    ),
    (
        "replicas",
        reviewed(
            "review_replicas",
            "replica.count",
            "replicas",
            "Throughput and total time by the number of replicas",
            "the throughput grows with the replicas, as far as there are cores for them",
            is_log=False,
        ),
    ),
    (
        "slo",
        reviewed(
            "review_objective",
            "batching.slo_ms",
            "latency objective, ms",
            "Throughput by the latency objective",
            "a looser objective lets adaptive batching make larger batches, and the throughput rises",
            is_log=True,
        ),
    ),
)
"""Kind of data, and what makes a section of it."""


def _gain_panel(name: str, units: Sequence[tuple[Row, Ratio]]) -> svg.Panel:
    seen = [
        (one["unit"]["concurrency"], value)
        for one, _ in units
        if (value := findings.as_studied(one)) is not None
    ]
    values = [ratio.value for _, ratio in units] + [value for _, value in seen]
    panel = svg.Panel(
        name,
        svg.linear("concurrent requests", [one["unit"]["concurrency"] for one, _ in units]),
        svg.linear("random / gpy", [1.2 * max(values), 1.0]),
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
    apart = _said(findings.apart(high, low))
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
        f"Random over {role}: {_said(over)} over all; {role} shown better in {better} and worse "
        f"in {worse} of {len(ratios)} searches."
    )


def _mean_ratio(row: Row, first: str, second: str) -> Ratio | None:
    return findings.ratio(row, first, second, FIGURES["mean"])


def _said(found: Ratio | None) -> str:
    return "–" if found is None else f"{found.value:.3g} ({formatting.interval(found.interval)})"


def _load(row: Row) -> str:
    unit = row["unit"]
    items = "" if unit["client_batch"] == 1 else f" x {unit['client_batch']}"
    return f"{name_of(row)} at {unit['concurrency']}{items}, seed {unit['seed']}"


def _form(unit: Mapping[str, Any]) -> str:
    load = f"{unit['concurrency']} clients"
    if unit["kind"] == "batch":
        wait = f"waits {unit['form'] / 1e3:g} ms" if unit["form"] else "no wait"
        return f"{load}, {wait}"
    return f"{load}, {unit['form']:g} cores each" if unit["kind"] == "replicas" else load


def _knobs(configuration: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.partition('.')[2]} {value}" for name, value in configuration.items())


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
