"""How long the default study takes, and what a trial costs beside its measurement.

Runs `tune --model resnet --concurrency 20` as a user does, in a folder of its own, then reads every
trial's overhead (seconds that were neither warm-up nor measurement) from the stored study. The study is the
whole of it: search, finals, verification and the open loop.

    python benchmarks/tune_default.py [--write] [--json]

Ends with 1 when a target is missed or the study could not be done. Takes up to six minutes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import result

from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.values.trial import Trial

MODEL = "resnet"
CONCURRENCY = 20
STUDY = "default"
LONGEST_S = 360.0
OVERHEAD_S = 0.7


class StudyFailed(Exception):
    """The study ended with another code than 0."""


def run_study(runs_dir: pathlib.Path) -> tuple[float, dict[str, Any]]:
    """The study, with progress on stderr: seconds from the command's start to its end, and what it told."""
    tune = pathlib.Path(sys.executable).with_name("tune")
    command = [str(tune), "--model", MODEL, "--concurrency", str(CONCURRENCY)]
    started_s = time.monotonic()
    done = subprocess.run(
        [*command, "--study", STUDY, "--runs-dir", str(runs_dir), "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    seconds = time.monotonic() - started_s
    if done.returncode != 0:
        raise StudyFailed(f"`tune` ended with {done.returncode}")
    return seconds, json.loads(done.stdout)


def stored_trials(runs_dir: pathlib.Path) -> tuple[Trial, ...]:
    """The trials of the study, as the store returns them."""
    folder = RunFolder(runs_dir, STUDY)
    return StudyStore.open_study(STUDY, database=folder.database, url=None).trials()


def concluded(seconds: float, told: dict[str, Any], trials: tuple[Trial, ...]) -> result.Result:
    """Tables and verdict."""
    verdict = told.get("verdict")
    decided = "none: the default was the best of all" if verdict is None else verdict["outcome"]
    pairs = 0 if verdict is None else len(verdict["default"])
    measured = [trial for trial in trials if trial.measurement is not None]
    overheads = sorted(trial.overhead_s for trial in measured)
    median = statistics.median(overheads)
    rows = [
        ("study, s", f"{seconds:.0f}"),
        ("trials", str(len(trials))),
        ("trials with a measurement", str(len(measured))),
        ("verdict", decided),
        ("pairs of fresh starts", str(pairs)),
        ("overhead of a trial, median, s", f"{median:.2f}"),
        ("overhead of a trial, 90th percentile, s", f"{overheads[int(0.9 * len(overheads))]:.2f}"),
        ("overhead of a trial, largest, s", f"{overheads[-1]:.2f}"),
        ("all overheads together, s", f"{sum(overheads):.0f}"),
    ]
    return result.Result(
        name="tune_default",
        question=(
            f"How long does `tune --model {MODEL} --concurrency {CONCURRENCY}` take, and how much "
            f"of a trial is neither warm-up nor measurement?"
        ),
        target=(
            f"at most {LONGEST_S:.0f} s for the study with its verdict, at most {OVERHEAD_S} s for the "
            f"median overhead of a trial"
        ),
        verdict=f"{seconds:.0f} s for the study, {median:.2f} s median overhead",
        is_met=seconds <= LONGEST_S and verdict is not None and median <= OVERHEAD_S,
        tables=(result.Table(title="The default study", head=("figure", "value"), rows=rows),),
        figures={
            "seconds": seconds,
            "verdict": decided,
            "pairs": pairs,
            "trials": len(trials),
            "overheads_s": [trial.overhead_s for trial in measured],
            "launches_s": [trial.startup_s for trial in measured],
        },
        packages=("optuna", "scipy", "onnxruntime"),
    )


def main() -> int:
    """Run, read, conclude."""
    parser = argparse.ArgumentParser(description="time and overhead of the default study")
    result.add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = pathlib.Path(folder)
        seconds, told = run_study(runs_dir)
        trials = stored_trials(runs_dir)
    return result.conclude(concluded(seconds, told, trials), options)


if __name__ == "__main__":
    sys.exit(main())
