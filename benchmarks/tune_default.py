"""How long the default study takes, how good what it recommends is, and what a trial costs beside its measurement.

Runs `tune --model resnet --concurrency 20` as a user does, with several seeds, each in a folder of its own
that learns from no other. The study is the whole of it: search, finals, verification and the open loop. What the
studies recommend is then measured side by side, with the best configuration of the recorded table: regret is the
loss against the best of all. A trial's overhead are its seconds that were neither warm-up nor measurement.

    python benchmarks/tune_default.py [--studies 10] [--write] [--json]

Ends with 1 when a target is missed or a study could not be done. A study takes some two minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import result
import rich.console

from tuner.lab import table_benchmark
from tuner.metrics.benchmark import rank
from tuner.settings.store import StoreSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.event_log import EventLog
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import study_files, targets, verification
from tuner.study.preparation import make_evaluator, needs_of, prepare
from tuner.study.progress import Terminal
from tuner.values.configuration import Configuration
from tuner.values.trial import Trial

MODEL = "resnet"
CONCURRENCY = 20
TABLE = pathlib.Path(__file__).parent / "tables" / "resnet-20-quiet"
KNOWN = "the table's best"
STUDY = "default"
LONGEST_S = 120.0
REGRET, SHARE = 0.05, 0.9
OVERHEAD_S = 0.7
ROUNDS = 12


class StudyFailed(Exception):
    """A study, or the measurement after it, did not end well."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DefaultStudy:
    """One study that has ended."""

    seed: int
    seconds: float
    """From the command's start to its end."""
    outcome: str
    """Outcome of the verdict, in words."""
    pairs: int
    served: Configuration
    """The best if it was shown to be better, otherwise the default."""
    trials: tuple[Trial, ...]

    @property
    def overheads_s(self) -> list[float]:
        """Overhead of each trial with a measurement."""
        return [trial.overhead_s for trial in self.trials if trial.measurement is not None]


def run_study(seed: int, runs_dir: pathlib.Path) -> DefaultStudy:
    """Run one study, with progress on stderr."""
    tune = pathlib.Path(sys.executable).with_name("tune")
    command = [str(tune), "--model", MODEL, "--concurrency", str(CONCURRENCY), "--seed", str(seed)]
    started_s = time.monotonic()
    done = subprocess.run(
        [*command, "--study", STUDY, "--runs-dir", str(runs_dir), "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    seconds = time.monotonic() - started_s
    if done.returncode != 0:
        raise StudyFailed(f"`tune` ended with {done.returncode}")
    verdict = json.loads(done.stdout).get("verdict")
    folder = RunFolder(runs_dir, STUDY)
    store = StudyStore.open_study(STUDY, database=folder.database, url=None)
    trials, end = store.trials(), study_files.read_end(folder)
    assert end is not None
    is_better = verdict is not None and verdict["outcome"] == "better"
    served = end.best if is_better else trials[0].configuration
    assert served is not None
    return DefaultStudy(
        seed=seed,
        seconds=seconds,
        outcome="the default was the best of all" if verdict is None else verdict["outcome"],
        pairs=0 if verdict is None else len(verdict["default"]),
        served=served,
        trials=trials,
    )


def measured_regrets(
    configurations: Mapping[str, Configuration], trials: Sequence[Trial]
) -> dict[str, float]:
    """Measure configurations side by side; return what each loses against the best of them.

    Their time slices are as long as the latencies of `trials` ask for.
    """
    arms: dict[Configuration, str] = {}
    for name, one in configurations.items():
        arms.setdefault(one, name)
    with tempfile.TemporaryDirectory() as place:
        settings = StudySettings(
            target=TargetSettings(model=MODEL, concurrency=CONCURRENCY),
            store=StoreSettings(study="side-by-side", runs_dir=place),
        )
        terminal = Terminal(
            console=rich.console.Console(stderr=True), log=EventLog(), check=lambda: None
        )
        target = targets.find_target(settings.target)
        with make_evaluator(settings, target, terminal) as evaluator:
            prepare(evaluator, settings, target, terminal)
            with verification.open_rounds(
                evaluator,
                {name: one for one, name in arms.items()},
                latency_s=verification.slowest_latency_s(trials, arms),
                say=terminal.say,
            ) as source:
                found = verification.alternate(
                    source, rounds=ROUNDS, needs=needs_of(settings), report=lambda *_: None
                )
    if not found.complete_rounds:
        raise StudyFailed("what the studies recommend could not be measured side by side")
    means = {
        name: statistics.geometric_mean(one.mean_ms for one in each)
        for name, each in found.measurements.items()
    }
    best = min(means.values())
    return {name: means[arms[one]] / best - 1 for name, one in configurations.items()}


def concluded(studies: Sequence[DefaultStudy], regrets: Mapping[str, float]) -> result.Result:
    """Tables and verdict."""
    seconds = rank([one.seconds for one in studies], SHARE)
    regret = rank([regrets[str(one.seed)] for one in studies], SHARE)
    assert seconds is not None
    assert regret is not None
    overheads = sorted(each for one in studies for each in one.overheads_s)
    median = statistics.median(overheads)
    rows = [
        (
            str(one.seed),
            f"{one.seconds:.0f}",
            str(len(one.trials)),
            one.outcome,
            str(one.pairs),
            f"{regrets[str(one.seed)]:.1%}",
        )
        for one in studies
    ]
    told = [
        ("median", f"{median:.2f}"),
        ("90th percentile", f"{overheads[int(0.9 * len(overheads))]:.2f}"),
        ("largest", f"{overheads[-1]:.2f}"),
    ]
    return result.Result(
        name="tune_default",
        question=(
            f"How long does `tune --model {MODEL} --concurrency {CONCURRENCY}` take, how much does what it "
            f"recommends lose, and how much of a trial is neither warm-up nor measurement?"
        ),
        target=(
            f"{SHARE:.0%} of the studies end within {LONGEST_S:.0f} s and lose at most {REGRET:.0%}; median "
            f"overhead of a trial at most {OVERHEAD_S} s"
        ),
        verdict=f"{seconds:.0f} s, {regret:.1%}, {median:.2f} s; {KNOWN} loses {regrets[KNOWN]:.1%}",
        is_met=seconds <= LONGEST_S and regret <= REGRET and median <= OVERHEAD_S,
        tables=(
            result.Table(
                title=f"{len(studies)} studies",
                head=("seed", "seconds", "trials", "verdict", "pairs", "regret"),
                rows=rows,
            ),
            result.Table(title="Overhead of a trial, s", head=("", "s"), rows=told),
        ),
        figures={
            "seconds": [one.seconds for one in studies],
            "regrets": dict(regrets),
            "overheads_s": overheads,
        },
        packages=("optuna", "scipy", "onnxruntime"),
    )


def main() -> int:
    """Run, compare, conclude."""
    parser = argparse.ArgumentParser(description="time, regret and overhead of the default study")
    parser.add_argument("--studies", type=int, default=10, help="studies, of seeds from 0 on")
    result.add_options(parser)
    options = parser.parse_args()
    if options.studies < 1:
        parser.error(f"--studies {options.studies}: expected a whole number from 1")
    ground = table_benchmark.prepare_table(TABLE, {"objective": "mean"})
    studies = []
    for seed in range(options.studies):
        with tempfile.TemporaryDirectory() as folder:
            studies.append(run_study(seed, pathlib.Path(folder)))
    configurations = {str(one.seed): one.served for one in studies}
    configurations[KNOWN] = ground.truth.candidates[ground.truth.best]
    trials = [trial for one in studies for trial in one.trials]
    return result.conclude(concluded(studies, measured_regrets(configurations, trials)), options)


if __name__ == "__main__":
    sys.exit(main())
