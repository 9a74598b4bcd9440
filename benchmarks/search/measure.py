"""Replays searches on the recorded tables, and keeps what each found: a file per table and condition.

In: folders of `tune record`. Out: JSON files with a figure per seed, from which the page is computed.
What is there, of the same table and as many seeds, is not replayed again. Serves nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from tuner.errors import InvalidTable
from tuner.lab import prepared_table, replay, replay_search
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.replay_search import ReplaySpec
from tuner.lab.tables import sampler_results, scoring, table_files
from tuner.lab.tables.table_evaluator import Perturbations
from tuner.metrics import benchmark
from tuner.metrics import objective as objectives
from tuner.report import formatting
from tuner.sampling import registry
from tuner.settings.measurement import OF_MEANS
from tuner.study import prediction
from tuner.values.configuration import Configuration
from tuner.values.study_record import OUR_ENGINE

OURS = ("gp", "structured")
PEERS = (
    "random",
    "tpe",
    "optuna-gp",
    "smac",
    "skopt",
    "ridge",
    "hill-climb",
    "prediction",
    "epsilon-greedy",
)
WRONG = ("shuffled", "inverted", "constant", "twice")
TRIALS = 40
PEER_TRIALS = 50
"""Of searches whose trials to a share are compared with one another."""
STUDIES = 1000
"""Replayed studies of the null table and of coverage, over all tables together."""
STUDY_TRIALS = 25
PAIRS = 20
TOLD, TOLD_SEEDS, TOLD_TRIALS = 10, 100, 60
"""Of a search that is told the best cells: how many of them, seeds, and trials of each."""
PARTS = {"median": 0.5, "p90": 0.9}
BLOCKS = (1, 2, 3)
"""Fixed lengths of trials that racing is compared with, beside whole ones."""
BUDGETS = (15, 30, 50)
"""Trials at which regrets are compared."""
USUAL_S = {
    "gp": 0.02,
    "structured": 0.025,
    "random": 0.01,
    "epsilon-greedy": 0.02,
    "tpe": 0.02,
    "hill-climb": 0.01,
    "prediction": 0.01,
}
"""Time of a replayed trial on one core, where no data tells it; `OTHER_S` of the other samplers."""
OTHER_S = 0.15


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One way to replay a table."""

    sampler: str
    trials: int = TRIALS
    guess: replay_search.PredictionKind = "profile"
    wrappers: Perturbations = dataclasses.field(default_factory=Perturbations)
    pairs: int = 0
    after: str = ""
    """Name of the table that is searched before."""

    def order(self, seeds: int, grounds: Mapping[str, PreparedTable]) -> ReplaySpec:
        """What is replayed."""
        return ReplaySpec(
            sampler=self.sampler,
            trials=self.trials,
            seeds=tuple(range(seeds)),
            guess=self.guess,
            perturbations=self.wrappers,
            pairs=self.pairs,
            after=grounds.get(self.after),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One file to make."""

    table: str
    label: str
    condition: Condition
    seeds: int
    path: pathlib.Path

    @property
    def trials(self) -> int:
        """Launches to replay, as far as they cost time."""
        return self.seeds * self.condition.trials


def conditions(
    peers: Sequence[str], *, has_profile: bool, is_raced: bool = True
) -> dict[str, Condition]:
    """By label; those that need another load of the model are those of `transfers`.

    Args:
        peers: samplers to compare with.
        has_profile: whether there is a prediction that can be wrong.
        is_raced: whether trials of the objective can end early.
    """
    noisy, walls = Perturbations(noise_sd=0.05), Perturbations(injects_oom=True)
    found = {name: Condition(sampler=name, trials=PEER_TRIALS) for name in OURS}
    for name in OURS:
        found[f"{name}-noise"] = Condition(sampler=name, wrappers=noisy, trials=PEER_TRIALS)
        found[f"{name}-walls"] = Condition(sampler=name, wrappers=walls)
    study = Condition(sampler="structured", trials=STUDY_TRIALS, pairs=PAIRS)
    found["null"] = dataclasses.replace(study, wrappers=Perturbations(is_null=True))
    found["coverage"] = dataclasses.replace(study, wrappers=Perturbations(is_resampled=True))
    found["coverage-raw"] = study
    if is_raced:
        for blocks in BLOCKS:
            fixed = Perturbations(max_blocks=blocks)
            found[f"blocks-{blocks}"] = Condition(sampler="structured", wrappers=fixed)
        found["raced"] = Condition(sampler="structured", wrappers=Perturbations(is_raced=True))
    if has_profile:
        for wrong in WRONG:
            found[f"structured-{wrong}"] = Condition(
                sampler="structured", trials=PEER_TRIALS, guess=wrong
            )
    for peer in peers:
        if has_profile or peer != "prediction":
            found[peer] = Condition(sampler=peer, trials=PEER_TRIALS)
    return found


def transfers(name: str, grounds: Mapping[str, PreparedTable]) -> Iterator[tuple[str, Condition]]:
    """A search that has searched the same model under another load before."""
    own = grounds[name].table.head
    for other, ground in grounds.items():
        head = ground.table.head
        is_same = (head.model, head.engine) == (own.model, own.engine)
        if is_same and head.concurrency != own.concurrency:
            yield (
                f"after-{other}",
                Condition(sampler="structured", after=other, trials=PEER_TRIALS),
            )


def grounds_of(folder: pathlib.Path) -> dict[str, PreparedTable]:
    """All tables of a folder that can be replayed; the others are named and left out."""
    found: dict[str, PreparedTable] = {}
    for path in sorted(folder.iterdir()):
        if not table_files.is_table(path):
            continue
        try:
            found[path.name] = prepared_table.prepare_table(table_files.read(path))
        except InvalidTable as error:
            say(f"left out: {error}")
    return found


def installed(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the samplers whose packages are here; the others are named and left out."""
    for name in names:
        if not registry.is_installed(name):
            say(f"left out: {name} needs {registry.OPTIONAL_DEPENDENCIES[name].package}")
    return tuple(name for name in names if registry.is_installed(name))


def tasks_of(
    grounds: Mapping[str, PreparedTable],
    *,
    data: pathlib.Path,
    peers: Sequence[str],
    seeds: int,
    studies: int,
) -> list[Task]:
    """All files that there are to be, also those that are there.

    Args:
        grounds: the tables by name.
        data: folder of the files.
        peers: samplers to compare with.
        seeds: of each condition.
        studies: of the null table, and of each kind of coverage, over all tables together.
    """
    found = []
    for name, ground in grounds.items():
        every = conditions(
            peers,
            has_profile=ground.profile is not None,
            is_raced=ground.objective in OF_MEANS,
        )
        every.update(transfers(name, grounds))
        for label, condition in every.items():
            count = -(-studies // len(grounds)) if condition.pairs else seeds
            path = data / name / f"{label}.json"
            found.append(Task(table=name, label=label, condition=condition, seeds=count, path=path))
    return found


def is_done(task: Task, ground: PreparedTable) -> bool:
    """Whether the file is there, of this table, this many trials and at least these seeds."""
    try:
        kept = json.loads(task.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(
        kept.get("launches") == len(ground.table.evaluations)
        and kept.get("trials") == task.condition.trials
        and kept.get("seeds", 0) >= task.seeds
    )


def run(
    tasks: Sequence[Task], grounds: Mapping[str, PreparedTable], *, data: pathlib.Path, jobs: int
) -> None:
    """Replay what is not there yet, and say how long it takes.

    Args:
        tasks: all files that there are to be.
        grounds: the tables by name.
        data: folder of the files.
        jobs: processes.
    """
    for name, ground in grounds.items():
        write(data / name / "table.json", facts_of(ground))
    waiting = [task for task in tasks if not is_done(task, grounds[task.table])]
    rates = known_rates(data)
    say(
        f"{len(tasks)} conditions, {len(tasks) - len(waiting)} of them done; {_left(waiting, rates, jobs)}"
    )
    for number, task in enumerate(waiting):
        ground = grounds[task.table]
        order = task.condition.order(task.seeds, grounds)
        begun_s = time.monotonic()
        replayed = replay.replay(ground, order, workers=jobs)
        took_s = time.monotonic() - begun_s
        found = summary(ground, task, replayed)
        found["core_s_per_trial"] = took_s * min(jobs, task.seeds) / task.trials
        if task.condition.after:
            found["old_best_regret"] = _finite(
                old_best_regret(ground, grounds[task.condition.after])
            )
        write(task.path, found)
        rates[task.label] = found["core_s_per_trial"]
        left = _left(waiting[number + 1 :], rates, jobs)
        say(f"{task.table} {task.label}: {formatting.duration(took_s)}; {left}")


def known_rates(data: pathlib.Path) -> dict[str, float]:
    """Seconds of one core for a trial, by label, as earlier commands have kept them."""
    found: dict[str, float] = {}
    for path in data.glob("*/*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if "core_s_per_trial" in kept:
            found[path.stem] = kept["core_s_per_trial"]
    return found


def _left(tasks: Sequence[Task], rates: Mapping[str, float], jobs: int) -> str:
    usual = {task.label: USUAL_S.get(task.condition.sampler, OTHER_S) for task in tasks}
    core_s = sum(
        task.trials * rates.get(task.label, rates.get(task.condition.sampler, usual[task.label]))
        for task in tasks
    )
    return f"{len(tasks)} left, about {formatting.duration(core_s / jobs)}"


def summary(ground: PreparedTable, task: Task, replayed: replay.ReplayResult) -> dict[str, Any]:
    """What the page needs of a condition, a figure per seed."""
    truth, runs, condition = ground.truth, replayed.runs, task.condition
    regrets = sampler_results.finite_regrets(runs, truth, ground.problem.default)
    return {
        "table": task.table,
        "label": task.label,
        "sampler": condition.sampler,
        "trials": condition.trials,
        "launches": len(ground.table.evaluations),
        "profiling": replay_search.profiling_trials(ground, replayed.order),
        "seeds": len(runs),
        "trials_to": {
            f"{share:g}": [_finite(scoring.trials_to(run, truth.good(share))) for run in runs]
            for share in scoring.SHARES
        },
        "regrets": {
            str(budget): [_finite(value) for value in regrets[:, budget - 1]]
            for budget in BUDGETS
            if budget <= condition.trials
        },
        "seconds": {
            str(budget): [_finite(run.seconds[budget - 1]) for run in runs]
            for budget in BUDGETS
            if budget <= condition.trials
        },
        "lost": [list(run.lost) for run in runs],
        "verdicts": [
            {
                "outcome": run.verdict.outcome,
                "ratio": run.verdict.ratio,
                "true_ratio": run.verdict.true_ratio,
                "covers": run.verdict.covers,
                "pairs": run.verdict.pairs,
            }
            for run in runs
            if run.verdict is not None
        ],
    }


def facts_of(ground: PreparedTable) -> dict[str, Any]:
    """The table itself: how large, how well known, and how well predicted."""
    head, truth = ground.table.head, ground.truth
    cells = len(ground.problem.candidates.configurations)
    return {
        "model": head.model,
        "concurrency": head.concurrency,
        "client_batch": head.client_batch,
        "engine": head.engine if head.engine == OUR_ENGINE else "another engine",
        "objective": ground.objective,
        "cpu": head.host["host"].get("cpu", ""),
        "cores": head.host["host"]["cores"],
        "cells": cells,
        "feasible": len(truth.candidates),
        "launches": len(ground.table.evaluations),
        "optimum": truth.optimum,
        "optimum_se": truth.optimum_se,
        "default_regret": _finite(truth.regret(ground.problem.default)),
        "trial_s": ground.trial_s,
        "within": {
            f"{share:g}": {
                "tolerance": truth.tolerance(share),
                "good_cells": len(truth.good(share)),
                "random_median": scoring.random_median(cells, len(truth.good(share))),
            }
            for share in scoring.SHARES
        },
        "told_best": told_best(ground),
        "simulator": simulator_error(ground),
    }


def told_best(ground: PreparedTable) -> dict[str, dict[str, float | None]]:
    """Trials of a search that is told the best cells, and launches them in turn: what noise alone costs.

    It recommends the one with the lowest mean so far, and knows nothing else of launches.

    Returns:
        By share: median and 90th percentile, None where fewer than that get there.
    """
    truth, objective = ground.truth, objectives.find_objective(ground.objective)
    best = np.argsort(truth.log_mean)[:TOLD]
    found: dict[str, list[float]] = {f"{share:g}": [] for share in scoring.SHARES}
    for seed in range(TOLD_SEEDS):
        bench = replay_search.make_evaluator(ground, Perturbations(), seed)
        turns = np.random.default_rng(seed).permutation(best)
        values: dict[Configuration, list[float]] = {}
        recommended: list[Configuration | None] = []
        for number in range(TOLD_TRIALS):
            cell = truth.candidates[int(turns[number % len(turns)])]
            measured = bench.evaluate(cell).measurement
            if measured is not None:
                values.setdefault(cell, []).append(math.log(objective.to_minimise(measured)))
            means = {each: sum(logs) / len(logs) for each, logs in values.items()}
            recommended.append(min(means, key=lambda each: means[each], default=None))
        run = scoring.ReplayRun(
            seed=seed, cells=(None,) * TOLD_TRIALS, recommended=tuple(recommended)
        )
        for share in scoring.SHARES:
            found[f"{share:g}"].append(scoring.trials_to(run, truth.good(share)))
    return {
        share: {name: benchmark.rank(trials, part) for name, part in PARTS.items()}
        for share, trials in found.items()
    }


def simulator_error(ground: PreparedTable) -> dict[str, float] | None:
    """How far the prediction lies from the truth, over the feasible cells; None where there is none.

    The level is taken out of the error of the logarithms, as the search takes it out.
    """
    if ground.profile is None or ground.objective not in prediction.OBJECTIVES:
        return None
    arena = prediction.with_prediction(ground.problem, ground.profile)
    assert arena.prediction is not None
    places = [arena.candidates.index_of(cell) for cell in ground.truth.candidates]
    guess = np.log([arena.prediction[place] for place in places if place is not None])
    errors = guess - ground.truth.log_mean
    chosen = arena.predicted_best
    return {
        "rank_correlation": float(stats.spearmanr(guess, ground.truth.log_mean).statistic),
        "argmin_regret": math.inf if chosen is None else ground.truth.regret(chosen),
        "log_rmse": float(errors.std()),
        "level": float(errors.mean()),
    }


def old_best_regret(ground: PreparedTable, before: PreparedTable) -> float:
    """Return the regret, on this table, of another load's best cell; infinite if this table lacks it."""
    return ground.truth.regret(before.truth.candidates[before.truth.best])


def write(path: pathlib.Path, found: Mapping[str, Any]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text(json.dumps(_plain(found)) + "\n", encoding="utf-8")
    made.replace(path)


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Five digits, and null for what JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _finite(value) if isinstance(value, float) else value
