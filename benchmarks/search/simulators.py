"""Errors of the closed form and of the event simulation, on the recorded tables.

    python benchmarks/search/simulators.py [TABLE ...]

Prints for each table, over all configurations and over the 40 that are truly best: the correlation of
the logarithms, the spread of the error, the rank correlation. Takes some seconds a table; serves nothing.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
from scipy.stats import spearmanr

from tuner.evaluation.simulation import closed_form, discrete
from tuner.lab import prepared_table
from tuner.lab.tables import table_files
from tuner.study import prediction

TABLES = pathlib.Path(__file__).resolve().parent.parent / "tables"
BEST = 40


def main() -> int:
    """Both simulators on every table with a profile."""
    given = [pathlib.Path(name) for name in sys.argv[1:]]
    for folder in given or sorted(head.parent for head in TABLES.glob("*/histograms.csv.gz")):
        ground = prepared_table.prepare_table(table_files.read(folder))
        if ground.profile is None:
            continue
        load, truth = prediction.workload_of(ground.problem.environment), ground.truth
        best = np.argsort(truth.log_mean)[:BEST]
        for name, mean_ms in (
            ("closed form", closed_form.mean_ms),
            ("simulation", discrete.mean_ms),
        ):
            guess = np.log([mean_ms(ground.profile, load, cell) for cell in truth.candidates])
            error = truth.log_mean - guess
            together = np.corrcoef(guess, truth.log_mean)[0, 1]
            ranks = spearmanr(guess[best], truth.log_mean[best])[0]
            sys.stdout.write(
                f"{folder.name:<12} {name:<12} correlation {together:.3f}, spread {error.std():.1%}; "
                f"of the {BEST} best: rank correlation {ranks:.2f}, spread {error[best].std():.1%}\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
