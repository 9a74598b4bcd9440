"""Study, from default configuration to verdict. Read `tune` from top to bottom.

    inputs -> engine started once -> folder and store -> search (trial after trial)
    -> final selection -> verification -> verdict -> open loop -> files

Nothing is written before the inputs are checked and the engine has served. A signal or `kill -9`
loses at most the running evaluation; `resume` continues with the same budget. Calls block, in one
thread; signals arrive as KeyboardInterrupt.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import pathlib
import time
from collections.abc import Mapping

from tuner import export
from tuner.advice import advise, why_nothing
from tuner.errors import Interrupted, StorageFailed, TunerError
from tuner.export import serving as serving_export
from tuner.launching import machine
from tuner.measurement.measurement_warnings import warnings_of
from tuner.report import files as report_files
from tuner.report import formatting
from tuner.settings.study import StudySettings
from tuner.settings.workload import workload_in_words
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import (
    interruption,
    machine_report,
    prediction,
    preparation,
    study_files,
    study_run,
    targets,
    verification,
    warm_start,
)
from tuner.study.budget import FINAL_ROUNDS, MAX_SHORTLIST
from tuner.study.creation import create_study, folder_of, name_study, name_taken
from tuner.study.interruption import resumable
from tuner.study.nodes.fleet import StudyNode
from tuner.study.nodes.opening import begin_on, open_fleet
from tuner.study.parallel_search import ParallelSearch
from tuner.study.preparation import StudyInputs, budget_of, make_evaluator, needs_of, prepare
from tuner.study.progress import StudyPlan, Terminal
from tuner.study.racing import Racing
from tuner.study.search import Search
from tuner.study.study_run import StudyRun
from tuner.values.measurement import Measurement
from tuner.values.study_record import StudyRecord
from tuner.values.verification_state import VerificationState

WRITTEN = {serving_export.FILE_NAME: "settings", serving_export.SCRIPT: "models"}
"""Contents of exported files, as named in messages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Result of a study."""

    record: StudyRecord
    stopped: str
    """Why the search ended."""
    files: Mapping[str, pathlib.Path]


def tune(settings: StudySettings, *, overwrite: bool, terminal: Terminal) -> StudyResult:
    """Run a new study.

    Args:
        overwrite: whether to delete a study of the same name first.

    Raises:
        UsageError: an input is invalid; nothing was written.
        TunerError: the study failed.
        Interrupted: a signal arrived; measurements are saved.
    """
    begun_s = time.monotonic()
    target = targets.find_target(settings.target)
    settings = prediction.adjust_settings(
        name_study(settings, target.spec, now=dt.datetime.now().astimezone())
    )
    folder = folder_of(settings)
    if folder.exists() and not overwrite:
        raise name_taken(folder)
    folder.check_writable()
    with (
        resumable(None),
        open_fleet(settings, target) as nodes,
        make_evaluator(settings, target, terminal) as evaluator,
    ):
        inputs = prepare(evaluator, settings, target, terminal)
        alike = begin_on(nodes, evaluator, inputs)
        with resumable(folder, interruption.NOT_BEGUN):
            inputs, taught = _add_prior_knowledge(inputs)
            store = create_study(folder, inputs, overwrite=overwrite)
            with folder.hold_lock(), store.hold_lock():
                terminal.log.write_to(folder.log)
                for note in preparation.notes_of(inputs, evaluator.energy_sources):
                    store.note(note)
                if "cost" in settings.measurement.names:
                    store.note(evaluator.prices.in_words)
                for note in filter(None, (prediction.why_none(settings), taught, *alike)):
                    store.note(note)
                    terminal.say(note)
                setup = StudyRun.of(
                    inputs, folder, store, evaluator, terminal, nodes=nodes, begun_s=begun_s
                )
                return _run(setup)


def resume(folder: RunFolder, *, storage: str | None, terminal: Terminal) -> StudyResult:
    """Continue a study until its budget is used up, or report a finished one.

    Args:
        storage: replaces the saved URL, which lacks its password.

    Raises:
        TunerError, Interrupted: as for `tune`.
    """
    begun_s = time.monotonic()
    settings = study_files.settings_of(folder)
    with resumable(folder), folder.hold_lock():
        terminal.log.write_to(folder.log)
        store = study_files.store_of(folder, settings, url=storage)
        with store.hold_lock():
            if study_files.is_finished(folder):
                terminal.say("the study is finished; only its report is written again")
                return _finish(folder, store, settings)
            return _go_on(folder, store, settings, terminal, begun_s=begun_s)


def _go_on(
    folder: RunFolder,
    store: StudyStore,
    settings: StudySettings,
    terminal: Terminal,
    *,
    begun_s: float,
) -> StudyResult:
    target = targets.find_target(settings.target, kept=study_files.engine_copy(folder))
    space = str(folder.path / "space.yaml")  # as searched, even if derived
    with (
        open_fleet(settings, target, goes_on=True) as nodes,
        make_evaluator(settings, target, terminal) as evaluator,
    ):
        searched = dataclasses.replace(
            settings, target=dataclasses.replace(settings.target, space=space)
        )
        inputs = prepare(evaluator, searched, target, terminal, goes_on=True)
        study_files.check_same_limits(folder, inputs.served.limits)
        study_files.check_same_space(store, inputs.problem)
        inputs = dataclasses.replace(inputs, settings=settings)
        inputs, _ = _add_prior_knowledge(inputs)
        begin_on(nodes, evaluator, inputs)
        setup = StudyRun.of(
            inputs, folder, store, evaluator, terminal, nodes=nodes, begun_s=begun_s
        )
        return _run(setup)


def _add_prior_knowledge(inputs: StudyInputs) -> tuple[StudyInputs, str | None]:
    settings = inputs.settings
    problem = prediction.enable_estimate(settings, inputs.problem)
    problem, taught = warm_start.load_warm_start(settings, problem, inputs.served.model)
    return dataclasses.replace(inputs, problem=problem), taught


def _run(setup: StudyRun) -> StudyResult:
    settings, folder = setup.settings, setup.folder
    search = Search(
        store=setup.store,
        problem=setup.problem,
        evaluator=setup.evaluator,
        budget=dataclasses.replace(
            budget_of(settings, setup.evaluator), at_once=max(1, len(setup.nodes))
        ),
        objective=settings.measurement.first,
        limits=settings.measurement.limits,
        stop_ei=settings.search.stop_ei,
        keep_in=folder,
        racing=Racing.of(settings),
        second=settings.measurement.second,
        point=settings.measurement.point,
    )
    try:
        search.prepare(settings.search)
        ending = study_files.read_verification_state(folder)
        setup.progress.plan(_plan(setup, search, ending), now=dt.datetime.now().astimezone())
        if ending is None:
            ending = _search(setup, search)
            study_files.save_verification_state(folder, ending)
        if ending.ranked_shortlist is None:
            ending = study_run.choose_best(setup, search, ending)
            study_files.save_verification_state(folder, ending)
        ending, verdict = study_run.verify(setup, ending, keeps_s=search.budget.open_s)
        if verdict is not None and ending.open_loop is None:
            ending = study_run.check_open_loop(setup, ending, verdict, needs_s=search.budget.open_s)
        setup.evaluator.close()
        study_files.save_end(folder, ending, verdict, limits=settings.measurement.limits)
        return _finish(folder, setup.store, settings)
    except KeyboardInterrupt:
        raise _handle_interrupt(setup) from None
    except StorageFailed as error:
        raise StorageFailed(f"{error}; then {interruption.go_on(folder)}") from error


def _search(setup: StudyRun, search: Search) -> VerificationState:
    if setup.nodes:
        with ParallelSearch(search, setup.nodes, used_s=setup.used_s, say=setup.note) as steps:
            reason = _run_trials(setup, search, steps)
    else:
        reason = _run_trials(setup, search, search)
    setup.progress.say(reason)
    for note in filter(None, (machine_report.drift(search), machine_report.node_speeds(search))):
        setup.note(note)
    measured = [trial.measured for trial in search.trials if trial.measured is not None]
    if again := sum(one.repeats > 0 for one in measured):
        setup.note(
            f"{formatting.plural(again, 'evaluation')} of the search measured again, because "
            "other processes, or other virtual machines of the host, took more of this "
            "machine than usual"
        )
    found = search.finalists(MAX_SHORTLIST) if search.second is None else None
    best, named = search.recommend(keeps_default=False), setup.problem.named
    front = tuple(
        dataclasses.replace(point, configuration=named(point.configuration))
        for point in search.front()
    )
    best = None if best is None else named(best)
    luckier = search.best_seen() if search.second is None else None
    if best is not None and luckier is not None and luckier.configuration != best:
        setup.progress.print_recommendation(best, luckier)
    return VerificationState(
        stopped=reason,
        best=best,
        pairs=search.budget.pairs,
        shortlist=() if found is None or best == setup.problem.default else found.configurations,
        pareto_front=front,
    )


def _run_trials(setup: StudyRun, search: Search, steps: Search | ParallelSearch[StudyNode]) -> str:
    while (reason := steps.stop_reason(setup.used_s())) is None:
        setup.terminal.check()
        trial = steps.step()
        setup.keep_used()
        if trial is None:
            continue
        left_s = search.left_s(setup.used_s())
        setup.progress.trial(trial, best=search.best_seen(), left_s=left_s)
        if trial.origin == "default" and trial.measured is not None:
            _look_closer(setup, trial.measured)
            search.pause()
    return reason


def _look_closer(setup: StudyRun, measurement: Measurement) -> None:
    checked = setup.evaluator.check_responses()
    found = [] if checked is None else [checked]
    cores, clients = machine.read().cores, setup.settings.measurement.load_clients
    found += [
        f"the default's evaluation: {doubt}"
        for doubt in warnings_of(measurement, cores=cores, load_clients=clients)
    ]
    found += filter(None, [needs_of(setup.settings).remark(measurement)])
    asked = setup.settings.measurement
    if asked.seconds is None and measurement.seconds > 1.5 * asked.measured_s and asked.is_of_means:
        found.append(
            f"the default's latency is {formatting.number(measurement.mean_ms)} ms: it "
            f"was measured for {measurement.seconds:.1f} s instead of "
            f"{asked.measured_s:g} s, until each connection had four responses on "
            "average, like every slow evaluation (--seconds S fixes the time)"
        )
    for note in found:
        setup.note(note)


def _handle_interrupt(setup: StudyRun) -> Interrupted:
    cut_off = setup.store.give_up_running("interrupted by a signal")
    setup.keep_used()
    ending = study_files.read_verification_state(setup.folder)
    evaluations = 0
    if ending is not None:
        evaluations = len(verification.whole(ending.evaluations, len(ending.arms)))
        if ending.shortlist:
            evaluations += len(
                verification.whole(ending.selection_evaluations, len(ending.shortlist))
            )
    kept = interruption.describe_saved(
        trials=len(setup.store.trials()),
        cut_off=cut_off,
        evaluations=None if ending is None else evaluations,
    )
    return Interrupted(f"{kept}; {interruption.go_on(setup.folder)}")


def _finish(folder: RunFolder, store: StudyStore, settings: StudySettings) -> StudyResult:
    record = study_files.read(folder, store, settings)
    written: dict[str, pathlib.Path] = {}
    advice = advise(record)
    if advice is not None:
        for name, text in export.best_files(record, advice).items():
            path = written[WRITTEN[name]] = folder.write_text(name, str(text))
            if path.suffix == ".sh":
                path.chmod(0o755)
    written["report"] = report_files.write_study(record, folder.path / "report.html")
    written["study"] = folder.path
    if advice is None:
        why = why_nothing(record)
        raise TunerError(
            f"study {folder.name}: no configuration worked ({why}); see {written['report']}"
        )
    return StudyResult(record=record, stopped=study_files.stopped_of(folder), files=written)


def _plan(setup: StudyRun, search: Search, ending: VerificationState | None) -> StudyPlan:
    settings, budget = setup.settings, search.budget
    left_s = max(0.0, setup.left_s())
    done, fits = len(search.trials), budget.trials_in(left_s)
    expected_s = budget.left_s(done, [])
    if ending is not None:
        arms, finalists = len(ending.arms), len(ending.shortlist)
        expected_s = 0.0 if ending.open_loop else budget.open_s
        expected_s += budget.rounds_s(ending.pairs - len(ending.evaluations) // arms, arms)
        if ending.ranked_shortlist is None and finalists:
            done_rounds = len(ending.selection_evaluations) // finalists
            expected_s += budget.rounds_s(max(0, FINAL_ROUNDS - done_rounds), finalists)
    return StudyPlan(
        name=setup.folder.name,
        model=str(setup.store.facts()["model"]),
        load=workload_in_words(
            settings.target.in_flight,
            settings.target.client_batch,
            rate_per_s=setup.problem.environment.rate_per_s,
            arrivals=settings.target.arrivals,
            objective=settings.measurement.objective,
        ),
        sampler=settings.search.sampler,
        cells=len(setup.problem.candidates.configurations),
        trials=settings.search.trials,
        initial=settings.search.first_trials,
        done=done,
        pairs=budget.pairs if ending is None else ending.pairs,
        expected_s=expected_s,
        max_time_s=left_s,
        fits=settings.search.trials if ending else min(settings.search.trials, done + fits),
    )
