"""Replay of searches on a prepared table: one run per seed, on all cores."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tuner.evaluation.evaluation import Evaluation
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.replay_search import ReplaySpec, make_evaluators, search_of
from tuner.lab.tables import scoring
from tuner.lab.tables.scoring import ReplayedVerdict, ReplayRun
from tuner.lab.tables.table_evaluator import TableEvaluator
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics.objective import Objective
from tuner.sampling import registry
from tuner.study import final_selection, verification
from tuner.study.budget import FINAL_ROUNDS, MAX_SHORTLIST
from tuner.study.search import ProposedTrial, Search
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.trial import Trial

_SCORES = ("median", "p90", "reached", "random_median", "tolerance")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReplayResult:
    """Runs of one sampler on one table."""

    ground: PreparedTable
    order: ReplaySpec
    runs: tuple[ReplayRun, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain data from which all metrics can be recomputed."""
        found, cells = self.ground.truth, self.ground.problem.candidates.configurations
        each = [
            scoring.trials_to_tolerance(self.runs, found, share, candidates=len(cells))
            for share in scoring.SHARES
        ]
        return {
            "table": self.ground.table.head.name,
            "sampler": self.order.sampler,
            "objective": self.ground.objective,
            "candidates": len(cells),
            "optimum_ms": found.optimum,
            "optimum_se": found.optimum_se,
            "good_candidates": {f"{one.share:g}": one.good_candidates for one in each},
            "trials_to": {
                f"{one.share:g}": {name: getattr(one, name) for name in _SCORES} for one in each
            },
            "runs": [run.as_json() for run in self.runs],
        }


def replay(
    ground: PreparedTable,
    order: ReplaySpec,
    *,
    workers: int | None = None,
    report: Callable[[ReplayRun], None] = lambda _: None,
) -> ReplayResult:
    """Run all seeds in parallel, by default with one process per core."""
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
    """Run the search with one seed."""
    evaluators = make_evaluators(ground, order, seed)
    search = search_of(ground, order, seed, evaluators[0])
    steps = ReplayedNodes(search, evaluators)
    cells: list[Configuration] = []
    recommended: list[Configuration | None] = []
    seconds: list[float] = []
    lost: list[int] = []
    sampler_s = 0.0
    own_s: list[float] = []
    is_shared = registry.takes(order.sampler, "earlier")  # its own process recommends
    studies: list[ReplayedVerdict] = []

    def end_studies(by_s: float) -> None:
        while len(studies) < len(order.studies_s) and order.studies_s[len(studies)] <= by_s:
            studies.append(verdict_of(ground, order, search, steps.copies()))

    for _ in range(order.trials):
        end_studies(steps.seconds)
        if order.max_s is not None and steps.seconds >= order.max_s:
            break
        begun_s = time.perf_counter()
        trial = steps.step()
        stepped_s = time.perf_counter() - begun_s
        if trial.outcome.status != "ok":
            lost.append(len(cells))
        cells.append(trial.configuration)
        recommended.append(search.recommend())
        took_s = time.perf_counter() - begun_s
        sampler_s += took_s
        own_s.append((own_s[-1] if own_s else 0.0) + (took_s if is_shared else stepped_s))
        seconds.append(steps.seconds)
    end_studies(math.inf)
    return ReplayRun(
        studies=tuple(studies),
        seed=seed,
        cells=tuple(cells),
        recommended=tuple(recommended),
        seconds=tuple(seconds),
        sampler_s=sampler_s,
        own_s=tuple(own_s),
        lost=tuple(lost),
    )


class ReplayedNodes:
    """Search whose trials are replayed on several machines at once (`ParallelSearch`)."""

    def __init__(self, search: Search, evaluators: Sequence[TableEvaluator]) -> None:
        self.seconds = 0.0
        """Time since the replay began."""
        self._search = search
        self._evaluators = evaluators
        self._free = list(evaluators)
        self._running: list[tuple[TableEvaluator, ProposedTrial, Evaluation]] = []
        search.check_nodes(len(evaluators))

    def step(self) -> Trial:
        """Return the trial that ends next."""
        search = self._search
        while self._free and len(search.trials) + len(self._running) < search.budget.trials:
            evaluator, proposed = self._free.pop(0), search.propose()
            evaluator.wait(self.seconds - evaluator.seconds)
            evaluation = evaluator.evaluate(proposed.configuration, proposed.race)
            self._running.append((evaluator, proposed, evaluation))
        place = min(range(len(self._running)), key=lambda one: self._running[one][0].seconds)
        evaluator, proposed, evaluation = self._running.pop(place)
        self.seconds = evaluator.seconds
        self._free.append(evaluator)
        return search.conclude(proposed, evaluation)

    def copies(self) -> list[TableEvaluator]:
        """Return evaluators that go on from here on their own."""
        copies = [one.copy() for one in self._evaluators]
        now_s = max(one.seconds for one in copies)
        for one in copies:
            one.wait(now_s - one.seconds)
        return copies


class DealtRounds:
    """Rounds that several machines measure at once, each whole rounds in its turn (`FleetRounds`)."""

    def __init__(self, sources: Sequence[verification.MeasuresRounds]) -> None:
        self._sources = sources
        self._number = 0

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return self._sources[0].arms

    def round(self, arms: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        """Yield one evaluation per arm, all on the same machine, which alternates their order."""
        turn, place = divmod(self._number, len(self._sources))
        self._number += 1
        order = self.arms if (turn + place) % 2 == 0 else tuple(reversed(self.arms))
        found = dict(self._sources[place].round(order))
        for role in arms:
            yield role, found[role]


def verdict_of(
    ground: PreparedTable,
    order: ReplaySpec,
    search: Search,
    evaluators: Sequence[TableEvaluator],
) -> ReplayedVerdict:
    """Run a study's final selection and verification on the table's recorded machines."""
    return dataclasses.replace(
        _verdict_of(ground, order, search, evaluators),
        recommended=search.recommend(),
        leading=search.recommend(keeps_default=False),
    )


def _verdict_of(
    ground: PreparedTable,
    order: ReplaySpec,
    search: Search,
    evaluators: Sequence[TableEvaluator],
) -> ReplayedVerdict:
    def rounds_of(arms: Mapping[str, Configuration]) -> DealtRounds:
        latency_s = verification.slowest_latency_s(search.trials, arms.values())
        return DealtRounds([one.rounds(arms, latency_s=latency_s) for one in evaluators])

    def now_s() -> float:
        return max(one.seconds for one in evaluators)

    default, best = ground.problem.default, search.recommend(keeps_default=False)
    believed = search.finalists(MAX_SHORTLIST)
    if best is None or believed is None or ground.problem.is_default(best):
        return ReplayedVerdict(outcome="no difference shown", best=best, seconds=now_s())
    believed = final_selection.for_interleaving(believed)
    evaluations: tuple[RoundEvaluation, ...] = ()

    def quiet(_starts: object, _evaluation: object) -> None:
        pass

    needs = EvaluationRequirements(objective=search.objective.name, limits=ground.limits)
    if len(believed.configurations) > 1:
        roles = final_selection.name_arms(believed.configurations)
        rounds = verification.alternate(
            rounds_of(roles),
            rounds=FINAL_ROUNDS,
            needs=needs,
            report=quiet,
        )
        evaluations = rounds.evaluations
        best = final_selection.rank_shortlist(
            believed,
            evaluations,
            objective=search.objective,
            default=default,
            cores=ground.problem.environment.machine.cores,
            limits=ground.limits,
        )[0].configuration

    compared = verification.Pairs(
        names=[search.objective.name],
        most=order.pairs,
        sd=final_selection.assumed_sd(believed, evaluations, objective=search.objective),
    )
    arms = {"default": default, "best": best}
    rounds = verification.alternate(
        rounds_of(arms),
        rounds=order.pairs,
        needs=needs,
        report=quiet,
        is_enough=compared.is_enough,
    )
    found = compared.verdict(rounds)
    if found is None:
        return ReplayedVerdict(outcome="no difference shown", best=best, seconds=now_s())
    return ReplayedVerdict(
        outcome=found.outcome,
        best=best,
        seconds=now_s(),
        ratio=found.ratio,
        interval=found.interval,
        pairs=rounds.complete_rounds,
        true_ratio=_true_ratio(ground, order, search.objective, best),
    )


def _true_ratio(
    ground: PreparedTable, order: ReplaySpec, objective: Objective, best: Configuration
) -> float | None:
    if order.perturbations.is_null:
        return 1.0
    minimised = ground.truth.ratio(best, ground.problem.default)
    if minimised is None:
        return None
    return minimised if objective.is_minimised else 1 / minimised


_here: tuple[PreparedTable, ReplaySpec] | None = None


def _prepare(ground: PreparedTable, order: ReplaySpec) -> None:
    global _here  # noqa: PLW0603 - one process, one table
    _here = (ground, order)


def _run_here(seed: int) -> ReplayRun:
    assert _here is not None
    return one_run(*_here, seed)
