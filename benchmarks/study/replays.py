"""Searches of one unit that are replayed on a recorded table, whose true values are known.

Serves nothing: a replay says what the samplers find on one recorded machine, not what it does today.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from findings import STEP, stays_at
from searches import SAMPLERS, Budget
from units import Unit

from tuner.lab import prepared_table
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.replay_search import ReplaySpec, make_evaluator, search_of
from tuner.lab.tables import table_files
from tuner.study.search import Search
from tuner.values.configuration import Configuration
from tuner.values.trial import Trial

TABLES = pathlib.Path(__file__).resolve().parents[1] / "tables"
SEEDS = 10
"""Seeds of a block."""


def replayed(unit: Unit, budget: Budget) -> dict[str, Any]:
    """Replay every sampler with the seeds of a block.

    Kept are regrets by the rules of the measured searches: of the best that was seen in the first half,
    as the study chose, and of what is recommended after all trials.
    """
    ground = prepared_table.prepare_table(table_files.read(TABLES / unit.model))
    seeds = range(SEEDS * unit.seed, SEEDS * (unit.seed + 1))
    found: dict[str, list[list[float]]] = {}
    for sampler in SAMPLERS:
        found[sampler] = []
        for seed in seeds:
            search = _start(
                ground, ReplaySpec(sampler=sampler, trials=budget.trials, seeds=(seed,))
            )
            for _ in range(budget.trials):
                search.step()
            chosen = _best_seen(search.trials[: budget.trials // 2])
            recommended = search.recommend(keeps_default=False)
            found[sampler].append([_regret(ground, chosen), _regret(ground, recommended)])
    repeated = []
    for seed in seeds:
        order = ReplaySpec(sampler="gpy", trials=budget.trials, seeds=(seed,), initial=STEP)
        repeated.append(_repeated(_start(ground, order), ground, budget.trials))
    head = ground.table.head
    return {
        "trials": budget.trials,
        "model": head.model,
        "concurrency": head.concurrency,
        "objective": ground.objective,
        "seeds": list(seeds),
        "regrets": found,
        "repeated": repeated,
    }


def _start(ground: PreparedTable, order: ReplaySpec) -> Search:
    (seed,) = order.seeds
    return search_of(ground, order, seed, make_evaluator(ground, order.perturbations, seed))


def _repeated(search: Search, ground: PreparedTable, trials: int) -> list[float]:
    """Return the trials until the optimum stays, and the regret of the best seen by then."""
    ends = STEP
    while len(search.trials) < trials:
        for _ in range(STEP):
            search.step()
        configurations = [trial.configuration for trial in search.trials]
        objectives = [trial.objective for trial in search.trials]
        ends = stays_at(configurations, objectives)
        if ends < len(search.trials):
            break
    return [ends, _regret(ground, _best_seen(search.trials[:ends]))]


def _best_seen(trials: Sequence[Trial]) -> Configuration | None:
    seen = [(t.objective, t.number, t.configuration) for t in trials if t.objective is not None]
    return min(seen)[2] if seen else None


def _regret(ground: PreparedTable, chosen: Configuration | None) -> float:
    truth = ground.truth
    lost = truth.regret(ground.problem.default if chosen is None else chosen)
    return round(min(truth.worst_regret, lost), 5)
