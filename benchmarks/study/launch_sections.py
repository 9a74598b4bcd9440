"""Sections on launches without a search: single requests, table 1, and the Clipper review's figures.

In: the rows of a kind. Out: `Section`s. Pure.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import findings
import svg
from records import Row, name_of
from result import Table
from sections import COLUMNS, GUIDED, RANDOM, Section, knobs_of


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
                        "default" if not number else knobs_of(configuration),
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


def review_section(
    name: str, knob: str, axis: str, title: str, claim: str, *, is_log: bool
) -> Callable[[Sequence[Row]], Section]:
    """A figure of the Clipper review: throughput and total time against one knob."""

    def section(data: Sequence[Row]) -> Section:
        panels: dict[str, svg.Panel] = {}
        rows, told = [], []
        rises, falls = [], []
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
            rises.append(rate[top] / rate[first])
            falls.append(rate[last] / rate[top])
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
            short=f"best over first: {_span(rises)}; last over best: {_span(falls)}",
            sure=f"{len(told)} curves, two launches each in opposite order",
            found=tuple(f"{sentence}." for sentence in told),
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


def _span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f} x" if ratios else "–"


def _form(unit: Mapping[str, Any]) -> str:
    load = f"{unit['concurrency']} clients"
    if unit["kind"] == "batch":
        wait = f"waits {unit['form'] / 1e3:g} ms" if unit["form"] else "no wait"
        return f"{load}, {wait}"
    return f"{load}, {unit['form']:g} cores each" if unit["kind"] == "replicas" else load
