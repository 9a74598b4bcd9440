"""Replay of searches on a benchmark table, with evaluations drawn from it.

    table -> problem statement, ground truth, halves -> one run per seed, on all cores -> scores

Search, store and sampler are a study's. Owns the seeds' processes.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import yaml

from tuner.errors import InvalidTable, UsageError
from tuner.evaluation.simulation.profile import CostProfile
from tuner.lab.tables import scoring
from tuner.lab.tables import table_evaluator as drawing
from tuner.lab.tables.ground_truth import GroundTruth, HoldoutSplit, ground_truth, split
from tuner.lab.tables.scoring import ReplayedVerdict, ReplayRun
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation
from tuner.lab.tables.table_evaluator import Perturbations, Resampling, TableEvaluator
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import objective as objectives
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.metrics.objective import Objective
from tuner.sampling import registry
from tuner.sampling.candidates import CandidateSet
from tuner.settings.search import SearchSettings
from tuner.settings.workload import RATE
from tuner.space import distributions, files, knob_schema
from tuner.space.derived_features import features
from tuner.space.environment import Environment, Machine
from tuner.store.study_store import StudyStore
from tuner.study import final_selection, prediction, verification, warm_start
from tuner.study.budget import FINAL_ROUNDS, MAX_SHORTLIST, Budget
from tuner.study.problem import ProblemStatement
from tuner.study.racing import Racing
from tuner.study.search import Search
from tuner.study.warm_start import SourceEvaluation, SourceStudy
from tuner.values.configuration import Configuration
from tuner.values.study_record import OUR_ENGINE

PredictionKind = Literal["profile", "discrete", "none", "shuffled", "inverted", "constant", "twice"]
PREDICTIONS: tuple[PredictionKind, ...] = get_args(PredictionKind)
"""Predictions: from the table's profile, or wrong on purpose.

`profile` is the closed form; `discrete` also simulates the most promising candidates. Wrong ones
are shuffled, inverted, constant, or of a machine twice as fast except for the gateway.
"""
_APART = 1_000_003
"""Seed offset of the warm-start search."""
_STREAM = 7
"""Separates draws from the sampler's random streams."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """Specification of a replay."""

    sampler: str
    trials: int
    seeds: tuple[int, ...]
    initial: int | None = None
    objective: str | None = None
    """None: the table's own."""
    guess: PredictionKind = "profile"
    """For samplers that take one."""
    after: PreparedTable | None = None
    """Table of a warm-start search, or None."""
    after_trials: int = 30
    """Of the warm-start search."""
    pairs: int = 0
    """Most pairs of final verdicts; 0: none."""
    wrappers: Perturbations = dataclasses.field(default_factory=Perturbations)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PreparedTable:
    """Prepared benchmark table."""

    surface: BenchmarkTable
    arena: ProblemStatement
    halves: HoldoutSplit
    truth: GroundTruth
    objective: str
    limits: tuple[MetricConstraint, ...] = ()
    """Metric constraints; candidates that truly violate one are no solutions."""

    @functools.cached_property
    def profile(self) -> CostProfile | None:
        """Profile, if recorded."""
        kept = self.surface.head.profile
        return None if kept is None else CostProfile.from_json(kept)

    @functools.cached_property
    def simulated(self) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
        """Discrete-event predictions (m,), if any."""
        if self.profile is None:
            return None
        return prediction.simulate(self.arena, self.profile)

    @functools.cached_property
    def resampled(self) -> Resampling:
        """Model of resampled evaluations."""
        found = self.truth
        return Resampling.of(
            self.surface,
            dict(zip(found.cells, found.log_mean.tolist(), strict=True)),
            objectives.find_objective(self.objective),
            self.arena.candidates,
        )

    @functools.cached_property
    def trial_s(self) -> float:
        """Typical trial duration in the recording."""
        took_s = [
            launch.startup_s + launch.loaded_s
            for launch in self.surface.launches
            if launch.histogram is not None
        ]
        return statistics.median(took_s)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReplayResult:
    """Runs of a sampler on a table."""

    ground: PreparedTable
    order: ReplaySpec
    runs: tuple[ReplayRun, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the data to recompute all metrics."""
        found, cells = self.ground.truth, self.ground.arena.candidates.cells
        each = [
            scoring.trials_to_tolerance(self.runs, found, share, cells=len(cells))
            for share in scoring.SHARES
        ]
        return {
            "surface": self.ground.surface.head.name,
            "sampler": self.order.sampler,
            "objective": self.ground.objective,
            "cells": len(cells),
            "optimum_ms": found.optimum,
            "optimum_se": found.optimum_se,
            "good_cells": {f"{one.share:g}": one.good_cells for one in each},
            "trials_to": {
                f"{one.share:g}": {
                    "median": one.median,
                    "p90": one.p90,
                    "reached": one.reached,
                    "random_median": one.random_median,
                    "tolerance": one.tolerance,
                }
                for one in each
            },
            "runs": [
                {
                    "seed": run.seed,
                    "cells": [None if cell is None else dict(cell) for cell in run.cells],
                    "recommended": [
                        None if cell is None else dict(cell) for cell in run.recommended
                    ],
                    "seconds": list(run.seconds),
                    "sampler_s": run.sampler_s,
                    "lost": list(run.lost),
                    **({} if run.verdict is None else {"verdict": run.verdict.as_json()}),
                }
                for run in self.runs
            ],
        }


def prepare_table(
    surface: BenchmarkTable, objective: str | None = None, limits: Sequence[MetricConstraint] = ()
) -> PreparedTable:
    """Prepare a table.

    Args:
        surface: with deadline and prices set.
        objective: None: the table's.

    Raises:
        InvalidSurface: too few evaluations, unreadable space, or open-loop objective.
        WrongUse: objective or constraint is not recorded, or nothing satisfies it.
    """
    name = objective or surface.head.objective
    if name == RATE:
        text = f"its load was a closed loop, which has no objective {RATE}"
        raise InvalidTable(surface.head.name, "", text)
    if min((len(each) for each in surface.by_cell.values()), default=0) < 2:
        raise InvalidTable(
            surface.head.name, "", "a cell has fewer than two launches; go on with `tune record`"
        )
    arena = make_problem(surface)
    parts = split(surface)
    found = _truth(surface, parts, name, arena)
    for limit in limits:
        found = _within(found, limit, surface, parts, arena)
    return PreparedTable(
        surface=surface,
        arena=arena,
        halves=parts,
        truth=found,
        objective=name,
        limits=tuple(limits),
    )


def _truth(
    surface: BenchmarkTable, parts: HoldoutSplit, objective: str, arena: ProblemStatement
) -> GroundTruth:
    """Return an objective's ground truth."""
    found = ground_truth(
        surface, parts.held_out, objectives.find_objective(objective), arena.candidates
    )
    if not len(found.cells):
        raise UsageError(f"{surface.head.name}: its launches do not tell of {objective}")
    return found


def _within(
    found: GroundTruth,
    limit: MetricConstraint,
    surface: BenchmarkTable,
    parts: HoldoutSplit,
    arena: ProblemStatement,
) -> GroundTruth:
    """Mark candidates that violate a constraint as unsuccessful."""
    name = limit.of.objective
    if name is None or limit.metric == "items_per_s":
        raise UsageError(f"--constraint {limit.text!r}: a surface does not tell of {limit.metric}")
    objective = objectives.find_objective(name)
    of_metric = _truth(surface, parts, name, arena)
    values = np.exp(of_metric.log_mean)
    if not objective.is_minimised:
        values = 1e3 / values
    kept = {
        cell
        for cell, value in zip(of_metric.cells, values, strict=True)
        if not limit.slack(float(value)) > 0
    }
    places = [place for place, cell in enumerate(found.cells) if cell in kept]
    if not places:
        raise UsageError(
            f"--constraint {limit.text!r}: no configuration of the surface keeps to it"
        )
    return GroundTruth(
        cells=tuple(found.cells[place] for place in places),
        log_mean=found.log_mean[places],
        se=found.se[places],
        lost=found.lost | {cell for cell in found.cells if cell not in kept},
    )


def make_problem(surface: BenchmarkTable) -> ProblemStatement:
    """Return the recorded candidates as a problem statement."""
    head = surface.head
    known = knob_schema.SERVING if head.engine == OUR_ENGINE else knob_schema.OF_ANY
    text = yaml.safe_dump(dict(head.space), sort_keys=False)
    host = head.host["host"]
    environment = Environment(
        concurrency=head.concurrency,
        client_batch=head.client_batch,
        rate_per_s=head.rate_per_s,
        machine=Machine(cores=host["cores"], memory_mb=host["memory_mb"]),
    )
    space = files.parse(text, file=f"{head.name}/surface.yaml", vocabulary=known)
    return ProblemStatement(
        text=text,
        space=space,
        environment=environment,
        default=head.default,
        candidates=CandidateSet.of(
            tuple(surface.by_cell), space.encode, lambda cell: features(cell, environment)
        ),
        distributions=distributions.distributions(space),
        knobs=tuple(knob.info() for knob in space.searched),
        notes=head.notes,
    )


def replay(
    ground: PreparedTable,
    order: ReplaySpec,
    *,
    workers: int | None = None,
    report: Callable[[ReplayRun], None] = lambda _: None,
) -> ReplayResult:
    """Run all seeds in parallel.

    Args:
        workers: None: one per core.
        report: called per run.
    """
    count = min(len(order.seeds), workers or os.cpu_count() or 1)
    if count <= 1:
        runs = []
        for seed in order.seeds:
            runs.append(one_run(ground, order, seed))
            report(runs[-1])
        return ReplayResult(ground=ground, order=order, runs=tuple(runs))
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(
        count, mp_context=context, initializer=_prepare, initargs=(ground, order)
    ) as pool:
        waiting = [pool.submit(_run_here, seed) for seed in order.seeds]
        by_seed = {}
        for done in concurrent.futures.as_completed(waiting):
            run = done.result()
            by_seed[run.seed] = run
            report(run)
    return ReplayResult(
        ground=ground, order=order, runs=tuple(by_seed[seed] for seed in order.seeds)
    )


def one_run(ground: PreparedTable, order: ReplaySpec, seed: int) -> ReplayRun:
    """Run one search."""
    launches = make_evaluator(ground, order.wrappers, seed)
    spent = profiling_trials(ground, order)
    search = search_of(ground, order, seed, launches)
    cells: list[Configuration | None] = [None] * spent
    recommended: list[Configuration | None] = [None] * spent
    seconds = [spent * ground.trial_s] * spent
    lost: list[int] = []
    sampler_s = 0.0
    own_s = [0.0] * spent
    is_shared = registry.takes(order.sampler, "earlier")  # its own process recommends
    for _ in range(order.trials - spent):
        begun_s = time.perf_counter()
        trial = search.step()
        stepped_s = time.perf_counter() - begun_s
        if trial.outcome.status != "ok":
            lost.append(len(cells))
        cells.append(trial.configuration)
        recommended.append(search.recommended())
        took_s = time.perf_counter() - begun_s
        sampler_s += took_s
        own_s.append((own_s[-1] if own_s else 0.0) + (took_s if is_shared else stepped_s))
        seconds.append(spent * ground.trial_s + launches.seconds)
    verdict = verdict_of(ground, order, search, launches) if order.pairs else None
    return ReplayRun(
        verdict=verdict,
        seed=seed,
        cells=tuple(cells),
        recommended=tuple(recommended),
        seconds=tuple(seconds),
        sampler_s=sampler_s,
        own_s=tuple(own_s),
        lost=tuple(lost),
    )


def verdict_of(
    ground: PreparedTable, order: ReplaySpec, search: Search, launches: TableEvaluator
) -> ReplayedVerdict:
    """Run a study's final selection and verification on drawn evaluations."""
    default, best = ground.arena.default, search.recommended()
    believed = search.finalists(MAX_SHORTLIST)
    if best is None or believed is None or ground.arena.is_default(best):
        return ReplayedVerdict(outcome="no difference shown", best=best)

    def quiet(_starts: object, _launch: object) -> None:
        pass

    needs = EvaluationRequirements(objective=search.objective.name, limits=ground.limits)
    if len(believed.configurations) > 1:
        roles = final_selection.name_arms(believed.configurations)
        rounds = verification.alternate(
            verification.NewServerRounds(launches, roles),
            rounds=FINAL_ROUNDS,
            needs=needs,
            report=quiet,
        )
        best = final_selection.rank_shortlist(
            believed,
            rounds.starts,
            objective=search.objective,
            default=default,
            cores=ground.arena.environment.machine.cores,
            limits=ground.limits,
        )[0].configuration

    compared = verification.Pairs(
        names=[search.objective.name],
        most=order.pairs,
        sd=final_selection.assumed_sd(believed, objective=search.objective),
    )
    rounds = verification.alternate(
        verification.NewServerRounds(launches, {"default": default, "best": best}),
        rounds=order.pairs,
        needs=needs,
        report=quiet,
        is_enough=compared.is_enough,
    )
    found = compared.verdict(rounds)
    if found is None:
        return ReplayedVerdict(outcome="no difference shown", best=best)
    return ReplayedVerdict(
        outcome=found.outcome,
        best=best,
        ratio=found.ratio,
        interval=found.interval,
        pairs=rounds.counted,
        true_ratio=_true_ratio(ground, order, search.objective, best),
    )


def _true_ratio(
    ground: PreparedTable, order: ReplaySpec, objective: Objective, best: Configuration
) -> float | None:
    """Return the true best/default ratio in the objective's direction."""
    if order.wrappers.is_null:
        return 1.0
    minimised = ground.truth.ratio(best, ground.arena.default)
    if minimised is None:
        return None
    return minimised if objective.is_minimised else 1 / minimised


def profiling_trials(ground: PreparedTable, order: ReplaySpec) -> int:
    """Return a used profile's duration in trials, rounded up."""
    profile = ground.profile
    is_used = order.guess != "none" and registry.takes(order.sampler, "guess")
    if profile is None or not is_used:
        return 0
    return min(order.trials - 1, math.ceil(profile.seconds / ground.trial_s))


def with_requested_prediction(
    ground: PreparedTable, order: ReplaySpec, seed: int
) -> ProblemStatement:
    """Add the requested prediction."""
    profile, arena = ground.profile, ground.arena
    if profile is None or order.guess == "none" or ground.objective not in prediction.OBJECTIVES:
        return arena
    if order.guess == "twice":
        profile = profile.faster(2.0)
    arena = prediction.with_prediction(
        arena, profile, ground.objective, paid=ground.surface.paid, limits=ground.limits
    )
    assert arena.guess is not None
    if order.guess == "discrete":
        return dataclasses.replace(arena, guess=ground.simulated)
    logs = np.log(arena.guess)
    if order.guess == "shuffled":
        logs = np.random.default_rng([_STREAM, seed, 1]).permutation(logs)
    elif order.guess == "inverted":
        logs = logs.max() + logs.min() - logs
    elif order.guess == "constant":
        logs = np.full_like(logs, logs.mean())
    is_right = order.guess in {"profile", "twice"}
    return dataclasses.replace(
        arena,
        guess=np.exp(logs),
        latency=arena.latency if is_right else None,
        within=arena.within if is_right else None,
    )


def with_warm_start(
    arena: ProblemStatement, ground: PreparedTable, order: ReplaySpec, seed: int
) -> ProblemStatement:
    """Add the warm start from the other table."""
    if order.after is None:
        return arena
    before = dataclasses.replace(
        order, after=None, trials=order.after_trials, wrappers=Perturbations(), pairs=0
    )
    launches = make_evaluator(order.after, before.wrappers, seed + _APART)
    search = search_of(order.after, before, seed, launches)
    for _ in range(order.after_trials):
        search.step()
    study = SourceStudy(
        name=order.after.surface.head.name,
        environment=order.after.arena.environment,
        launches=tuple(
            SourceEvaluation(configuration=trial.configuration, objective=trial.objective)
            for trial in search.trials
            if trial.objective is not None
        ),
        winner=search.recommended(),
    )
    profile = ground.profile if arena.guess is not None else None
    return warm_start.with_warm_start(arena, [study], objective=ground.objective, profile=profile)


def make_evaluator(ground: PreparedTable, wrappers: Perturbations, seed: int) -> TableEvaluator:
    """Return one seed's evaluator."""
    rng = np.random.default_rng([_STREAM, seed])
    drawn: Mapping[Configuration, Sequence[RecordedEvaluation]] = ground.halves.drawn
    walled: frozenset[Configuration] = frozenset()
    resampled: Resampling | None = None
    if wrappers.is_null:
        drawn = drawing.null(ground.surface.by_cell)
    elif wrappers.is_resampled:
        resampled = ground.resampled
    if wrappers.has_walls:
        kept = (ground.arena.default, ground.truth.cells[ground.truth.best])
        walled = drawing.with_oom(ground.arena.candidates, kept, rng)
    return TableEvaluator(
        ground.surface,
        drawn,
        rng,
        noise_sd=wrappers.noise_sd,
        walled=walled,
        resampled=resampled,
        puts_back=wrappers.is_null,
        most_blocks=wrappers.most_blocks,
    )


def search_of(
    ground: PreparedTable, order: ReplaySpec, seed: int, launches: TableEvaluator
) -> Search:
    """Return a study's search, in memory."""
    settings = SearchSettings(
        sampler=order.sampler, trials=order.trials, initial=order.initial, seed=seed
    )
    arena = with_warm_start(with_requested_prediction(ground, order, seed), ground, order, seed)
    if arena.guess is None:
        settings = prediction.without_prediction(settings)
    search = Search(
        store=StudyStore.in_memory(f"seed-{seed}"),
        arena=arena,
        bench=launches,
        budget=Budget(
            trials=order.trials,
            initial=settings.first_trials,
            max_time_s=float("inf"),
            load_s=0.0,
            pairs=0,
        ),
        objective=ground.objective,
        limits=ground.limits,
        stop_ei=0.0,
        keep_in=None,
        racing=_racing(ground, order) if order.wrappers.is_raced else None,
    )
    search.prepare(settings)
    return search


def _racing(ground: PreparedTable, order: ReplaySpec) -> Racing:
    """Return the racing rules of the table's measurements."""
    head = ground.surface.head
    block_s = float(head.measurement["block_s"])
    return Racing(
        blocks=order.wrappers.most_blocks or max(1, round(head.measurement["seconds"] / block_s)),
        block_s=block_s,
        concurrency=head.concurrency,
        client_batch=head.client_batch,
    )


_here: tuple[PreparedTable, ReplaySpec] | None = None


def _prepare(ground: PreparedTable, order: ReplaySpec) -> None:
    """Set this process's inputs."""
    global _here  # noqa: PLW0603 - one process, one surface
    _here = (ground, order)


def _run_here(seed: int) -> ReplayRun:
    assert _here is not None
    return one_run(*_here, seed)
