"""Comparison of samplers on one engine, with the same budget and seeds.

In each repeat, the searches take turns trial by trial, which spreads drift evenly. Their winners
are re-evaluated alternately on new servers. No search ends early.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.advice import failure_text
from tuner.errors import Interrupted, StudyExists, TunerError
from tuner.evaluation import outcomes
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.lab.sampler_searches import (
    sampler_run,
    search_settings,
    start_search,
    take_turns,
)
from tuner.measurement import comparison
from tuner.measurement.outcome import EvaluationRequirements
from tuner.measurement.search_comparison import differences
from tuner.metrics import objective as objectives
from tuner.settings.study import StudySettings
from tuner.store.run_folder import RunFolder
from tuner.study import prediction, targets, verification
from tuner.study.creation import environment_facts, folder_of, name_study, save_copies
from tuner.study.interruption import resumable
from tuner.study.preparation import budget_of, make_evaluator, needs_of, notes_of, prepare
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Progress, Terminal
from tuner.study.samplers import sampler_of
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.sampler_comparison import ComparisonRecord, SamplerRun

SETTINGS_FILE = "compare.yaml"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompareSpec:
    """Specification of a comparison of samplers."""

    settings: StudySettings
    samplers: tuple[str, ...]
    repeats: int


def compare(order: CompareSpec, *, terminal: Terminal) -> tuple[ComparisonRecord, RunFolder]:
    """Run all searches, then re-evaluate and compare their winners.

    Raises:
        UsageError: an input is invalid; nothing was written.
        Interrupted: a signal arrived; the trials so far are saved.
    """
    target = targets.find_target(order.settings.target)
    settings = name_study(
        order.settings, target.spec, now=dt.datetime.now().astimezone(), prefix="compare-"
    )
    folder = folder_of(settings)
    if folder.exists():
        instead = "a comparison cannot be resumed; choose another --study"
        raise StudyExists(str(folder.path), instead)
    with resumable(None), make_evaluator(settings, target, terminal) as evaluator:
        inputs = prepare(evaluator, settings, target, terminal)
        problem, served = inputs.problem, inputs.served
        for search in _searches(order, settings):
            sampler_of(search.search, problem)
        environment = environment_facts(served)
        asked = _settings_json(order, settings)
        folder.create(asked, environment, settings_file=SETTINGS_FILE)
        save_copies(folder, settings, target)
        with folder.hold_lock():
            terminal.log.write_to(folder.log)
            try:
                runs, failures = _runs(order, settings, folder, problem, evaluator, terminal)
            except KeyboardInterrupt:
                kept = f"the trials so far are in {folder.database}; a comparison cannot be resumed"
                raise Interrupted(kept) from None
        record = ComparisonRecord(
            name=folder.name,
            model=served.model,
            concurrency=settings.target.in_flight,
            client_batch=settings.target.client_batch,
            objective=settings.measurement.first,
            samplers=order.samplers,
            repeats=order.repeats,
            trials=settings.search.trials,
            runs=runs,
            differences=differences(runs, objectives.find_objective(settings.measurement.first)),
            notes=(
                *notes_of(inputs, evaluator.energy_sources),
                *_why_unpredicted(order, settings),
                *failures,
            ),
            environment=environment,
            settings=asked,
        )
    if not any(run.winner for run in runs):
        raise TunerError("no configuration worked in any search, so there is nothing to compare")
    folder.write_json("compare.json", record.as_json())
    return record, folder


def _settings_json(order: CompareSpec, settings: StudySettings) -> dict[str, Any]:
    nested = settings.as_nested()
    for unused in ("sampler", "max_time_s", "stop_ei", "learn_from", "workers"):
        del nested["search"][unused]
    if "epsilon-greedy" not in order.samplers:
        del nested["search"]["epsilon"]
    nested["search"]["initial"] = settings.search.first_trials
    return {**nested, "samplers": list(order.samplers), "repeats": order.repeats}


def _runs(
    order: CompareSpec,
    settings: StudySettings,
    folder: RunFolder,
    problem: ProblemStatement,
    evaluator: Evaluator,
    terminal: Terminal,
) -> tuple[tuple[SamplerRun, ...], tuple[str, ...]]:
    ended: list[SamplerRun] = []
    failures: list[str] = []
    progress = Progress(
        terminal.console, default=problem.default, objective=settings.measurement.first
    )
    progress.say(
        f"{folder.name}: {', '.join(order.samplers)} with {settings.search.trials} trials each, "
        f"{order.repeats} times, taking turns",
        style="bold",
    )
    rounds = max(comparison.MIN_PAIRS, settings.measurement.pairs // order.repeats)
    budget = budget_of(settings, evaluator)
    verified_s = len(order.samplers) * rounds * budget.compared_s
    repeat_s = len(order.samplers) * budget.trials * budget.trial_s([]) + verified_s
    progress.print_duration(order.repeats * repeat_s, now=dt.datetime.now().astimezone())
    for repeat in range(order.repeats):
        later_s = (order.repeats - 1 - repeat) * repeat_s
        runs = [
            start_search(settings, folder, problem, evaluator, name, repeat)
            for name in order.samplers
        ]
        take_turns(runs, progress, terminal, later_s=verified_s + later_s)
        winners = {
            run.sampler: found
            for run in runs
            if (found := run.search.recommend(keeps_default=False))
        }
        measured = _remeasure(
            evaluator,
            winners,
            rounds,
            needs_of(settings),
            progress,
            terminal,
            latency_s=verification.slowest_latency_s(
                [trial for run in runs for trial in run.search.trials], winners.values()
            ),
            later_s=later_s,
        )
        ended += [sampler_run(run, winners, measured) for run in runs]
        failures += [
            f"the winner of {sampler} in repeat {repeat} {failure_text(tally)}"
            for sampler, tally in outcomes.count_failures(
                measured.evaluations, settings.measurement.limits
            ).items()
            if tally.failed
        ]
    return tuple(ended), tuple(failures)


def _searches(order: CompareSpec, settings: StudySettings) -> list[StudySettings]:
    return [search_settings(settings, sampler, 0) for sampler in order.samplers]


def _why_unpredicted(order: CompareSpec, settings: StudySettings) -> tuple[str, ...]:
    return tuple(filter(None, map(prediction.why_none, _searches(order, settings))))


def _remeasure(
    evaluator: Evaluator,
    winners: Mapping[str, Configuration],
    rounds: int,
    needs: EvaluationRequirements,
    progress: Progress,
    terminal: Terminal,
    *,
    latency_s: float,
    later_s: float,
) -> verification.Rounds:
    begun_s = time.monotonic()

    def report(evaluations: Sequence[RoundEvaluation], _evaluation: Evaluation) -> None:
        terminal.check()
        # One for each round; searches have 0.
        evaluator.stream = 1 + len(evaluations) // len(winners)
        last, whole = evaluations[-1], rounds * len(winners)
        each_s = (time.monotonic() - begun_s) / len(evaluations)
        progress.verification(
            len(evaluations),
            whole,
            last,
            left_s=(whole - len(evaluations)) * each_s + later_s,
        )

    if not winners:
        return verification.Rounds(evaluations=(), measurements={})
    evaluator.stream = 1
    with verification.open_rounds(
        evaluator, winners, latency_s=latency_s, say=progress.say
    ) as source:
        measured = verification.alternate(source, rounds=rounds, needs=needs, report=report)
    evaluator.stream = 0
    evaluator.start()
    return measured
