"""One section of the page for each figure: the claim, what was found, a picture and a table.

In: the data of a figure, one `Records` per model. Out: `Section`s. Pure.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import findings
import svg
from records import Records
from result import Table

from tuner.report import formatting

RANDOM, GUIDED, HALF = svg.COLOURS[1], svg.COLOURS[0], svg.COLOURS[4]
COLUMNS = 3
ROLES = (("random, half", HALF), ("random", RANDOM), ("guided", GUIDED))
FIVE = (5, 25, 50, 75, 95)
"""Quantiles of a box plot: whiskers, quartiles, median."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the page says of one figure."""

    name: str
    """Of the picture's file."""
    title: str
    claim: str
    found: tuple[str, ...]
    """One sentence a model."""
    picture: str
    table: Table


def clusters(data: Sequence[Records]) -> Section:
    """Figure a: single round trips, and the clusters that they lie in."""
    panels, found, rows = [], [], []
    for one in data:
        told = []
        for n, launches in findings.by_key(one.rows, "concurrency").items():
            row = launches[0]
            groups = findings.clusters(row["took_ms"])
            told.append(f"{len(groups)} at {n:g}")
            rows += [
                (one.name, f"{n:g}", f"{group.median_ms:.3g}", f"{100 * group.share:.0f}")
                for group in groups
            ]
            x = svg.linear("time, s", row["begun_s"])
            y = svg.linear("round trip, ms", row["took_ms"])
            panel = svg.Panel(f"{one.name}, {n:g} at a time", x, y)
            dots = zip(row["begun_s"], row["took_ms"], strict=True)
            panel.dots(dots, GUIDED, radius=1.3, opacity=0.5)
            for group in groups:
                text = f"{group.median_ms:.3g} ms, {100 * group.share:.0f} %"
                panel.level(group.median_ms, RANDOM, text)
            panels.append(panel)
        found.append(f"{one.name}: clusters: {', '.join(told)}.")
    return Section(
        name="a_clusters",
        title="Round trips lie in clusters",
        claim="at 5 and at 20 concurrent requests, round trips lie in a few clusters",
        found=(
            *found,
            (
                "As in the study. Two causes of them are known: at 20, more requests are in flight than fit "
                "into a batch, so that some wait one batch longer than others; and a replica whose CPU quota "
                "is spent (gan, opennmt) stands still to the end of the period of 100 ms."
            ),
        ),
        picture=svg.picture(panels, columns=2),
        table=Table(
            title="Clusters of round trips of one launch of the default configuration",
            head=("model", "concurrency", "median, ms", "share, %"),
            rows=rows,
        ),
    )


def growth(data: Sequence[Records]) -> Section:
    """Figure b: the mean against the concurrency, with the line that fits best."""
    panels, found, rows = [], [], []
    for one in data:
        by_concurrency = findings.by_key(one.rows, "concurrency")
        line = findings.fit(by_concurrency)
        dots = [(n, row["mean_ms"]) for n, each in by_concurrency.items() for row in each]
        x = svg.linear("concurrent requests", by_concurrency)
        y = svg.linear("mean round trip, ms", [mean for _, mean in dots])
        panel = svg.Panel(one.name, x, y)
        panel.dots(dots, GUIDED, opacity=0.6)
        if line is not None:
            ends = (min(by_concurrency), max(by_concurrency))
            fitted = [(n, line.base_ms + line.slope_ms * n) for n in ends]
            panel.line(fitted, RANDOM, dashed=True)
            found.append(
                f"{one.name}: {line.base_ms:.3g} ms + {line.slope_ms:.3g} ms a request, "
                f"R² {line.r_squared:.4f}; farthest off the line: {100 * line.worst:.0f} % at "
                f"{line.worst_at}."
            )
        panels.append(panel)
        for n, each in by_concurrency.items():
            mean = statistics.fmean(row["mean_ms"] for row in each)
            residual = "" if line is None else f"{mean - line.base_ms - line.slope_ms * n:+.3g}"
            rate = statistics.fmean(row["throughput_per_s"] for row in each)
            low, high = (end(row["mean_ms"] for row in each) for end in (min, max))
            rows.append(
                (
                    one.name,
                    f"{n:g}",
                    f"{mean:.4g}",
                    f"{low:.4g} to {high:.4g}",
                    residual,
                    f"{rate:,.0f}",
                )
            )
    return Section(
        name="b_growth",
        title="The mean round trip grows with the concurrency",
        claim="the mean round trip is linear in the number of concurrent requests",
        found=(
            *found,
            (
                "In a closed loop it has to be, as soon as the throughput no longer grows: mean = "
                "concurrency / throughput (Little's law). Where the line is missed, batches still gain."
            ),
        ),
        picture=svg.picture(panels, columns=COLUMNS),
        table=Table(
            title="Default configuration",
            head=(
                "model",
                "concurrency",
                "mean, ms",
                "launches, ms",
                "off the line, ms",
                "requests/s",
            ),
            rows=rows,
        ),
    )


def progress(data: Sequence[Records]) -> Section:
    """Figure c: the best so far, trial by trial."""
    panels, found, rows = [], [], []
    for one in data:
        row = _at(one, 20)
        half = row["trials"] // 2
        lines = {
            role: findings.best_so_far(row["objectives"][role]) for role in ("random", "guided")
        }
        seen = [value for each in row["objectives"].values() for value in each if value]
        x = svg.linear("trial", [row["trials"]])
        y = svg.linear(
            "mean round trip, ms",
            [*seen[:1], *(2 * v for line in lines.values() for v in line[-1:])],
        )
        panel = svg.Panel(f"{one.name}, 20 at a time", x, y)
        for role, colour in (("random", RANDOM), ("guided", GUIDED)):
            dots = [(i, value) for i, value in enumerate(row["objectives"][role], 1) if value]
            panel.dots(dots, colour, radius=1.8, opacity=0.35)
            steps = _steps(lines[role])
            name = (
                role
                if role == "random"
                else f"{half} spread, {row['trials'] - half} {row['guided']}"
            )
            panel.line(steps, colour, name=f"best so far: {name}")
        panel.mark(half + 0.5, "guided from here")
        panels.append(panel)
        ends = {role: line[-1] for role, line in lines.items()}
        reached = {role: _reached(line) for role, line in lines.items()}
        found.append(
            f"{one.name}: after {row['trials']} trials random has seen {ends['random']:.3g} ms, "
            f"guided {ends['guided']:.3g} ms."
        )
        rows += [
            (
                one.name,
                role,
                *(f"{lines[role][i - 1]:.4g}" for i in (1, half, row["trials"])),
                str(reached[role]),
            )
            for role in lines
        ]
    return Section(
        name="c_progress",
        title="Progress of the search at 20 concurrent requests",
        claim="after the random half, guided trials go on getting better",
        found=(
            *found,
            (
                "Guided trials go on getting better where something is left to gain: the best of gan is a "
                "plain that either search meets early. A best so far is the luckiest of many single "
                "measurements; what the winners are worth is in the next two sections."
            ),
        ),
        picture=svg.picture(panels, columns=COLUMNS),
        table=Table(
            title="Best mean round trip seen, ms",
            head=(
                "model",
                "search",
                "first trial",
                "half",
                "end",
                "within 5 % of its end at trial",
            ),
            rows=rows,
        ),
    )


def gains(data: Sequence[Records]) -> Section:
    """Figure d: random over guided, as the study compared them and fairly."""
    panels, found, rows = [], [], []
    for one in data:
        known = {
            n: [value for row in each if (value := findings.gain(row)) is not None]
            for n, each in findings.by_key(one.rows, "concurrency").items()
        }
        known = {n: each for n, each in known.items() if each}
        seconds = {row["key"]["concurrency"]: row["seconds"] for row in one.rows}
        every = [value for each in known.values() for value in each]
        if not every:
            continue
        ends = [end for value in every for end in (value.interval.low, value.interval.high) if end]
        places = sorted(known)
        x = svg.linear("concurrent requests", places)
        heights = [value.as_studied for value in every] + [value.fair for value in every]
        top = min(max(ends), 1.5 * max(heights))
        y = svg.linear("random / guided", [*heights, top, 1.0])
        panel = svg.Panel(one.name, x, y)
        panel.level(1.0, svg.GREY)
        for value_of, colour, name in (
            (lambda value: value.as_studied, HALF, "half against all, as seen"),
            (lambda value: value.fair, GUIDED, "equal budgets, re-measured"),
        ):
            means = [(n, statistics.geometric_mean(map(value_of, known[n]))) for n in places]
            panel.line(means, colour, name=name)
            panel.dots([(n, value_of(value)) for n in places for value in known[n]], colour)
        for n in places:
            for value in known[n]:
                panel.bar(n, value.interval.low or 0.0, value.interval.high or top, GUIDED)
                rows.append(
                    (
                        one.name,
                        f"{n:g}",
                        f"{seconds[n]:g}",
                        f"{value.as_studied:.3g}",
                        f"{value.fair:.3g}",
                        formatting.interval(value.interval),
                    )
                )
        panels.append(panel)
        trends = [
            findings.trend({n: list(map(value_of, known[n])) for n in places})
            for value_of in (lambda value: value.as_studied, lambda value: value.fair)
        ]
        better = sum((value.interval.low or 0.0) > 1 for value in every)
        worse = sum((value.interval.high or math.inf) < 1 for value in every)
        said = (
            f"{one.name}: fairly compared, guided is shown to be better in {better} and worse in {worse} "
            f"of {len(every)} searches"
        )
        if trends[0] is not None and trends[1] is not None:
            said += (
                "; rank correlation of the gain with the concurrency: as the study compared "
                f"{trends[0][0]:+.2f} (p {trends[0][1]:.2g}), fairly {trends[1][0]:+.2f} "
                f"(p {trends[1][1]:.2g})"
            )
        found.append(f"{said}.")
    return Section(
        name="d_gains",
        title="Gain of the best guided over the best random configuration",
        claim="the gain rises with the concurrency (abstract and conclusion); it is large where that is low "
        "(introduction)",
        found=(
            *found,
            (
                "The study set 25 random trials against 25 random and 25 guided ones: twice the budget, and "
                "the best single measurement of each. The fair comparison gives both the same budget, and "
                "measures the winners anew on fresh starts, in turn."
            ),
            (
                "The claim is not borne out: fairly compared, no model's gain rises over its concurrencies, "
                "and that of resnet falls. As figure c shows, many configurations here are nearly as good as "
                "the best, and 50 random ones mostly meet one of them; what is left then is less than single "
                "launches of a second tell apart. One search stands at each concurrency: its interval is that "
                "of the two winners, and says nothing of another search, so that neither a rise nor a fall of "
                "a few points is proof."
            ),
            (
                "The study contradicts itself here: its abstract and its conclusion have the gain rise with the "
                "concurrency, its introduction has guidance pay where the concurrency is low. Of the two, what "
                "resnet shows, more at 5 than at 20 and nothing from 40 on, is nearer to the introduction."
            ),
        ),
        picture=svg.picture(panels, columns=COLUMNS),
        table=Table(
            title="Mean round trip of random over that of guided",
            head=(
                "model",
                "concurrency",
                "a trial's seconds",
                "as the study compared",
                "fair",
                "95 % interval",
            ),
            rows=rows,
        ),
    )


def boxes(data: Sequence[Records]) -> Section:
    """Figure e: round trips of the winners, as boxes."""
    panels, found, rows = [], [], []
    for one in data:
        row = _at(one, 20)
        quantiles = {role: row["quantiles"][role] for role, _ in ROLES if role in row["quantiles"]}
        labels = {
            "random, half": f"random, {row['trials'] // 2}",
            "random": f"random, {row['trials']}",
            "guided": f"guided, {row['trials']}",
        }
        tops = [quantiles[role][FIVE[-1]] for role in quantiles]
        x = svg.named("search, trials", [labels[role] for role in quantiles])
        panel = svg.Panel(f"{one.name}, 20 at a time", x, svg.linear("round trip, ms", tops))
        for place, role in enumerate(quantiles):
            five = [quantiles[role][share] for share in FIVE]
            panel.box(place, five, dict(ROLES)[role])
            mean = statistics.geometric_mean(row["remeasured"][role])
            rows.append(
                (one.name, labels[role], *(f"{value:.4g}" for value in five), f"{mean:.4g}")
            )
        panels.append(panel)
        means = {role: statistics.geometric_mean(row["remeasured"][role]) for role in quantiles}
        found.append(
            f"{one.name}: mean over fresh starts "
            + ", ".join(f"{labels[role]}: {mean:.4g} ms" for role, mean in means.items())
            + "."
        )
    return Section(
        name="e_boxes",
        title="Round trips of the best configurations",
        claim="the guided search's best configuration is quicker and more consistent than random's",
        found=(
            *found,
            (
                "So it is for resnet and opennmt; for gan all three found equally good ones. Boxes are of one "
                "launch each, means of several."
            ),
        ),
        picture=svg.picture(panels, columns=COLUMNS),
        table=Table(
            title="Round trips of the winners' first fresh start, and the mean over all of them, ms",
            head=("model", "search, trials", *(f"p{share}" for share in FIVE), "mean"),
            rows=rows,
        ),
    )


def reviewed(
    name: str, knob: str, axis: str, title: str, claim: str, differs: str, *, is_log: bool
) -> Callable[[Sequence[Records]], Section]:
    """A figure of the Clipper review: throughput and latency against one knob."""

    def section(data: Sequence[Records]) -> Section:
        rates, latencies, found, rows = [], [], [], []
        for one in data:
            by_value = findings.by_key(one.rows, knob)
            places = sorted(by_value)
            if len(places) < 2:
                continue
            x = svg.listed(axis, places, is_log=is_log)
            rate = {
                n: statistics.fmean(row["throughput_per_s"] for row in by_value[n]) for n in places
            }
            panel = svg.Panel(one.name, x, svg.linear("requests/s", rate.values()))
            panel.line(rate.items(), GUIDED)
            panel.dots(rate.items(), GUIDED)
            rates.append(panel)
            p99 = {n: statistics.fmean(row["p99_ms"] for row in by_value[n]) for n in places}
            mean = {n: statistics.fmean(row["mean_ms"] for row in by_value[n]) for n in places}
            panel = svg.Panel(one.name, x, svg.linear("round trip, ms", p99.values()))
            panel.line(p99.items(), RANDOM, name="p99")
            panel.line(mean.items(), GUIDED, name="mean")
            latencies.append(panel)
            top = max(places, key=rate.__getitem__)
            found.append(
                f"{one.name}: {rate[places[0]]:,.0f} requests/s at {places[0]:g}, most at {top:g}: "
                f"{rate[top]:,.0f} ({rate[top] / rate[places[0]]:.2f} x)."
            )
            rows += [
                (
                    one.name,
                    f"{n:g}",
                    f"{rate[n]:,.0f}",
                    f"{mean[n]:.4g}",
                    f"{p99[n]:.4g}",
                    f"{sum(row['requests'] for row in by_value[n]):,}",
                    str(sum(row["errors"] for row in by_value[n])),
                )
                for n in places
            ]
        return Section(
            name=name,
            title=title,
            claim=claim,
            found=(*found, differs),
            picture=svg.picture([*rates, *latencies], columns=len(rates)),
            table=Table(
                title="20 concurrent requests",
                head=("model", axis, "requests/s", "mean, ms", "p99, ms", "requests", "failed"),
                rows=rows,
            ),
        )

    return section


SECTIONS: Mapping[str, tuple[str, Callable[[Sequence[Records]], Section]]] = {
    "a": ("a", clusters),
    "b": ("b", growth),
    "c": ("search", progress),
    "d": ("search", gains),
    "e": ("search", boxes),
    "batch": (
        "batch",
        reviewed(
            "review_batch",
            "batching.max_size",
            "batch size, items",
            "Throughput against the size of a batch",
            "larger batches raise the throughput, and those that are not filled lower it again",
            "The rise is as in the review; the fall was not looked for. From 8 to 32 items it changes by four per "
            "cent at most, and no launch waited for a batch to fill (`batching.timeout_us` 0): with 20 "
            "requests in flight a batch that waits for more than 20 would show it.",
            is_log=True,
        ),
    ),
    "replicas": (
        "replicas",
        reviewed(
            "review_replicas",
            "replica.count",
            "replicas",
            "Throughput against the number of replicas",
            "the throughput grows with the replicas, as far as there are cores for them",
            "Here it falls from the first on: two cores are all that client, gateway and replicas have "
            "together, and every further replica takes its share of a batch.",
            is_log=False,
        ),
    ),
    "slo": (
        "slo",
        reviewed(
            "review_objective",
            "batching.slo_ms",
            "latency objective, ms",
            "Throughput against the latency objective",
            "a looser objective lets adaptive batching make larger batches, and the throughput rises",
            "Seen for linear from 2 ms to 5 ms and above, not for reviews: with 20 requests in flight no batch "
            "is larger than 20 items, and the mean round trip of reviews is shorter than the tightest objective.",
            is_log=True,
        ),
    ),
}
"""Figure -> the kind of its data, and what makes its section."""


def _at(one: Records, concurrency: int) -> dict[str, Any]:
    """The first search at that concurrency."""
    return findings.by_key(one.rows, "concurrency")[concurrency][0]


def _steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """Corners of a line that falls at each trial, from trial 1 on."""
    corners: list[tuple[float, float]] = []
    for trial, value in enumerate(values, start=1):
        if math.isfinite(value):
            corners += [(trial, corners[-1][1])] if corners else []
            corners.append((trial, value))
    return corners


def _reached(line: Sequence[float]) -> int:
    """First trial at which the best so far was within 5 % of its end."""
    return next(trial for trial, value in enumerate(line, start=1) if value <= 1.05 * line[-1])
