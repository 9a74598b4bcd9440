"""The page of results: every row's target, figure and whether it is reached, then a section for each row.

In: what `measure.py` has kept. Out: `results/search.md` and its picture. Measures nothing.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import picture
import replayed_case
import rows
from replayed_case import ReplayedCase
from result import Table
from row import Row

HEAD = """# Search

How well the tuner searches, by replays on recorded tables: each row of the
[protocol](../search/PROTOCOL.md), which was written before the runs. Made by

```
python benchmarks/search/run.py
```

Regrets are losses against the optimum of the recording; "within 3 %" means within the larger of 3 % and two
standard errors of the optimum. *Judges* are recordings on which no setting was chosen.
"""
PICTURE = "search/regrets.svg"
MARKS = {"reached": "yes", "MISSED": "**no**", "not measured": "not measured"}


def page(cases: Sequence[ReplayedCase], others: Mapping[str, Any], *, has_picture: bool) -> str:
    """Return the whole page."""
    found = [row(cases) for row in rows.EVERY.values()]
    parts = [HEAD, overview([*found, rows.own_time(others.get("timing"))])]
    parts += [f"![Mean regret against time]({PICTURE})"] if has_picture else []
    parts += [section(row) for row in found if row.lines]
    parts += [_cases(cases), _machines(cases, others)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def overview(found: Sequence[Row]) -> str:
    """Return a line for each row."""
    return Table(
        title="## What was reached",
        head=("row", "what", "target", "measured", "reached"),
        rows=[
            (row.key, row.what, row.target, row.measured or "-", MARKS[row.verdict])
            for row in found
        ],
        left=5,
    ).text()


def section(row: Row) -> str:
    """Return one row by cases."""
    what = row.what[0].upper() + row.what[1:]
    title = f"## {row.key.capitalize()}\n\n{what}. Target: {row.target}."
    return Table(title=title, head=row.head, rows=row.lines).text()


def _cases(cases: Sequence[ReplayedCase]) -> str:
    head = ("case", "objective", "configurations", "evaluations", "a trial", "error of the optimum")
    return Table(
        title="## The cases",
        head=(*head, "default loses"),
        rows=[_facts(case) for case in cases],
        left=2,
    ).text()


def _facts(case: ReplayedCase) -> tuple[str, ...]:
    facts = case.facts
    lost = facts["default_regret"]
    return (
        case.label,
        facts["objective"],
        str(facts["candidates"]),
        f"{facts['evaluations']:,}",
        f"{facts['trial_s']:.1f} s",
        f"{facts['optimum_se']:.1%}",
        "fails" if lost is None else f"{lost:.1%}",
    )


def _machines(cases: Sequence[ReplayedCase], others: Mapping[str, Any]) -> str:
    hosts = sorted({f"{case.facts['cores']} cores, {case.facts['cpu']}" for case in cases})
    told = [f"recorded on: {', '.join(hosts)}"]
    told += [f"{key}: {value}" for key, value in others.get("machine", {}).items()]
    told += [f"left out: {text}" for text in others.get("left-out", {}).get("cases", ())]
    return "## Machines\n\n" + "\n".join(f"- {line}" for line in told)


def write(data: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Make the page and return its path.

    Raises:
        FileNotFoundError: there is no data.
    """
    cases, others = replayed_case.read(data)
    if not cases:
        raise FileNotFoundError(f"no data in {data}")
    path, drawn = out / "search.md", out / PICTURE
    drawn.parent.mkdir(parents=True, exist_ok=True)
    regrets = picture.regrets(cases)
    if regrets is not None:
        drawn.write_text(regrets, encoding="utf-8")
    path.write_text(page(cases, others, has_picture=regrets is not None), encoding="utf-8")
    return path
