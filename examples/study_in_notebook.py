"""What a study has measured, as tables of pandas:

    python examples/study_in_notebook.py runs/NAME

In a notebook `study` alone on the last line of a cell shows its end; docs/reports.md lists the columns.
"""

from __future__ import annotations

import sys

import tuner


def main() -> None:
    """Print the verdict, the three best launches, and how latencies differ from connection to connection."""
    study = tuner.load(sys.argv[1])
    print(study.verdict.text if study.verdict else "no verdict yet")

    trials = study.trials()
    ok = trials[trials["status"] == "ok"].sort_values("mean_ms")
    print(ok[["batching.max_size", "mean_ms", "mean_low_ms", "mean_high_ms"]].head(3).to_string())

    requests = study.requests(trial=0)
    measured = requests[requests["is_measured"]]
    print(measured.groupby("connection")["latency_ms"].describe()[["count", "mean", "max"]])


if __name__ == "__main__":
    main()
