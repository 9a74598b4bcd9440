"""Share of the variance between evaluations of one configuration that CPU time explains, by table.

    python benchmarks/search/noise_told.py [TABLE ...]

Over configurations with two launches and more, each against the means of its own: the spread of the
logarithm of the objective and of the CPU time of a request, the share of the first's variance that the
second explains, and the slope. Serves nothing.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator

import numpy as np

from tuner.lab.tables import table_files
from tuner.lab.tables.table import BenchmarkTable
from tuner.measurement.host import log_cpu_per_request
from tuner.metrics import objective as objectives
from tuner.metrics.objective import Objective

TABLES = pathlib.Path(__file__).resolve().parents[1] / "tables"
LEAST_LAUNCHES = 2


def main() -> None:
    """Print a line for each table."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument(
        "tables", nargs="*", type=pathlib.Path, help="folders of tables; default: the recorded ones"
    )
    folders = parser.parse_args().tables
    folders = folders or sorted(path.parent for path in TABLES.glob("*/histograms.csv.gz"))
    print("table             launches  spread  of CPU time  explained  slope")
    for path in folders:
        table = table_files.read(path)
        rows = np.array(list(deviations(table, objectives.find_objective(table.head.objective))))
        value, effort = rows.std(axis=0)
        correlation = float(np.corrcoef(rows.T)[0, 1])
        print(
            f"{table.head.name:17} {len(rows):8} {value:7.1%} {effort:12.1%} {correlation**2:10.0%} "
            f"{correlation * value / effort:6.2f}"
        )


def deviations(table: BenchmarkTable, objective: Objective) -> Iterator[tuple[float, float]]:
    """Of each launch from the mean of its configuration: logarithms of objective and CPU time."""
    for launches in table.by_cell.values():
        rows = []
        for launch in launches:
            measured = table.measurement_of(launch)
            effort = None if measured is None else log_cpu_per_request(measured)
            if measured is not None and effort is not None:
                rows.append((float(np.log(objective.to_minimise(measured))), effort))
        if len(rows) >= LEAST_LAUNCHES:
            off = np.array(rows) - np.mean(rows, axis=0)
            yield from (off * np.sqrt(len(rows) / (len(rows) - 1))).tolist()


if __name__ == "__main__":
    main()
