"""By how much ratios of two configurations move from one session to another, in recorded launches.

    python benchmarks/verdict/sessions.py

Two recordings of one grid: for each configuration the logarithm of its mean in the one over that in the other. What
all of them share is the machine's level; what they differ by beyond what their launches explain is the
configurations' own. Within one recording: its launches by configuration and sitting (launches without ten minutes
between them), by analysis of variance. A ratio of two configurations moves by the root of two times as much, and
that is what `tuner.measurement.comparison.SESSION_SD` is.
"""

from __future__ import annotations

import collections
import math
import pathlib
import sys

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import result

from tuner.lab.tables import table_files
from tuner.lab.tables.table import BenchmarkTable
from tuner.measurement.comparison import SESSION_SD
from tuner.values.configuration import Configuration

TABLES = pathlib.Path(__file__).resolve().parents[1] / "tables"
PAIRS = (("resnet-20", "resnet-20-quiet"),)
"""Recordings of one grid."""
APART_S = 600.0
Array = NDArray[np.float64]


def logs_of(table: BenchmarkTable) -> dict[Configuration, list[tuple[float, float]]]:
    """By configuration: when each launch began, and the logarithm of its mean."""
    found: dict[Configuration, list[tuple[float, float]]] = collections.defaultdict(list)
    for launch in table.evaluations:
        if launch.blocks:
            counts = np.array([block.requests for block in launch.blocks], dtype=float)
            means = np.array([block.mean_ms for block in launch.blocks])
            found[launch.cell].append((launch.started_at, math.log(counts @ means / counts.sum())))
    return found


def between(first: BenchmarkTable, second: BenchmarkTable) -> tuple[int, float]:
    """Configurations in both recordings, and the standard deviation of a ratio between them."""
    one, other = logs_of(first), logs_of(second)
    cells = [cell for cell in one if min(len(one[cell]), len(other.get(cell, ()))) > 1]
    sides = [[np.array([log for _, log in logs[cell]]) for cell in cells] for logs in (one, other)]
    moved = np.array([a.mean() - b.mean() for a, b in zip(*sides, strict=True)])
    noise = np.mean(
        [a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b) for a, b in zip(*sides, strict=True)]
    )
    return len(cells), math.sqrt(2 * max(0.0, float(moved.var(ddof=1) - noise)))


def within(table: BenchmarkTable) -> tuple[int, float]:
    """Sittings of one recording, and the standard deviation of a ratio between two of them; NaN of one."""
    logs = logs_of(table)
    times = np.sort([at for launches in logs.values() for at, _ in launches])
    ends = times[:-1][np.diff(times) > APART_S]
    sittings = len(ends) + 1
    if sittings < 2:
        return sittings, math.nan
    rows = [
        (number, int(np.searchsorted(ends, at)), log)
        for number, launches in enumerate(logs.values())
        for at, log in launches
    ]
    cell, sitting, values = (np.array(column) for column in zip(*rows, strict=True))
    effects = np.hstack([np.eye(cell.max() + 1)[cell], np.eye(sittings)[sitting]])
    fitted = effects @ np.linalg.lstsq(effects, values, rcond=None)[0]
    groups: dict[tuple[int, int], list[float]] = collections.defaultdict(list)
    for place, value in zip(zip(cell, sitting, strict=True), values, strict=True):
        groups[place].append(value)
    inside = sum(float(((np.array(one) - np.mean(one)) ** 2).sum()) for one in groups.values())
    own = inside / (len(values) - len(groups))
    shared_degrees = len(groups) - int(np.linalg.matrix_rank(effects))
    shared = (float(((values - fitted) ** 2).sum()) - inside) / shared_degrees
    per_group = len(values) / len(groups)
    return sittings, math.sqrt(4 * max(0.0, (shared - own) / per_group))


def main() -> int:
    """Run the command."""
    folders = sorted(path.parent for path in TABLES.glob("*/histograms.csv.gz"))
    tables = {path.name: table_files.read(path) for path in folders}
    rows = []
    for names in PAIRS:
        count, sd = between(*(tables[name] for name in names))
        rows.append((" and ".join(names), f"{count} configurations", f"{100 * sd:.1f} %"))
    for name, table in tables.items():
        sittings, sd = within(table)
        told = "-" if math.isnan(sd) else f"{100 * sd:.1f} %"
        rows.append((f"{name}, its sittings", f"{sittings} sittings", told))
    title = f"A ratio moves by (taken: {100 * SESSION_SD:.1f} %)"
    print(
        result.Table(title=title, head=("", "of", "sd of the logarithm"), rows=rows, left=2).text()
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
