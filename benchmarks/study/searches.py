"""One search of each kind under one budget, and their winners on fresh starts, in turn.

    tune compare (random and guided, trial by trial in turns) -> winners -> fresh starts, alternating

The study compared the best of 25 random trials with the best of 25 random and 25 guided ones, by
the single measurements that the search saw. The fair comparison gives both 50 trials and measures
the winners anew. Both are in one row: `objectives` of all trials in order, and `remeasured` means
of three winners: that of the first 25 random trials (the best one seen, as the study chose), that
of all 50, and the guided one.
"""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.launching.engine_process import LuthierLauncher
from tuner.measurement.outcome import EvaluationRequirements
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import problem, verification
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.trial import Trial

STUDY = "compare"
SHARES = np.linspace(0, 1, 101)


class SearchFailed(Exception):
    """`tune compare` ended with another code than 0, or found nothing that works."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One search of each kind."""

    model: str
    spawner: str
    concurrency: int
    guided: str
    trials: int
    seed: int
    rounds: int
    measurement: MeasurementSettings


def searched(order: Order) -> dict[str, Any]:
    """Search, and measure the winners anew.

    Raises:
        SearchFailed: there is no result.
    """
    with tempfile.TemporaryDirectory(prefix="study-") as runs_dir:
        by_sampler = _compared(order, pathlib.Path(runs_dir))
    half = order.trials // 2
    random, guided = by_sampler["random"], by_sampler[order.guided]
    winners = {
        "random, half": _best(random[:half]),
        "random": _best(random),
        "guided": _best(guided),
    }
    measured, quantiles = _remeasured(order, winners)
    return {
        "key": {"concurrency": order.concurrency, "seed": order.seed},
        "trials": order.trials,
        "seconds": order.measurement.seconds,
        "guided": order.guided,
        "objectives": {
            "random": [_rounded(trial.objective) for trial in random],
            "guided": [_rounded(trial.objective) for trial in guided],
        },
        "winners": {role: dict(configuration) for role, configuration in winners.items()},
        "remeasured": measured,
        "quantiles": quantiles,
    }


def _compared(order: Order, runs_dir: pathlib.Path) -> dict[str, tuple[Trial, ...]]:
    """Trials of `tune compare` by sampler."""
    settings = order.measurement
    command = [sys.executable, "-m", "tuner.cli.main", "compare"]
    command += ["--model", order.model, "--concurrency", str(order.concurrency)]
    command += ["--spawner", order.spawner]
    command += ["--samplers", f"random,{order.guided}", "--trials", str(order.trials)]
    command += ["--initial", str(order.trials // 2), "--seed", str(order.seed), "--pairs", "2"]
    command += ["--seconds", str(settings.seconds), "--warmup", str(settings.warmup_s)]
    command += ["--study", STUDY, "--runs-dir", str(runs_dir)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SearchFailed(f"`tune compare` ended with {done.returncode}")
    database = RunFolder(runs_dir, STUDY).database
    return {
        sampler: StudyStore.open_study(f"{sampler}-0", database=database, url=None).trials()
        for sampler in ("random", order.guided)
    }


def _best(trials: tuple[Trial, ...]) -> Configuration:
    """Configuration of the lowest single measurement, which is what the study took."""
    ok = [trial for trial in trials if trial.objective is not None]
    if not ok:
        raise SearchFailed(f"none of {len(trials)} trials worked")
    return min(ok, key=lambda trial: trial.objective or 0.0).configuration


def _remeasured(
    order: Order, winners: dict[str, Configuration]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Means of the winners' fresh starts, paired by round, and quantiles of the first one's round trips."""
    quantiles: dict[str, list[float]] = {}

    def report(starts: tuple[RoundEvaluation, ...], launch: Evaluation) -> None:
        role = starts[-1].role
        if launch.records is not None and launch.measurement is not None:
            took_ms = 1e3 * (launch.records.finished_s - launch.records.started_s)
            is_measured = launch.records.finished_s > launch.measurement.warmup_s
            found = np.quantile(took_ms[is_measured], SHARES)
            quantiles.setdefault(role, [round(float(value), 3) for value in found])

    target = TargetSettings(model=order.model, concurrency=order.concurrency)
    bench = Evaluator(
        model=order.model,
        concurrency=order.concurrency,
        settings=order.measurement,
        launcher=LuthierLauncher(order.model, order.spawner),
    )
    with bench:
        bench.send(
            problem.payloads_of(target, problem.find_spec(order.model), bench.start(), seed=0)
        )
        rounds = verification.alternate(
            verification.SequentialRounds(bench.evaluate_on_new_server, winners),
            rounds=order.rounds,
            needs=EvaluationRequirements(objective="mean"),
            report=report,
        )
    means = {
        role: [round(one.mean_ms, 4) for one in found]
        for role, found in rounds.measurements.items()
    }
    return means, quantiles


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
