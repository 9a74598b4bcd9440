"""Search on recorded tables: everything that the page of results shows, by one command.

    python benchmarks/search/run.py [--jobs N] [--seeds 100] [--only NAME ...] [--page]

Replays what `benchmarks/search/data` lacks, a file per table and condition, measures the samplers' own
time, and writes `benchmarks/results/search.md`. Killed, it goes on where it was. Serves nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import measure
import page
import timing
from result import RESULTS, machine_facts

from tuner.lab.tables import table_files

HERE = pathlib.Path(__file__).resolve().parent
TABLES = HERE.parent / "tables"
DATA = HERE / "data"
PACKAGES = {"optuna": "optuna", "smac": "smac", "skopt": "scikit-optimize"}
"""Modules whose versions matter, and their packages."""


def main() -> int:
    """Measure what is not there, and write the page."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--tables", type=pathlib.Path, default=TABLES, help="folder of tables")
    parser.add_argument(
        "--data", type=pathlib.Path, default=DATA, help="folder of what was replayed"
    )
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the page")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: the cores"
    )
    parser.add_argument(
        "--seeds", type=int, default=100, help="searches of each condition; default 100"
    )
    parser.add_argument(
        "--studies",
        type=int,
        default=measure.STUDIES,
        help="studies with a verdict, over all tables together, of each kind; default 1000",
    )
    parser.add_argument(
        "--peers",
        default=",".join(measure.PEERS),
        help="samplers to compare with, with commas between them; default: "
        f"{', '.join(measure.PEERS)}, as far as they are installed (botorch takes many hours)",
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="tables and conditions, by name; default: all"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page from what is there alone"
    )
    options = parser.parse_args()
    for name in ("jobs", "seeds", "studies"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: expected a whole number from 1")
    if not options.page:
        replay(options)
    try:
        written = page.write(options.data, options.out)
    except FileNotFoundError as error:
        sys.stderr.write(
            f"run.py: {error}; record tables with `tune record` into {options.tables}\n"
        )
        return 2
    print(written)
    return 0


def replay(options: argparse.Namespace) -> None:
    """Fill the folder of the data."""
    folders = [path for path in options.tables.glob("*") if table_files.is_table(path)]
    if not folders:
        return
    grounds = measure.grounds_of(options.tables)
    tasks = measure.tasks_of(
        grounds,
        data=options.data,
        peers=measure.installed(options.peers.split(",")),
        seeds=options.seeds,
        studies=options.studies,
    )
    tables, labels = set(options.only) & set(grounds), set(options.only) - set(grounds)
    wanted = [
        task
        for task in tasks
        if (not tables or task.table in tables) and (not labels or task.label in labels)
    ]
    if any(not measure.is_done(task, grounds[task.table]) for task in wanted):
        packages = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module)]
        measure.write(options.data / "machine.json", machine_facts(packages))
    measure.run(wanted, grounds, data=options.data, jobs=options.jobs)
    if not (options.data / "timing.json").exists() and not options.only:
        measure.say("the samplers' own time, among 5,000 configurations")
        measure.write(options.data / "timing.json", timing.measure())


if __name__ == "__main__":
    sys.exit(main())
