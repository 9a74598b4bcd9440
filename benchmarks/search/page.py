"""The page of results: each row of what search must reach, per table, the losing cases shown.

In: what `measure.py` has kept. Out: `results/search.md` and its picture. Measures nothing.
"""

from __future__ import annotations

import math
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import measure
import rows
from result import Table
from rows import ReplayedTable, Row

from tuner.values.study_record import OUR_ENGINE

FIXED_ON: tuple[str, ...] = ("resnet", "reviews")
"""Models on whose tables, served by our engine, defaults of the samplers were chosen; the others judge them."""
COMMAND = "python benchmarks/search/run.py"
HEAD = f"""# Search

How many trials the tuner's samplers need on recorded tables, and how often their verdict is wrong: each row of
what they must reach, made by one command from `benchmarks/tables`:

```
{COMMAND}
```

A table is a grid of which every configuration was measured several times on a real engine
([docs/benchmark-tables.md](../../docs/benchmark-tables.md)); a search on it draws recorded launches.
"Within 3 %" means within the larger of 3 % and two standard errors of the optimum, by launches that no search draws.
A search has reached it with the first trial from which on all that it *recommends* lies within it;
the time of the profile that `structured` needs is counted as trials.
Random's trials are an exact median: of a search that is told the truth of what it tries.
Intervals in brackets are over seeds. All seeds of a table draw the same launches and are judged by the same
estimated truth, so no interval here tells of another recording; how well the truth is known stands beside each
table, and in [decision 0010](../../docs/decisions/0010-truth-of-a-surface.md).
Bounds of differences are one-sided at 95 %; that a sampler is shown to be no worse is corrected by Holm.
The row of live studies comes from `python benchmarks/search/live_null.py`; beside some of them the machine did other
work.
"""
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
MARKS = {"reached": "yes", "MISSED": "**no**", "reported": "-", "not measured": "not measured"}


def page(tables: Sequence[ReplayedTable], others: Mapping[str, Any]) -> str:
    """The whole page."""
    every = {table.name: rows.of_table(table) for table in tables}
    fixed = [table.name for table in tables if _is_fixed(table)]
    parts = [HEAD, _overview(tables, every, rows.of_all(tables, others, fixed))]
    parts += [_means(tables), "![Mean regret over all tables](search/regrets.svg)"]
    parts += [_tables(tables), "![Trials until within 3 %](search/trials.svg)"]
    parts += [_section(table, every[table.name]) for table in tables]
    parts.append(_machines(tables, others.get("machine", {})))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _overview(
    tables: Sequence[ReplayedTable], every: Mapping[str, Sequence[Row]], together: Sequence[Row]
) -> str:
    """Every row in one overview: on how many tables it was reached, and on which it was not."""
    shown = Table(
        title="## What was reached",
        head=("row", "target", "rows reached", "missed on"),
        rows=[_told(key, every) for key in _keys(every)],
        left=4,
    )
    judged = [s.name for s in tables if not _is_fixed(s)]
    fixed = [s.name for s in tables if _is_fixed(s)]
    note = (
        f"The samplers' defaults were chosen on tables of {_listed(FIXED_ON)} ({_listed(fixed)}); "
        f"{'the others judge them (' + _listed(judged) + ')' if judged else 'no other judges them yet'}. "
        "Two defaults were settled after a look at the judges: how many launches a search without a "
        "prediction begins with (mosec), and that slow moments are not taken out of a p99 (linear)."
    )
    whole = Table(
        title="Over all tables together:",
        head=("row", "target", "measured", "reached"),
        rows=[_cells(row) for row in together],
        left=4,
    )
    return f"{shown.text()}\n\n{note}\n\n{whole.text()}{_losses(together)}"


def _is_fixed(table: ReplayedTable) -> bool:
    """Whether defaults were chosen on it."""
    return table.facts["model"] in FIXED_ON and table.facts["engine"] == OUR_ENGINE


def _cells(row: Row) -> tuple[str, str, str, str]:
    return row.what, row.target, row.measured or "-", MARKS[row.verdict]


def _losses(found: Sequence[Row]) -> str:
    """Every comparison that was not won, a line for each row."""
    lines = [f"- {row.key}: {'; '.join(row.losses)}." for row in found if row.losses]
    return "\n\nNot shown, or worse:\n\n" + "\n".join(lines) if lines else ""


def _keys(every: Mapping[str, Sequence[Row]]) -> list[str]:
    return list(dict.fromkeys(row.key for found in every.values() for row in found))


def _told(key: str, every: Mapping[str, Sequence[Row]]) -> tuple[str, str, str, str]:
    found = [(name, row) for name, each in every.items() for row in each if row.key == key]
    judged = [(name, row) for name, row in found if row.verdict in {"reached", "MISSED"}]
    missed = list(dict.fromkeys(name for name, row in judged if row.verdict == "MISSED"))
    target = next((row.target for _, row in judged), found[0][1].target)
    if judged:
        count = sum(row.verdict == "reached" for _, row in judged)
        reached = f"{count} of {len(judged)}"
    elif any(row.verdict == "reported" for _, row in found):
        reached = "reported"
    else:
        reached = "not measured"
    return key, target, reached, _listed(missed)


def _mean_regrets(tables: Sequence[ReplayedTable]) -> list[tuple[str, list[float]]]:
    """Return the mean regret by trials of every sampler replayed on all tables, the best first."""
    samplers = dict.fromkeys(name for one in tables for name in (*rows.GOALS, *one.peers))
    found: list[tuple[str, list[float]]] = []
    for sampler in samplers:
        regrets = [[one.regrets(sampler, budget) for one in tables] for budget in rows.BUDGETS]
        if any(each is None for row in regrets for each in row):
            continue
        means = [[float(each.mean()) for each in row if each is not None] for row in regrets]
        found.append((sampler, [math.fsum(row) / len(row) for row in means]))
    return sorted(found, key=lambda pair: pair[1][-1])


def _means(tables: Sequence[ReplayedTable]) -> str:
    """All samplers at a glance: their mean regret over all tables."""
    judging = dict(_mean_regrets([one for one in tables if not _is_fixed(one)]))
    shown = Table(
        title="## All samplers, over all tables",
        head=(
            "sampler",
            *(f"mean regret at {budget}" for budget in rows.BUDGETS),
            *(f"at {budget}, judges alone" for budget in rows.BUDGETS),
        ),
        rows=[
            (name, *map(_percent, means), *map(_percent, judging.get(name, ())))
            for name, means in _mean_regrets(tables)
        ],
    )
    note = (
        "What is recommended after so many trials loses so much against the optimum, in the mean over seeds and "
        "tables; samplers that cannot search on each of them are left out. *Judges*: the tables on which no "
        "defaults were chosen. On that of another engine there is no prediction, and `structured` searches as `gp`."
    )
    return f"{shown.text()}\n\n{note}"


def _tables(tables: Sequence[ReplayedTable]) -> str:
    """Describe the size of the tables, and how well they are known."""
    shown = Table(
        title="## The tables",
        head=(
            "table",
            "objective",
            "configurations",
            "work",
            "launches",
            "optimum (se)",
            "default loses",
            "within 3 %: tolerance",
            "good",
            "random",
        ),
        rows=[_facts(table) for table in tables],
    )
    notes = "*good*: configurations within the tolerance; *random*: its trials, an exact median."
    return f"{shown.text()}\n\n{notes}"


def _facts(table: ReplayedTable) -> tuple[str, ...]:
    facts = table.facts
    within, lost = facts["within"]["0.03"], facts["default_regret"]
    engine = "" if facts["engine"] == OUR_ENGINE else " (another engine)"
    return (
        table.name + engine,
        facts["objective"],
        str(facts["cells"]),
        str(facts["feasible"]),
        f"{facts['launches']:,}",
        f"{facts['optimum']:.3g} ({_percent(facts['optimum_se'])})",
        "fails" if lost is None else _percent(lost),
        _percent(within["tolerance"]),
        str(within["good_cells"]),
        str(within["random_median"]),
    )


def _section(table: ReplayedTable, found: Sequence[Row]) -> str:
    """One table: its rows, and the regrets of all samplers."""
    within = table.facts["within"]["0.03"]
    head = (
        f"Within 3 % means within {_percent(within['tolerance'])}: {within['good_cells']} of "
        f"{table.facts['cells']} configurations; random search needs {within['random_median']} trials."
    )
    if (told := table.facts.get("told_best")) is not None:
        ends = (told["0.03"][part] for part in ("median", "p90"))
        head += (
            f" A search that is told the best {measure.TOLD} at the start, launches them in turn and compares"
            " their means needs "
            + " / ".join(
                f"over {measure.TOLD_TRIALS}" if end is None else f"{end:.0f}" for end in ends
            )
            + " (median / 90th percentile): so much it takes to tell these from one another by their means."
        )
    if _is_fixed(table):
        head += " Defaults were chosen on tables of this model."
    shown = Table(
        title=head,
        head=("row", "target", "measured", "reached"),
        rows=[_cells(row) for row in found],
        left=4,
    )
    return f"## {table.name}\n\n{shown.text()}{_losses(found)}\n\n{_samplers(table)}"


def _samplers(table: ReplayedTable) -> str:
    """All samplers beside one another."""
    standings = {
        (one.peer, one.budget): one.standing
        for one in rows.comparisons(table, "structured", table.peers)
    }
    lines = []
    for sampler in (*rows.GOALS, *table.peers):
        found = table.trials(sampler, "0.03")
        if found is None:
            continue
        most = table.conditions[sampler]["trials"]
        cells = [sampler]
        for share in (0.5, 0.9):
            value = rows.rank_of(found, share)
            cells.append(f"{value:.0f}" if math.isfinite(value) else f"over {most}")
        for budget in rows.BUDGETS:
            regrets = table.regrets(sampler, budget)
            told = "-" if regrets is None else _percent(float(regrets.mean()))
            standing = standings.get((sampler, budget))
            cells.append(
                told + {"worse": " (better)", "not shown": " (open)"}.get(standing or "", "")
            )
        lines.append(cells)
    if not lines:
        return "No sampler was replayed here yet."
    seeds = min(found["seeds"] for found in table.conditions.values())
    return Table(
        title=f"Mean regret of what is recommended, {seeds} seeds or more. Beside the others' figures: *(better)* "
        "than `structured` by over a point, as the 95 % bound of the difference says; *(open)*: neither that nor "
        "that `structured` is at most a point worse is shown.",
        head=("sampler", "within 3 %: median", "90th", "at 15", "at 30", "at 50"),
        rows=lines,
    ).text()


def _machines(tables: Sequence[ReplayedTable], replayed_on: Mapping[str, str]) -> str:
    told = "".join(f"- {key}: {value}\n" for key, value in replayed_on.items())
    hosts = sorted({f"{s.facts['cores']} cores, {s.facts['cpu']}" for s in tables})
    return f"## Machines\n\nRecorded on: {_listed(hosts)}.\nReplayed on:\n\n{told}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "-"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def picture(tables: Sequence[ReplayedTable]) -> str:
    """Median and 90th percentile of trials until within 3 %, per table, beside random's exact median."""
    left, row, width, top = 170, 22, 380, 34
    colours = {"gp": "#0072b2", "structured": "#d55e00"}
    places = [(table, sampler) for table in tables for sampler in rows.GOALS]
    most = max([50.0, *(float(s.facts["within"]["0.03"]["random_median"]) for s in tables)])

    def at(value: float) -> float:
        return left + width * math.log(min(max(value, 1.0), most)) / math.log(most)

    height = top + row * len(places) + 40
    bottom, whole = top + row * len(places), left + width + 40
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{whole}" height="{height}" fill="white"/>',
        '<text x="8" y="16" font-weight="bold">Trials until what is recommended is within 3 % for good</text>',
    ]
    parts += [
        f'<path d="M{at(tick):.1f} {top - 8}V{bottom}" stroke="#ddd"/>'
        f'<text x="{at(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{tick}</text>'
        for tick in TICKS
        if tick <= most
    ]
    for number, (table, sampler) in enumerate(places):
        parts += _marks(table, sampler, top + row * number + row / 2, at, colours[sampler])
    parts.append(
        f'<text x="8" y="{bottom + 32}">line: median to 90th percentile (open: not reached); '
        "cross: random search that is told the truth, exact median</text></svg>"
    )
    return "\n".join(parts) + "\n"


def regrets_picture(tables: Sequence[ReplayedTable]) -> str:
    """Mean regret over all tables after 15, 30 and 50 trials, a row for each sampler."""
    found = _mean_regrets(tables)
    left, row, width, top = 120, 22, 430, 40
    shades = ("#c6dbef", "#6baed6", "#08519c")
    most = max([0.05, *(value for _, means in found for value in means)])
    height, whole = top + row * len(found) + 30, left + width + 40

    def at(value: float) -> float:
        return left + width * value / most

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{whole}" height="{height}" fill="white"/>',
        '<text x="8" y="16" font-weight="bold">Mean regret of what is recommended, over all tables</text>',
    ]
    for percent in range(0, math.floor(100 * most) + 1, 2):
        x, bottom = at(percent / 100), top + row * len(found)
        parts.append(f'<path d="M{x:.1f} {top - 6}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{percent} %</text>')
    for number, (sampler, means) in enumerate(found):
        y = top + row * (number + 0.5)
        weight = ' font-weight="bold"' if sampler in rows.GOALS else ""
        parts.append(f'<text x="8" y="{y + 4:.1f}"{weight}>{sampler}</text>')
        ends = at(min(means)), at(max(means))
        parts.append(f'<path d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}" stroke="#999"/>')
        for value, shade in zip(means, shades, strict=True):
            parts.append(f'<circle cx="{at(value):.1f}" cy="{y:.1f}" r="5" fill="{shade}"/>')
    for number, (budget, shade) in enumerate(zip(rows.BUDGETS, shades, strict=True)):
        x = left + 250 + 70 * number
        parts.append(f'<circle cx="{x}" cy="28" r="5" fill="{shade}"/>')
        parts.append(f'<text x="{x + 9}" y="32">{budget} trials</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _marks(table: ReplayedTable, sampler: str, y: float, at: Any, colour: str) -> Iterator[str]:
    """One row of the picture."""
    random = at(table.facts["within"]["0.03"]["random_median"])
    yield f'<text x="8" y="{y + 4:.1f}">{table.name}, {sampler}</text>'
    yield (
        f'<path d="M{random - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="#888888" stroke-width="1.6"/>'
    )
    found = table.trials(sampler, "0.03")
    if found is None:
        return
    most = table.conditions[sampler]["trials"]
    ends = [rows.rank_of(found, share) for share in (0.5, 0.9)]
    drawn = [at(min(end, most)) for end in ends]
    yield f'<path d="M{drawn[0]:.1f} {y:.1f}H{drawn[1]:.1f}" stroke="{colour}" stroke-width="2"/>'
    for end, x in zip(ends, drawn, strict=True):
        fill = colour if math.isfinite(end) else "white"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}"/>'


def write(data: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Make the page and its picture; returns the page's path.

    Raises:
        FileNotFoundError: there is no data.
    """
    tables, others = rows.read(data)
    if not tables:
        raise FileNotFoundError(f"no data in {data}")
    (out / "search").mkdir(parents=True, exist_ok=True)
    (out / "search" / "trials.svg").write_text(picture(tables), encoding="utf-8")
    (out / "search" / "regrets.svg").write_text(regrets_picture(tables), encoding="utf-8")
    path = out / "search.md"
    path.write_text(page(tables, others), encoding="utf-8")
    return path
