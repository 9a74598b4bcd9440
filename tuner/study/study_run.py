"""Stages of a study after its search: final selection, verification, and open loop.

Each stage saves its state, so that `resume` can continue from the middle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.load_generator.plan import OpenLoopPlan
from tuner.measurement import comparison, sequential
from tuner.settings.study import StudySettings
from tuner.store import records
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import final_selection, study_files, verification
from tuner.study.budget import MAX_SHORTLIST, OPEN_LOADS
from tuner.study.nodes.fleet import FleetRounds, StudyNode, on_one
from tuner.study.preparation import StudyInputs, needs_of
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Progress, Terminal
from tuner.study.search import Search
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.verdict import Verdict
from tuner.values.verification_state import OpenLoopCheck, ShortlistEntry, VerificationState

OPEN_SHARE = 0.8
"""Rate of the final open loop, as a share of the best's throughput."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyRun:
    """Parts of a running study."""

    settings: StudySettings
    folder: RunFolder
    store: StudyStore
    problem: ProblemStatement
    evaluator: Evaluator
    terminal: Terminal
    progress: Progress
    nodes: list[StudyNode] = dataclasses.field(default_factory=list)
    """Machines that measure at once, without those that were lost; empty: this one."""
    begin_s: float
    """Monotonic start time, minus the time that earlier processes used."""

    @classmethod
    def of(
        cls,
        inputs: StudyInputs,
        folder: RunFolder,
        store: StudyStore,
        evaluator: Evaluator,
        terminal: Terminal,
        *,
        nodes: list[StudyNode] | None = None,
        begun_s: float,
    ) -> StudyRun:
        """Return the run of a prepared study, which this process began at `begun_s`."""
        measurement = inputs.settings.measurement
        return cls(
            settings=inputs.settings,
            problem=inputs.problem,
            folder=folder,
            store=store,
            evaluator=evaluator,
            terminal=terminal,
            progress=Progress(
                terminal.console,
                default=inputs.problem.default,
                objective=measurement.first,
                second=measurement.second,
            ),
            nodes=[] if nodes is None else nodes,
            begin_s=begun_s - store.used_s(),
        )

    def used_s(self) -> float:
        """Return the seconds used by all processes of the study."""
        return time.monotonic() - self.begin_s

    def left_s(self) -> float:
        """Return the seconds left, negative once the time is up."""
        return self.settings.search.max_time_s - self.used_s()

    def note(self, text: str) -> None:
        """Save and print a note."""
        self.store.note(text)
        self.progress.say(text)

    def keep_used(self) -> None:
        """Save the time used, for the next process."""
        self.store.keep_used_s(self.used_s())


def choose_best(setup: StudyRun, search: Search, ending: VerificationState) -> VerificationState:
    """Choose the best from the shortlist in alternating rounds, and plan the pairs."""
    finalists, budget = ending.shortlist, search.budget
    left_s = setup.left_s()
    rounds = budget.final_rounds_in(left_s, len(finalists)) if len(finalists) > 1 else 0
    evaluations = ending.selection_evaluations
    if rounds:
        roles = final_selection.name_arms(finalists)
        setup.progress.say(
            f"{len(finalists)} configurations may be the best: each is evaluated {rounds} "
            "times in turn"
        )
        for role, one in roles.items():
            setup.progress.say(f"{role}: {setup.progress.differences(one)}")
        evaluations = _alternate(
            setup,
            roles,
            rounds=rounds,
            done=verification.whole(ending.selection_evaluations, len(roles)),
            keep=lambda made: dataclasses.replace(ending, selection_evaluations=made),
            is_enough=lambda _: setup.left_s() <= budget.least_s,
        ).evaluations
    belief = search.finalists(MAX_SHORTLIST)
    is_cut = any(one.slices_ms for one in evaluations) if evaluations else budget.uses_time_slices
    if belief is not None and is_cut:
        belief = final_selection.for_interleaving(belief)
    assumed_sd = ending.assumed_sd
    standings: tuple[ShortlistEntry, ...] = ()
    if belief is not None:
        assumed_sd = final_selection.assumed_sd(belief, evaluations, objective=search.objective)
    if belief is not None and len(finalists) > 1:
        standings = final_selection.rank_shortlist(
            belief,
            evaluations,
            objective=search.objective,
            default=setup.problem.default,
            cores=setup.problem.environment.machine.cores,
            limits=setup.settings.measurement.limits,
        )
    best = standings[0].configuration if standings else ending.best
    guess = search.problem.predicted_best if search.second is None else None
    if guess is not None and (guess == best or setup.problem.is_default(guess)):
        guess = None
    ending = dataclasses.replace(ending, prediction=guess)
    for line in final_selection.describe(standings, setup.progress.differences):
        setup.progress.say(line)
    return dataclasses.replace(
        ending,
        best=best,
        selection_evaluations=tuple(evaluations),
        ranked_shortlist=standings,
        assumed_sd=assumed_sd,
        pairs=budget.pairs_in(setup.left_s(), arms=len(ending.arms)),
    )


def verify(
    setup: StudyRun, ending: VerificationState, *, keeps_s: float
) -> tuple[VerificationState, Verdict | None]:
    """Compare best and default in alternating rounds, leaving `keeps_s` for later stages."""
    sides = _arms(setup, ending)
    if sides is None:
        return ending, None
    names = setup.settings.measurement.names
    compared = verification.Pairs(names=names, most=ending.pairs, sd=ending.assumed_sd)

    def is_enough(rounds: verification.Rounds) -> bool:
        begun = len(rounds.evaluations) // len(sides)
        return compared.is_enough(rounds) or (
            begun >= sequential.MIN_PAIRS and setup.left_s() <= keeps_s
        )

    rounds = _alternate(
        setup,
        sides,
        rounds=ending.pairs,
        done=verification.whole(ending.evaluations, len(sides)),
        keep=lambda evaluations: dataclasses.replace(ending, evaluations=evaluations),
        is_enough=is_enough,
    )
    ending = dataclasses.replace(ending, evaluations=rounds.evaluations)
    verdict = compared.verdict(rounds)
    if verdict is None:
        return ending, None
    beside = verification.among(rounds.evaluations, "prediction", "best")
    if ending.prediction is not None and beside.complete_rounds >= comparison.MIN_PAIRS:
        against = comparison.compare_with_prediction(
            guess=beside.measurements["prediction"],
            best=beside.measurements["best"],
            configuration=ending.prediction,
            objective=names[0],
        )
        verdict = dataclasses.replace(verdict, against_prediction=against)
    return ending, verdict


def check_open_loop(
    setup: StudyRun, ending: VerificationState, verdict: Verdict, *, needs_s: float
) -> VerificationState:
    """Evaluate default and best in an open loop, at a share of the best's throughput.

    Here, unlike at a fixed concurrency, waiting for a full batch has a cost.
    """
    if not needs_s:
        return ending
    if setup.left_s() < needs_s:
        said = "not shown in an open loop: the longest time (--max-time) left no time for it"
        setup.note(said)
        return ending
    settings = setup.settings
    rates = [one.throughput_per_s for one in verdict.best]
    rate_per_s = OPEN_SHARE * statistics.geometric_mean(rates)
    load = OpenLoopPlan(rate_per_s=rate_per_s, seed=settings.search.seed)
    setup.evaluator.stream = 0

    def measure(source: StudyNode | Evaluator) -> tuple[RoundEvaluation, ...]:
        evaluations = []
        for role, configuration in (("default", setup.problem.default), ("best", ending.best)):
            assert configuration is not None, "a verdict has a best"
            seconds = OPEN_LOADS * settings.measurement.measured_s
            evaluation = source.evaluate_at(configuration, load, seconds=seconds)
            last = RoundEvaluation(
                role=role,
                outcome=evaluation.outcome,
                measurement=evaluation.measurement,
                node=evaluation.node,
            )
            evaluations.append(last)
            setup.progress.print_open_round(last, rate_per_s)
            setup.keep_used()
            setup.terminal.check()
        return tuple(evaluations)

    nodes = setup.nodes
    found = on_one(nodes, measure, say=setup.note) if nodes else measure(setup.evaluator)
    shown = OpenLoopCheck(rate_per_s=rate_per_s, share=OPEN_SHARE, evaluations=found)
    ending = dataclasses.replace(ending, open_loop=shown)
    study_files.save_verification_state(setup.folder, ending)
    return ending


def _alternate(
    setup: StudyRun,
    arms: Mapping[str, Configuration],
    *,
    rounds: int,
    done: Sequence[RoundEvaluation],
    keep: Callable[[tuple[RoundEvaluation, ...]], VerificationState],
    is_enough: verification.IsEnough | None = None,
) -> verification.Rounds:
    if done:
        setup.progress.say(f"continues after {len(done)} evaluations")
    begun_s = time.monotonic()
    setup.evaluator.stream = 1 + len(done) // len(arms)

    def report(evaluations: Sequence[RoundEvaluation], evaluation: Evaluation) -> None:
        number, last = len(evaluations), evaluations[-1]
        setup.evaluator.stream = 1 + number // len(arms)  # one per round; 0 is the search's
        if evaluation.records is not None and number <= len(arms):
            setup.folder.write_bytes(
                f"verification/{last.role}.npz", records.encode(evaluation.records)
            )
        study_files.save_verification_state(setup.folder, keep(tuple(evaluations)))
        setup.keep_used()
        # The evaluations of an interleaved round end together.
        round_s = (time.monotonic() - begun_s) / math.ceil((number - len(done)) / len(arms))
        whole = len(arms) * rounds
        left_s = min((rounds - number / len(arms)) * round_s, setup.left_s())
        setup.progress.verification(number, whole, last, left_s=left_s)
        setup.terminal.check()

    before = verification.count_rounds(done, tuple(arms))
    if done and (len(done) == rounds * len(arms) or (is_enough and is_enough(before))):
        return before
    slowest_s = verification.slowest_latency_s(setup.store.trials(), arms.values())
    with _open_rounds(setup, arms, latency_s=slowest_s, first=setup.evaluator.stream) as source:
        return verification.alternate(
            source,
            rounds=rounds,
            needs=needs_of(setup.settings),
            report=report,
            done=done,
            is_enough=is_enough,
        )


def _open_rounds(
    setup: StudyRun, arms: Mapping[str, Configuration], *, latency_s: float, first: int
) -> contextlib.AbstractContextManager[verification.MeasuresRounds]:
    if setup.nodes:
        say = setup.note
        return FleetRounds(setup.nodes, arms, latency_s=latency_s, first=first, say=say)
    say = setup.progress.say
    return verification.open_rounds(setup.evaluator, arms, latency_s=latency_s, say=say)


def _arms(setup: StudyRun, ending: VerificationState) -> dict[str, Configuration] | None:
    best = ending.best
    if best is None:
        return None
    if best == setup.problem.default:
        others = any(t.configuration != best for t in setup.store.trials())
        found = "the default is the best configuration found"
        alone = "only the default was evaluated, so nothing was searched"
        setup.progress.say(f"{found if others else alone}: there is nothing to compare")
        return None
    sides = {"default": setup.problem.default, "best": best}
    return sides if ending.prediction is None else {**sides, "prediction": ending.prediction}
