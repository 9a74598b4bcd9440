"""What a benchmark found: printed as a table, as JSON, or written as a page of results.

In: figures, tables and whether the target is met. Out: text; a page in `benchmarks/results/` with
the machine, the versions and the command that reproduces it. Knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
from collections.abc import Mapping, Sequence

import serving

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under a head; printed as Markdown, which reads as text too."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    left: int = 1
    """Columns that stand to the left: texts. The others, figures, to the right."""

    def text(self) -> str:
        """The table with columns in line."""
        widths = [
            max(len(row[i]) for row in (self.head, *self.rows)) for i in range(len(self.head))
        ]
        rule = [
            "-" * width if i < self.left else "-" * (width - 1) + ":"
            for i, width in enumerate(widths)
        ]
        lines = []
        for row in (self.head, rule, *self.rows):
            cells = [
                cell.ljust(widths[i]) if i < self.left else cell.rjust(widths[i])
                for i, cell in enumerate(row)
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return f"{self.title}\n\n" + "\n".join(lines)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one benchmark."""

    name: str
    """File name of the page, and of the script."""
    question: str
    target: str
    verdict: str
    """One sentence with the figure that the target speaks of."""
    is_met: bool
    tables: tuple[Table, ...]
    figures: Mapping[str, object]
    """Everything measured, for `--json`."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions matter beside our own."""
    versions: tuple[str, ...] = ()
    """Name and version of what is installed elsewhere: peers with an environment of their own."""
    notes: tuple[str, ...] = ()
    """Sentences that a reader needs beside the figures."""

    def text(self) -> str:
        """What a person reads on a terminal."""
        tables = "\n\n".join(table.text() for table in self.tables)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"{tables}\n\n{self._conclusion()}{notes}"

    def page(self) -> str:
        """The page of results, in Markdown."""
        machine = "\n".join(
            f"- {key}: {value}"
            for key, value in machine_facts(self.packages, self.versions).items()
        )
        notes = "".join(f"- {note}\n" for note in self.notes) + "\n" * bool(self.notes)
        return (
            f"# {self.name.replace('_', ' ').capitalize()}\n\n{self.question}\n\n"
            f"Run again with `python benchmarks/{self.name}.py --write`.\n\n"
            f"{self._conclusion()}\n\n{notes}"
            + "\n\n".join(f"## {table.text()}" for table in self.tables)
            + f"\n\n## Machine\n\n{machine}\n"
        )

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(
            {
                "benchmark": self.name,
                "target": self.target,
                "verdict": self.verdict,
                "is_met": self.is_met,
                "figures": self.figures,
                "machine": machine_facts(self.packages, self.versions),
            }
        )

    def _conclusion(self) -> str:
        return f"Target: {self.target}\n{'Met' if self.is_met else 'MISSED'}: {self.verdict}"


def machine_facts(packages: Sequence[str], others: Sequence[str] = ()) -> dict[str, str]:
    """What the figures depend on; nothing that names the machine or a person."""
    cpu = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    versions = [f"luthier {serving.__version__} (request path: {serving.form()})"]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "processor": f"{cpu}, {len(os.sched_getaffinity(0))} cores",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": ", ".join((*versions, *others)),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    parser.add_argument("--write", action="store_true", help="write the page in benchmarks/results")


def parsed(parser: argparse.ArgumentParser, **quick: float) -> argparse.Namespace:
    """The options of a script that can be tried quickly: `--quick` sets these ones of its options."""
    told = ", ".join(f"{name} {value:g}" for name, value in quick.items())
    parser.add_argument("--quick", action="store_true", help=f"to see that it works: {told}")
    add_options(parser)
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("a quick run is no result: leave out --write or --quick")
    if options.quick:
        vars(options).update(quick)
    return options


def say(text: str) -> None:
    """Tell a person how far it is; what was found goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def conclude(result: Result, options: argparse.Namespace) -> int:
    """Print the result as asked, and return the exit code: 0 when the target is met."""
    print(result.as_json() if options.json else result.text())
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{result.name}.md").write_text(result.page(), encoding="utf-8")
    return 0 if result.is_met else 1
