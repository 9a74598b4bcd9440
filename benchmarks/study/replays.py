"""Searches of one unit that are replayed on a recorded table, whose true values are known.

Serves nothing: a replay says what the samplers find on one recorded machine, not what it does today.
"""

from __future__ import annotations

import pathlib
from typing import Any

from findings import STEP, stays_at
from searches import SAMPLERS, Budget
from units import Unit

from tuner.lab import prepared_table, replay
from tuner.lab.replay_search import ReplaySpec, make_evaluator, search_of
from tuner.lab.tables import sampler_results, table_files

TABLES = pathlib.Path(__file__).resolve().parents[1] / "tables"
SEEDS = 10
"""Seeds of a block."""


def replayed(unit: Unit, budget: Budget) -> dict[str, Any]:
    """Replay every sampler with the seeds of a block; regrets after half of the trials and all."""
    ground = prepared_table.prepare_table(table_files.read(TABLES / unit.model))
    seeds = tuple(range(SEEDS * unit.seed, SEEDS * (unit.seed + 1)))
    at = (budget.trials // 2 - 1, budget.trials - 1)
    found: dict[str, list[list[float]]] = {}
    for sampler in SAMPLERS:
        order = ReplaySpec(sampler=sampler, trials=budget.trials, seeds=seeds)
        runs = replay.replay(ground, order).runs
        regrets = sampler_results.finite_regrets(runs, ground.truth, ground.problem.default)
        found[sampler] = [[round(float(row[place]), 5) for place in at] for row in regrets]
    repeated = []
    order = ReplaySpec(sampler="gpy", trials=budget.trials, seeds=seeds, initial=STEP)
    for seed in seeds:
        evaluator = make_evaluator(ground, order.perturbations, seed, seconds=order.seconds)
        search = search_of(ground, order, seed, evaluator)
        repeated.append(_repeated(search, ground, budget.trials))
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


def _repeated(search: Any, ground: Any, trials: int) -> list[float]:
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
    seen = [(t.objective, t.number, t.configuration) for t in search.trials[:ends] if t.objective]
    best = min(seen)[2] if seen else ground.problem.default
    return [ends, round(min(9.0, float(ground.truth.regret(best))), 5)]
