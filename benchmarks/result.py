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
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence

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
    outcome: str = ""
    """What stands before the verdict, where it is neither `Met` nor `MISSED`: `ratio.NOT_SHOWN`."""
    form: str = ""
    """Which request path was measured, where it is not that of this process."""
    needs: tuple[str, ...] = ()
    """Commands that come before the script's own."""

    def text(self) -> str:
        """What a person reads on a terminal."""
        tables = "\n\n".join(table.text() for table in self.tables)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"{tables}\n\n{self._conclusion()}{notes}"

    def page(self, former: str = "") -> str:
        """The page of results, in Markdown; it keeps the verdicts of the page whose place it takes."""
        machine = _listed(f"{key}: {value}" for key, value in self._machine().items())
        notes = _listed(self.notes) + "\n" * bool(self.notes)
        earlier = _listed(verdicts_of(former))
        history = f"## Earlier runs\n\n{earlier}\n" if earlier else ""
        return (
            f"# {self.name.replace('_', ' ').capitalize()}\n\n{self.question}\n\n"
            f"{self._again()}\n\n"
            f"{self._conclusion()}\n\n{notes}"
            + "\n\n".join(f"## {table.text()}" for table in self.tables)
            + f"\n\n{history}## Machine\n\n{machine}"
        )

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(
            {
                "benchmark": self.name,
                "target": self.target,
                "verdict": self.verdict,
                "is_met": self.is_met,
                "outcome": self._outcome(),
                "figures": self.figures,
                "machine": self._machine(),
            }
        )

    def _conclusion(self) -> str:
        return f"Target: {self.target}\n{self._outcome()}: {self.verdict}"

    def _outcome(self) -> str:
        return self.outcome or ("Met" if self.is_met else "MISSED")

    def _again(self) -> str:
        """The commands that made this page: with its options, and its form of the request path."""
        command = shlex.join(["python", f"benchmarks/{self.name}.py", *sys.argv[1:]])
        needs = self.needs
        if serving.form() == "compiled":
            needs, command = ("make compile", *needs), f"PYTHONPATH=build/compiled {command}"
        return f"Run again with {', then '.join(f'`{one}`' for one in (*needs, command))}."

    def _machine(self) -> dict[str, str]:
        return machine_facts(self.packages, self.versions, self.form)


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def machine_facts(
    packages: Sequence[str], others: Sequence[str] = (), form: str = ""
) -> dict[str, str]:
    """What the figures depend on; nothing that names the machine or a person."""
    cpu = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    versions = [f"luthier {serving.__version__} (request path: {form or serving.form()})"]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "processor": f"{cpu}, {len(os.sched_getaffinity(0))} cores",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": ", ".join((*versions, *others)),
    }


def verdicts_of(page: str) -> tuple[str, ...]:
    """A page's own verdict with its date and form, then those of the runs before it."""
    told = re.search(r"^Target: .*\n(.+)$", page, re.MULTILINE)
    date = re.search(r"^- date: (.+)$", page, re.MULTILINE)
    form = re.search(r"\(request path: (.+?)\)", page)
    if not (told and date and form):
        return ()
    runs = re.search(r"^## Earlier runs\n\n((?:- .*\n)+)", page, re.MULTILINE)
    earlier = [line.removeprefix("- ") for line in runs[1].splitlines()] if runs else []
    name = form[1].replace("python", "plain")
    return (f"{date[1]}, {name} form: {told[1]}", *earlier)


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
        path = RESULTS / f"{result.name}.md"
        former = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(result.page(former), encoding="utf-8")
    return 0 if result.is_met else 1
