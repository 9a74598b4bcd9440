"""How long the samplers themselves take: the time of a proposal after 60 trials, among 5,000 configurations.

In: nothing. Out: seconds by sampler. What is launched is computed: the closed form with the noise of
launches; so the time is that of the sampler and of the store in memory.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from tuner.settings.search import SearchSettings
from tuner.space import files
from tuner.space.environment import Environment, Machine
from tuner.store.study_store import StudyStore
from tuner.store.trial_rows import TrialResult
from tuner.study import prediction, problem
from tuner.study.samplers import sampler_of
from tuner.values.trial import OK

SAMPLERS = ("gp", "structured")
CELLS = 5000
TRIALS = 60
LAST = 5
"""Trials before the last one, whose median time is told."""
LAUNCH_SD = 0.05
DEFAULT_MS = 150.0
SPACE = """
name: timing
knobs:
  replica.count: {type: int, choices: [1, 2, 3, 4, 5, 6, 7, 8], default: 1, unit: replicas}
  replica.cpu: {type: float, choices: [0.3, 0.5, 0.75, 1.0, 1.5], scale: log, default: 1.0, unit: cores}
  replica.threads: {type: int, choices: [1, 2, 3, 4, 8], scale: log, default: 1, unit: threads}
  batching.max_size: {type: int, choices: [1, 4, 8, 16, 64], scale: log, default: 8, unit: items}
  batching.timeout_us: {type: int, choices: [0, 100, 300, 1000, 3000], scale: log, default: 0, unit: us}
equivalence: []
"""


def seconds_of(sampler: str, *, trials: int = TRIALS, seed: int = 0) -> float:
    """Median time of the last proposals of one search."""
    environment = Environment(concurrency=100, machine=Machine(cores=16, memory_mb=65_536))
    arena = problem.make_problem(files.parse(SPACE, "timing"), environment, limits="enforced")
    cells = arena.candidates.configurations
    if len(cells) != CELLS:
        raise RuntimeError(f"the space has {len(cells)} configurations, expected {CELLS}")
    truth = prediction.estimate(arena, DEFAULT_MS).prediction
    assert truth is not None
    arena = prediction.estimate(arena, DEFAULT_MS / 1.5)
    rng = np.random.default_rng(seed)
    settings = SearchSettings(sampler=sampler, trials=trials, seed=seed)
    store = StudyStore.in_memory("timing")
    store.use_sampler(sampler_of(settings, arena))
    store.enqueue(arena.default, origin="default")
    took_s = []
    for _ in range(trials):
        begun_s = time.perf_counter()
        proposed = store.ask(arena.distributions, else_origin="guided")
        place = arena.candidates.index_of(proposed.configuration)
        assert place is not None
        moment = LAUNCH_SD * rng.standard_normal()
        result = TrialResult(
            outcome=OK,
            measurement=None,
            objective=float(truth[place] * np.exp(moment)),
            startup_s=0.0,
            overhead_s=0.0,
            started_at=2.5 * len(took_s),
            error=0.02,
            effort=moment - 7.0,
        )
        store.tell(proposed, result)
        took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s[-LAST:])


def measure() -> dict[str, object]:
    """All samplers that the target speaks of."""
    return {
        "cells": CELLS,
        "trials": TRIALS,
        "seconds": {sampler: seconds_of(sampler) for sampler in SAMPLERS},
    }
