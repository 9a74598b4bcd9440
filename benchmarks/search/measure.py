"""Replays of the cases of `cases.yaml`, a file of figures per seed for each case and condition.

In: folders of `tune record`. Out: JSON files, from which the page is computed. What is there, of the
same recording and as many seeds, is not replayed again. Serves nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import oracle
from conditions import HALF_S, WHOLE_S, Case, Condition, conditions

from tuner.lab import replay
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.tables import sampler_results, scoring
from tuner.lab.tables.ground_truth import GroundTruth
from tuner.lab.tables.scoring import ReplayedVerdict, ReplayRun
from tuner.report import formatting
from tuner.values.configuration import Configuration

AT_S = (15, 30, 53, 60, 90, 120)
HARM_TRIALS = range(5, 61)
MOST_HARM = 0.03
EARLY = 15
"""First trials whose mean regret is compared after another load."""
TRIED = 0.03
SHARES = (0.05, 0.10)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One file to make."""

    case: Case
    label: str
    condition: Condition
    seeds: int
    path: pathlib.Path


def tasks_of(
    cases: Sequence[Case],
    grounds: Mapping[str, PreparedTable],
    *,
    data: pathlib.Path,
    peers: Collection[str],
    seeds: int,
) -> list[Task]:
    """Return all files that there are to be, also those that are there; main cases come first."""
    return [
        Task(
            case=case,
            label=label,
            condition=condition,
            seeds=min(seeds, condition.most_seeds),
            path=data / case.name / f"{label}.json",
        )
        for case in sorted(cases, key=lambda case: not case.is_main)
        if case.name in grounds
        for label, condition in conditions(case, cases, grounds, peers).items()
    ]


def is_done(task: Task, ground: PreparedTable) -> bool:
    """Whether the file is there, of this recording, this long and of at least these seeds."""
    try:
        kept = json.loads(task.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(
        kept["evaluations"] == len(ground.table.evaluations)
        and kept["max_s"] == task.condition.max_s
        and kept["seeds"] >= task.seeds
    )


def run(
    tasks: Sequence[Task], grounds: Mapping[str, PreparedTable], *, data: pathlib.Path, jobs: int
) -> None:
    """Replay what is not there yet, in so many processes."""
    for case in {task.case.name: task.case for task in tasks}.values():
        write(data / case.name / "case.json", facts_of(case, grounds[case.name]))
    waiting = [task for task in tasks if not is_done(task, grounds[task.case.name])]
    say(f"{len(tasks)} conditions, {len(waiting)} left")
    for number, task in enumerate(waiting, start=1):
        ground, begun_s = grounds[task.case.name], time.monotonic()
        runs = runs_of(task, grounds, jobs)
        write(task.path, summary(ground, task.condition, runs))
        took = formatting.duration(time.monotonic() - begun_s)
        say(f"{task.case.name} {task.label}: {took}; {len(waiting) - number} left")


def runs_of(task: Task, grounds: Mapping[str, PreparedTable], jobs: int) -> Sequence[ReplayRun]:
    """Replay a condition."""
    ground, condition = grounds[task.case.name], task.condition
    if condition.sampler != "oracle":
        return replay.replay(ground, condition.spec(task.seeds, grounds), workers=jobs).runs
    law = oracle.noise_law(ground)
    return [oracle.search(ground, law, seed, max_s=condition.max_s) for seed in range(task.seeds)]


def summary(
    ground: PreparedTable, condition: Condition, runs: Sequence[ReplayRun]
) -> dict[str, Any]:
    """Return the figures of a condition, by seed where the rows need them so."""
    truth, default = ground.truth, ground.problem.default
    head = {
        "sampler": condition.sampler,
        "max_s": condition.max_s,
        "evaluations": len(ground.table.evaluations),
        "seeds": len(runs),
    }
    studies = {
        f"{search_s:g}": [_study(ground, run.studies[place]) for run in runs]
        for place, search_s in enumerate(condition.studies_s)
    }
    if condition.is_null:
        return head | {"studies": studies}
    regrets = [sampler_results.run_regrets(run, truth, default) for run in runs]
    usual = min(truth.regret(default), max(map(max, regrets)))
    ends = [end for end in (HALF_S, WHOLE_S) if end <= condition.max_s]
    return head | {
        "regret_at_s": {
            str(at_s): [_at(each, usual, ended_by(run, at_s)) for each, run in pair(regrets, runs)]
            for at_s in AT_S
            if at_s <= condition.max_s
        },
        "regret_early": [float(np.mean(each[:EARLY])) for each in regrets],
        "tried": [_tried(run, truth) for run in runs],
        "trials": {
            f"{end:g}": float(np.median([ended_by(run, end) for run in runs])) for end in ends
        },
        "within": {
            f"{share:g}": {
                f"{end:g}": [_within(run, truth, share, end) for run in runs] for end in ends
            }
            for share in SHARES
        },
        "within_s": {
            f"{share:g}": [_within_s(run, truth, share, condition.max_s) for run in runs]
            for share in SHARES
        },
        "harm": [
            float(np.mean([_harms(run, trial, ground) for run in runs])) for trial in HARM_TRIALS
        ],
        "studies": studies,
    }


def pair(
    regrets: Sequence[Sequence[float]], runs: Sequence[ReplayRun]
) -> list[tuple[Sequence[float], ReplayRun]]:
    """Return each run beside its regrets."""
    return list(zip(regrets, runs, strict=True))


def ended_by(run: ReplayRun, at_s: float) -> int:
    """Return the number of trials that had ended by this time."""
    return int(np.searchsorted(run.seconds, at_s, side="right"))


def _at(regrets: Sequence[float], usual: float, trial: int) -> float:
    """Return the regret after so many trials, or after the last one; before the first the default's."""
    return regrets[min(trial, len(regrets)) - 1] if trial else usual


def _tried(run: ReplayRun, truth: GroundTruth) -> int | None:
    good = truth.good(TRIED)
    return next((number for number, cell in enumerate(run.cells, start=1) if cell in good), None)


def _until(run: ReplayRun, at_s: float) -> ReplayRun:
    count = ended_by(run, at_s)
    return dataclasses.replace(
        run,
        cells=run.cells[:count],
        recommended=run.recommended[:count],
        seconds=run.seconds[:count],
    )


def _within(run: ReplayRun, truth: GroundTruth, share: float, end_s: float) -> int | None:
    found = scoring.trials_to(_until(run, end_s), truth.good(share))
    return int(found) if math.isfinite(found) else None


def _within_s(run: ReplayRun, truth: GroundTruth, share: float, end_s: float) -> float | None:
    trial = _within(run, truth, share, end_s)
    return None if trial is None else run.seconds[trial - 1]


def _harms(run: ReplayRun, trial: int, ground: PreparedTable) -> bool:
    """Whether what is recommended after a trial, or the last one, is clearly worse than the default."""
    cell = run.recommended[min(trial, len(run.recommended)) - 1]
    return cell is not None and _is_worse(cell, ground)


def _is_worse(cell: Configuration, ground: PreparedTable) -> bool:
    loss, usual = ground.truth.regret(cell), ground.truth.regret(ground.problem.default)
    return math.isfinite(usual) and (1 + loss) / (1 + usual) > 1 + MOST_HARM


def _study(ground: PreparedTable, verdict: ReplayedVerdict) -> dict[str, Any]:
    """Return the end of a study; it serves the best only if that is shown to be better."""
    is_better = verdict.outcome == "better" and verdict.best is not None
    served = verdict.best if is_better else ground.problem.default
    assert served is not None
    return {
        "outcome": verdict.outcome,
        "covers": verdict.covers,
        "seconds": verdict.seconds,
        "is_good": served in ground.truth.good(SHARES[0]),
        "regret": _regret(ground, verdict.recommended),
        "leading_regret": _regret(ground, verdict.leading),
    }


def _regret(ground: PreparedTable, cell: Configuration | None) -> float:
    """Return the finite loss of a recommendation, which is the default before there is another."""
    truth = ground.truth
    return min(truth.worst_regret, truth.regret(ground.problem.default if cell is None else cell))


def facts_of(case: Case, ground: PreparedTable) -> dict[str, Any]:
    """Return how large a case is, and how well known."""
    head, truth = ground.table.head, ground.truth
    return {
        "table": case.table,
        "half": case.half,
        "is_main": case.is_main,
        "model": head.model,
        "objective": ground.objective,
        "cpu": head.host["host"].get("cpu", ""),
        "cores": head.host["host"]["cores"],
        "candidates": len(ground.problem.candidates.configurations),
        "evaluations": len(ground.table.evaluations),
        "optimum_se": truth.optimum_se,
        "default_regret": truth.regret(ground.problem.default),
        "trial_s": ground.trial_s,
        "good": {f"{share:g}": len(truth.good(share)) for share in (TRIED, *SHARES)},
    }


def write(path: pathlib.Path, found: Mapping[str, Any]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text(json.dumps(_plain(found)) + "\n", encoding="utf-8")
    made.replace(path)


def say(text: str) -> None:
    """Tell a person how far it is."""
    sys.stderr.write(f"{text}\n")


def _plain(value: Any) -> Any:
    """Return four digits, and null for what JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value
