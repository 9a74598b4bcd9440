"""Searches by several samplers that take turns on one engine."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from tuner.evaluation.evaluator import Evaluator
from tuner.measurement.search_comparison import best_so_far
from tuner.settings.study import StudySettings
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import prediction, verification
from tuner.study.preparation import budget_of
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Progress, Terminal
from tuner.study.racing import Racing
from tuner.study.search import Search
from tuner.values.configuration import Configuration
from tuner.values.sampler_comparison import SamplerRun


@dataclasses.dataclass(slots=True)
class SearchRun:
    """One search in progress."""

    search: Search
    sampler: str
    repeat: int
    seed: int


def start_search(
    settings: StudySettings,
    folder: RunFolder,
    problem: ProblemStatement,
    evaluator: Evaluator,
    sampler: str,
    repeat: int,
) -> SearchRun:
    """Start one sampler's search, with its own store."""
    mine = search_settings(settings, sampler, repeat)
    budget = dataclasses.replace(budget_of(mine, evaluator), max_time_s=math.inf)
    store = StudyStore.create(
        f"{sampler}-{repeat}",
        database=folder.database,
        url=None,
        facts={"sampler": sampler, "repeat": repeat, "seed": mine.search.seed},
    )
    search = Search(
        store=store,
        problem=prediction.enable_estimate(mine, problem),
        evaluator=evaluator,
        budget=budget,
        objective=settings.measurement.first,
        limits=settings.measurement.limits,
        stop_ei=0.0,
        keep_in=None,
        racing=Racing.of(settings),
    )
    search.prepare(mine.search)
    return SearchRun(search=search, sampler=sampler, repeat=repeat, seed=mine.search.seed)


def search_settings(settings: StudySettings, sampler: str, repeat: int) -> StudySettings:
    """Return the settings for one sampler's search."""
    search = settings.search
    mine = dataclasses.replace(
        search,
        sampler=sampler,
        seed=search.seed + repeat,
        epsilon=search.epsilon if sampler == "epsilon-greedy" else None,
    )
    return prediction.adjust_settings(dataclasses.replace(settings, search=mine))


def take_turns(
    runs: Sequence[SearchRun], progress: Progress, terminal: Terminal, *, later_s: float
) -> None:
    """Run one trial of each search in turn, reserving `later_s` for the time afterwards."""
    waiting = list(runs)
    while waiting:
        for run in list(waiting):
            if run.search.stop_reason(0.0) is not None:
                waiting.remove(run)
                continue
            terminal.check()
            trial = run.search.step()
            run.search.pause()
            left_s = sum(run.search.trials_left_s() for run in runs) + later_s
            progress.trial(trial, best=run.search.best_seen(), left_s=left_s, who=run.sampler)


def sampler_run(
    run: SearchRun, winners: Mapping[str, Configuration], measured: verification.Rounds
) -> SamplerRun:
    """Return the record of a finished search."""
    objective = run.search.objective
    values = tuple(map(objective.of, run.search.trials))
    return SamplerRun(
        sampler=run.sampler,
        repeat=run.repeat,
        seed=run.seed,
        study=f"{run.sampler}-{run.repeat}",
        objectives=values,
        best_so_far=best_so_far(values, objective),
        wall_s=sum(run.search.walls_s),
        seconds=tuple(itertools.accumulate(run.search.walls_s)),
        winner=winners.get(run.sampler),
        remeasured=measured.measurements.get(run.sampler, ()),
    )
