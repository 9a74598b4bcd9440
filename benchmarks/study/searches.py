"""Searches of one unit, trial by trial in turns, and their winners side by side in the same moments.

The study set the best of 25 random trials against that of 25 random and 25 guided ones. Here every
search has the same budget, and `random, half` is the best that the first half of the random trials
saw, as the study chose.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
from findings import STEP, stays_at
from units import Unit

from tuner.evaluation.evaluator import Evaluator
from tuner.lab.sampler_searches import SearchRun, start_search, take_turns
from tuner.measurement import comparison, sequential
from tuner.settings.search import SearchSettings
from tuner.settings.store import StoreSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.event_log import EventLog
from tuner.store.run_folder import RunFolder
from tuner.study import targets, verification
from tuner.study.preparation import make_evaluator, needs_of, prepare
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Progress, Terminal
from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement
from tuner.values.trial import Trial

SAMPLERS = ("random", "gpy", "epsilon-greedy", "structured")
"""Random search, the study's method, a simpler one, and Luthier's default."""
SD = 0.02
"""Assumed spread of the log ratio of two interleaved evaluations."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Trials of each search, and most rounds of its winners."""

    trials: int = 50
    rounds: int = 12


def searched(unit: Unit, budget: Budget) -> dict[str, Any]:
    """Run the unit's searches and compare their winners."""
    with tempfile.TemporaryDirectory(prefix="study-") as place:
        settings = StudySettings(
            target=TargetSettings(
                model=unit.model,
                concurrency=unit.concurrency,
                client_batch=unit.client_batch,
                spawner=unit.spawner,
            ),
            search=SearchSettings(trials=budget.trials, seed=unit.seed),
            store=StoreSettings(study="study", runs_dir=place),
        )
        terminal = Terminal(
            console=rich.console.Console(stderr=True), log=EventLog(), check=lambda: None
        )
        target = targets.find_target(settings.target)
        with make_evaluator(settings, target, terminal) as evaluator:
            problem = prepare(evaluator, settings, target, terminal).problem
            runs = _searches(unit, settings, problem, evaluator, pathlib.Path(place), terminal)
            winners = _winners(unit, runs, problem)
            rounds = _compared(evaluator, winners, runs, settings, budget.rounds)
            candidates = len(problem.candidates.configurations)
    knobs = list(problem.default)
    return {
        "trials": budget.trials,
        "candidates": candidates,
        "knobs": knobs,
        "searches": {
            name: {
                "configurations": [[t.configuration[knob] for knob in knobs] for t in one.trials],
                "objectives": [_rounded(t.objective) for t in one.trials],
            }
            for name, run in runs.items()
            for one in [run.search]
        },
        "winners": {role: dict(winner) for role, winner in winners.items()},
        "rounds": rounds,
    }


def _searches(
    unit: Unit,
    settings: StudySettings,
    problem: ProblemStatement,
    evaluator: Evaluator,
    place: pathlib.Path,
    terminal: Terminal,
) -> dict[str, SearchRun]:
    folder = RunFolder(place, "study")
    folder.create(settings.as_nested(), {})
    if unit.kind == "repeated":
        short = dataclasses.replace(
            settings, search=dataclasses.replace(settings.search, initial=STEP)
        )
        runs = {
            "gpy": start_search(settings, folder, problem, evaluator, "gpy", 0),
            "repeated": start_search(short, folder, problem, evaluator, "gpy", 1),
        }
    else:
        runs = {
            name: start_search(settings, folder, problem, evaluator, name, 0) for name in SAMPLERS
        }
    progress = Progress(terminal.console, default=problem.default, objective="mean")
    take_turns(list(runs.values()), progress, terminal, later_s=0.0)
    return runs


def _winners(
    unit: Unit, runs: Mapping[str, SearchRun], problem: ProblemStatement
) -> dict[str, Configuration]:
    """Return the recommendation of each search, what the study's rules choose, and the default."""
    found = {
        name: winner
        for name, run in runs.items()
        if (winner := run.search.recommend(keeps_default=False)) is not None
    }
    if unit.kind == "repeated":
        trials = runs["repeated"].search.trials
        ends = stays_at([t.configuration for t in trials], [t.objective for t in trials])
        seen = {"repeated": trials[:ends]}
    else:
        trials = runs["random"].search.trials
        seen = {"random, half": trials[: len(trials) // 2]}
    found |= {role: best for role, some in seen.items() if (best := _best(some)) is not None}
    return {role: problem.named(one) for role, one in found.items()} | {"default": problem.default}


def _best(trials: Sequence[Trial]) -> Configuration | None:
    known = [(t.objective, t.number, t.configuration) for t in trials if t.objective is not None]
    return min(known)[2] if known else None


def _compared(
    evaluator: Evaluator,
    winners: Mapping[str, Configuration],
    runs: Mapping[str, SearchRun],
    settings: StudySettings,
    most: int,
) -> dict[str, list[list[float] | None]]:
    """Return mean, p5, p95 and p99 in ms of each role and round, None for a failure.

    Equal winners are one arm.
    """
    arm_of: dict[Configuration, str] = {}
    for role, winner in winners.items():
        arm_of.setdefault(winner, role)
    arms = {role: winner for winner, role in arm_of.items()}
    rule = sequential.StoppingRule(most=most, sd=SD)

    def is_enough(rounds: verification.Rounds) -> bool:
        found = [
            (pair, verification.among(rounds.evaluations, *pair).measurements)
            for pair in itertools.combinations(arms, 2)
        ]
        return len(rounds.evaluations) >= sequential.MIN_PAIRS * len(arms) and all(
            comparison.is_enough(both[one], both[other], ("mean",), rule)
            for (one, other), both in found
        )

    trials = [trial for run in runs.values() for trial in run.search.trials]
    slowest_s = verification.slowest_latency_s(trials, arms.values())
    with verification.open_rounds(
        evaluator, arms, latency_s=slowest_s, say=lambda _: None
    ) as source:
        found = verification.alternate(
            source,
            rounds=most,
            needs=needs_of(settings),
            report=lambda *_: None,
            is_enough=is_enough,
        )
    figures: dict[str, list[list[float] | None]] = {role: [] for role in arms}
    for one in found.evaluations:
        figures[one.role].append(None if one.measurement is None else _figures(one.measurement))
    return {role: figures[arm_of[winner]] for role, winner in winners.items()}


def _figures(measured: Measurement) -> list[float]:
    low = measured.p95_ms - measured.spread_ms
    return [round(v, 4) for v in (measured.mean_ms, low, measured.p95_ms, measured.p99_ms)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
