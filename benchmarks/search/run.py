"""Search on recorded tables: everything that the page of results shows, by one command.

    python benchmarks/search/run.py [--jobs N] [--seeds 100] [--only NAME ...] [--page]

Replays what `benchmarks/search/data` lacks, measures the samplers' own time, and writes
`benchmarks/results/search.md`. Killed, it goes on where it was. `--only` takes rows of `PROTOCOL.md`
(tried, oracle, harm, peers, gallery, transfer, study, wrong, verdicts, own-time), cases and conditions,
replays what they need and prints the rows instead of the page. Serves nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import conditions
import measure
import page
import replayed_case
import rows
import timing
from result import RESULTS, machine_facts

from tuner.sampling import registry

OWN_TIME = "own-time"
HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = {
    "optuna": "optuna",
    "smac": "smac",
    "skopt": "scikit-optimize",
    "GPy": "GPy",
    "torch": "torch",
}
"""Modules whose versions matter, and their packages."""


def main() -> int:
    """Measure what is not there, and write the page."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    told = "folder of tables"
    parser.add_argument("--tables", type=pathlib.Path, default=HERE.parent / "tables", help=told)
    parser.add_argument("--cases", type=pathlib.Path, default=HERE / "cases.yaml", help="cases")
    told = "folder of what was replayed"
    parser.add_argument("--data", type=pathlib.Path, default=HERE / "data", help=told)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the page")
    told = "processes; default: the cores"
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help=told)
    told = "searches of each condition; default 100"
    parser.add_argument("--seeds", type=int, default=100, help=told)
    told = "samplers to compare with, with commas between them; default: all that are installed"
    parser.add_argument("--peers", default=",".join(conditions.PEERS), help=told)
    told = "rows, cases and conditions, by name; default: all"
    parser.add_argument("--only", nargs="*", default=[], help=told)
    told = "replay nothing: write the page, or print the rows of --only, from what is there"
    parser.add_argument("--page", action="store_true", help=told)
    options = parser.parse_args()
    for name in ("jobs", "seeds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: expected a whole number from 1")
    if not options.page:
        replay(parser, options)
    if options.only:
        cases, others = replayed_case.read(options.data)
        asked = set(options.only)
        named = {case.name for case in cases} & asked
        cases = [case for case in cases if not named or case.name in named]
        wanted = rows.EVERY.keys() & asked or (set() if OWN_TIME in asked else rows.EVERY.keys())
        found = [row(cases) for key, row in rows.EVERY.items() if key in wanted]
        found += [rows.own_time(others.get("timing"))] if OWN_TIME in asked else []
        sections = [page.section(row) for row in found if row.lines]
        print("\n\n".join([page.overview(found), *sections]))
        return 0
    try:
        print(page.write(options.data, options.out))
    except FileNotFoundError as error:
        sys.stderr.write(
            f"run.py: {error}; record tables with `tune record` into {options.tables}\n"
        )
        return 2
    return 0


def replay(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill the folder of the data."""
    cases = conditions.read_cases(options.cases)
    only = set(options.only)
    named = {case.name for case in cases} & only
    # A row but `transfer`, which needs the other loads, names what its cases need; a label may not.
    is_some = bool(named) and only - named <= rows.EVERY.keys() - {"transfer"}
    some = [case for case in cases if case.name in named] if is_some else cases
    grounds, left_out = conditions.prepare(some, options.tables)
    for text in left_out:
        measure.say(f"left out: {text}")
    tasks = measure.tasks_of(
        cases,
        grounds,
        data=options.data,
        peers=_find_installed(options.peers.split(",")),
        seeds=options.seeds,
    )
    keys, labels = only & set(rows.EVERY), only & {task.label for task in tasks}
    if unknown := only - named - keys - labels - {OWN_TIME}:
        parser.error(f"--only {' '.join(sorted(unknown))}: no row, case or condition")
    wanted = [
        task
        for task in tasks
        if (not named or task.case.name in named)
        # A sampler and a row may have one name, as oracle has.
        and (not keys | labels or keys & set(task.condition.rows) or task.label in labels)
        and only != {OWN_TIME}
    ]
    if not all(measure.is_done(task, grounds[task.case.name]) for task in wanted):
        packages = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module)]
        measure.write(options.data / "machine.json", machine_facts(packages))
    if not is_some:
        measure.write(options.data / "left-out.json", {"cases": left_out})
    measure.run(wanted, grounds, data=options.data, jobs=options.jobs)
    has_times = (options.data / "timing.json").exists()
    if (not only or OWN_TIME in only) and not has_times:
        measure.say("the samplers' own time, among 5,000 configurations")
        measure.write(options.data / "timing.json", timing.measure())


def _find_installed(names: Sequence[str]) -> tuple[str, ...]:
    """Return the samplers whose packages are here; the others are named and left out."""
    for name in names:
        if not registry.is_installed(name):
            measure.say(f"left out: {name} needs {registry.OPTIONAL_DEPENDENCIES[name].package}")
    return tuple(name for name in names if registry.is_installed(name))


if __name__ == "__main__":
    sys.exit(main())
