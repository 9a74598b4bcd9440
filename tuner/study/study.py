"""Study, from default configuration to verdict. Read `tune` from top to bottom.

    inputs -> engine started once -> folder and store -> search (trial after trial)
    -> final selection -> verification -> verdict -> open loop -> files

Nothing is written before inputs were checked and the engine served. A signal or `kill -9` loses at
most the running evaluation; `resume` continues to the same budget. Blocking, one thread; signals
arrive as KeyboardInterrupt.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from tuner import export
from tuner.advice import advise, why_nothing
from tuner.errors import Interrupted, StorageFailed, TunerError
from tuner.evaluation import correctness_check
from tuner.evaluation.evaluator import Evaluation, Evaluator
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.evaluation.simulation.profile import CostProfile
from tuner.export import deploy_script
from tuner.export import serving as serving_export
from tuner.launching import machine
from tuner.launching.engine import EngineInfo
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import OpenLoopPlan
from tuner.measurement import comparison, sequential
from tuner.measurement.measurement_warnings import warnings_of
from tuner.report import console_text, formatting
from tuner.report import files as report_files
from tuner.settings.study import StudySettings
from tuner.settings.workload import workload_in_words
from tuner.store import records
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import (
    final_selection,
    interruption,
    prediction,
    study_files,
    targets,
    verification,
    warm_start,
)
from tuner.study.budget import FINAL_ROUNDS, MAX_SHORTLIST, OPEN_LOADS
from tuner.study.creation import create_study, folder_of, name_study, name_taken
from tuner.study.interruption import resumable
from tuner.study.preparation import budget_of, make_evaluator, needs_of, notes_of, prepare
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Progress, StudyPlan, Terminal
from tuner.study.racing import Racing
from tuner.study.search import Search
from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.study_record import StudyRecord
from tuner.values.verdict import Verdict
from tuner.values.verification_state import OpenLoopCheck, ShortlistEntry, VerificationState

OPEN_SHARE = 0.8
"""Final open-loop rate over the best's throughput."""


WRITTEN = {serving_export.FILE_NAME: "settings", deploy_script.SCRIPT: "models"}
"""Names of exported files in messages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Result of a study."""

    record: StudyRecord
    stopped: str
    """Why the search ended."""
    files: Mapping[str, pathlib.Path]
    """Written files by name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyRun:
    """Parts of a running study."""

    settings: StudySettings
    folder: RunFolder
    store: StudyStore
    arena: ProblemStatement
    bench: Evaluator
    payloads: Payloads | ScenarioRequests
    terminal: Terminal
    progress: Progress
    begin_s: float
    """Monotonic start time, minus interruptions."""

    def used_s(self) -> float:
        """Return seconds used by all processes."""
        return time.monotonic() - self.begin_s

    def left_s(self) -> float:
        """Return seconds left; negative when over."""
        return self.settings.search.max_time_s - self.used_s()

    def keep_used(self) -> None:
        """Save used time for the next process."""
        self.store.keep_used_s(self.used_s())


def tune(settings: StudySettings, *, fresh: bool, terminal: Terminal) -> StudyResult:
    """Run a new study.

    Args:
        fresh: delete a study of the same name first.

    Raises:
        WrongUse: an input is invalid; nothing was written.
        TunerError: it failed.
        Interrupted: a signal came; measurements are saved.
    """
    engine = targets.engine_of(settings.target)
    card = targets.find_spec(settings.target, engine)
    settings = prediction.adjust_settings(
        name_study(settings, card, now=dt.datetime.now().astimezone())
    )
    folder = folder_of(settings)
    if folder.exists() and not fresh:
        raise name_taken(folder)
    with resumable(None), make_evaluator(settings, card, engine, terminal) as bench:
        arena, payloads, served = prepare(bench, settings, card, engine, terminal)
        with resumable(folder, interruption.NOT_BEGUN):
            profile = _profile(bench, settings, arena, terminal)
            arena, taught = _add_prior_knowledge(settings, arena, served, profile)
            store = create_study(
                folder,
                settings,
                arena,
                served,
                fresh=fresh,
                engine=engine,
                profile=profile,
                sent=None if isinstance(payloads, ScenarioRequests) else payloads.sent,
            )
            with folder.locked():
                terminal.log.write_to(folder.log)
                for note in notes_of(arena, payloads, served, bench.counted):
                    store.note(note)
                if "cost" in settings.measurement.names:
                    store.note(bench.prices.in_words)
                for note in filter(None, (prediction.why_none(settings), taught)):
                    store.note(note)
                    console_text.write_line(terminal.console, note)
                return _run(_set_up(settings, folder, store, arena, bench, payloads, terminal))


def resume(folder: RunFolder, *, storage: str | None, terminal: Terminal) -> StudyResult:
    """Continue a study to its budget, or report a finished one.

    Args:
        storage: replaces the saved URL, which lacks its password.

    Raises:
        TunerError, Interrupted: as for `tune`.
    """
    settings = study_files.settings_of(folder)
    with resumable(folder), folder.locked():
        terminal.log.write_to(folder.log)
        store = study_files.store_of(folder, settings, url=storage)
        if study_files.is_finished(folder):
            return _finish(folder, store, settings)
        engine = targets.engine_of(settings.target, kept=study_files.engine_copy(folder))
        card = targets.find_spec(settings.target, engine)
        space = str(folder.path / "space.yaml")  # as searched, even if derived
        target = dataclasses.replace(settings.target, space=space)
        with make_evaluator(settings, card, engine, terminal) as bench:
            searched = dataclasses.replace(settings, target=target)
            arena, payloads, served = prepare(bench, searched, card, engine, terminal, goes_on=True)
            study_files.check_same_space(store, arena)
            arena, _ = _add_prior_knowledge(settings, arena, served, study_files.profile_of(store))
            return _run(_set_up(settings, folder, store, arena, bench, payloads, terminal))


def _profile(
    bench: Evaluator, settings: StudySettings, arena: ProblemStatement, terminal: Terminal
) -> CostProfile | None:
    """Profile the model if the search can use it."""
    if not prediction.is_wanted(settings):
        return None
    console_text.write_line(terminal.console, "profiling the model to predict every configuration")
    return prediction.profile_of(bench, arena)


def _add_prior_knowledge(
    settings: StudySettings,
    arena: ProblemStatement,
    served: EngineInfo,
    profile: CostProfile | None,
) -> tuple[ProblemStatement, str | None]:
    """Add prediction and warm start; return a line on the latter."""
    arena = prediction.with_prediction_of(settings, arena, profile)
    return warm_start.load_warm_start(settings, arena, served.model, profile)


def _set_up(
    settings: StudySettings,
    folder: RunFolder,
    store: StudyStore,
    arena: ProblemStatement,
    bench: Evaluator,
    payloads: Payloads | ScenarioRequests,
    terminal: Terminal,
) -> StudyRun:
    objective = settings.measurement.first
    return StudyRun(
        settings=settings,
        folder=folder,
        store=store,
        arena=arena,
        bench=bench,
        payloads=payloads,
        terminal=terminal,
        progress=Progress(
            terminal.console,
            default=arena.default,
            objective=objective,
            second=settings.measurement.second,
        ),
        begin_s=time.monotonic() - store.used_s(),
    )


def _run(setup: StudyRun) -> StudyResult:
    """Run the study: search, verify, write."""
    settings, folder = setup.settings, setup.folder
    search = Search(
        store=setup.store,
        arena=setup.arena,
        bench=setup.bench,
        budget=budget_of(settings, setup.bench),
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
        if ending.standings is None:
            ending = _choose_best(setup, search, ending)
            study_files.save_verification_state(folder, ending)
        ending, verdict = _verify(setup, ending, keeps_s=search.budget.open_s)
        if verdict is not None and ending.open_loop is None:
            ending = _in_open_loop(setup, ending, verdict, needs_s=search.budget.open_s)
        setup.bench.close()
        study_files.save_end(folder, ending, verdict, limits=settings.measurement.limits)
        return _finish(folder, setup.store, settings)
    except KeyboardInterrupt:
        raise _handle_interrupt(setup) from None
    except StorageFailed as error:
        raise StorageFailed(f"{error}; then {interruption.go_on(folder)}") from error


def _search(setup: StudyRun, search: Search) -> VerificationState:
    """Run trials until a stop reason."""
    while (reason := search.stop_reason(setup.used_s())) is None:
        setup.terminal.check()
        trial = search.step()
        setup.keep_used()
        left_s = search.left_s(setup.used_s())
        setup.progress.trial(trial, best=search.best_seen(), left_s=left_s)
        if trial.origin == "default" and trial.measured is not None:
            _look_closer(setup, trial.measured)
            search.pause()
    setup.progress.say(reason)
    if (drift := search.drift()) is not None:
        setup.store.note(drift)
        setup.progress.say(drift)
    measured = [trial.measured for trial in search.trials if trial.measured is not None]
    if again := sum(one.repeats > 0 for one in measured):
        disturbed = (
            f"{formatting.plural(again, 'launch')} of the search measured again, because "
            "other processes, or other virtual machines of the host, took more of this "
            "machine than usual"
        )
        setup.store.note(disturbed)
        setup.progress.say(disturbed)
    found = search.finalists(MAX_SHORTLIST) if search.second is None else None
    best = search.recommended()
    front = tuple(
        dataclasses.replace(point, configuration=setup.arena.default)
        if setup.arena.is_default(point.configuration)
        else point
        for point in search.front()
    )
    if best is not None and setup.arena.is_default(best):
        best = setup.arena.default
    luckier = search.best_seen() if search.second is None else None
    if best is not None and luckier is not None and luckier.configuration != best:
        setup.progress.recommended(best, luckier)
    return VerificationState(
        stopped=reason,
        best=best,
        pairs=search.budget.pairs,
        finalists=() if found is None or best == setup.arena.default else found.configurations,
        front=front,
    )


def _choose_best(setup: StudyRun, search: Search, ending: VerificationState) -> VerificationState:
    """Choose the shortlist's best in alternating rounds; plan the pairs."""
    finalists, budget = ending.finalists, search.budget
    left_s = setup.left_s()
    rounds = budget.final_rounds_in(left_s, len(finalists)) if len(finalists) > 1 else 0
    starts = ending.finals
    if rounds:
        roles = final_selection.name_arms(finalists)
        setup.progress.say(
            f"{len(finalists)} configurations may be the best: each is evaluated {rounds} "
            "times in turn"
        )
        for role, one in roles.items():
            setup.progress.say(f"{role}: {setup.progress.differences(one)}")
        starts = _alternate(
            setup,
            roles,
            rounds=rounds,
            done=verification.whole(ending.finals, len(roles)),
            keep=lambda finals: dataclasses.replace(ending, finals=finals),
            is_enough=lambda _: setup.left_s() <= budget.least_s,
        ).starts
    belief = search.finalists(MAX_SHORTLIST)
    is_cut = any(one.slices_ms for one in starts) if starts else budget.is_cut
    if belief is not None and is_cut:
        belief = final_selection.for_interleaving(belief)
    presumed_sd = ending.presumed_sd
    if belief is not None:
        presumed_sd = final_selection.assumed_sd(belief, starts, objective=search.objective)
    standings: tuple[ShortlistEntry, ...] = ()
    if belief is not None and len(finalists) > 1:
        standings = final_selection.rank_shortlist(
            belief,
            starts,
            objective=search.objective,
            default=setup.arena.default,
            cores=setup.arena.environment.machine.cores,
            limits=setup.settings.measurement.limits,
        )
    best = standings[0].configuration if standings else ending.best
    guess = setup.arena.guessed_best if search.second is None else None
    if guess in {None, best} or (guess is not None and setup.arena.is_default(guess)):
        guess = None
    ending = dataclasses.replace(ending, guess=guess)
    for line in final_selection.describe(standings, setup.progress.differences):
        setup.progress.say(line)
    return dataclasses.replace(
        ending,
        best=best,
        finals=tuple(starts),
        standings=standings,
        presumed_sd=presumed_sd,
        pairs=budget.pairs_in(setup.left_s(), roles=len(ending.roles)),
    )


def _look_closer(setup: StudyRun, measurement: Measurement) -> None:
    """Print the first evaluation's warnings; check its responses."""
    address = setup.bench.address
    checked = None
    if address is not None and not isinstance(setup.payloads, ScenarioRequests):
        checked = correctness_check.check_responses(address, setup.payloads)
    found = [] if checked is None else [checked]
    cores = machine.read().cores
    found += [f"the default's launch: {doubt}" for doubt in warnings_of(measurement, cores=cores)]
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
        setup.store.note(note)
        setup.progress.say(note)


def _verify(
    setup: StudyRun, ending: VerificationState, *, keeps_s: float
) -> tuple[VerificationState, Verdict | None]:
    """Compare best and default in alternating rounds.

    Args:
        keeps_s: time reserved for later.
    """
    sides = _arms(setup, ending)
    if sides is None:
        return ending, None
    names = setup.settings.measurement.names
    compared = verification.Pairs(names=names, most=ending.pairs, sd=ending.presumed_sd)

    def is_enough(rounds: verification.Rounds) -> bool:
        begun = len(rounds.starts) // len(sides)
        return compared.is_enough(rounds) or (
            begun >= sequential.MIN_PAIRS and setup.left_s() <= keeps_s
        )

    rounds = _alternate(
        setup,
        sides,
        rounds=ending.pairs,
        done=verification.whole(ending.starts, len(sides)),
        keep=lambda starts: dataclasses.replace(ending, starts=starts),
        is_enough=is_enough,
    )
    ending = dataclasses.replace(ending, starts=rounds.starts)
    verdict = compared.verdict(rounds)
    if verdict is None:
        return ending, None
    beside = verification.among(rounds.starts, "guess", "best")
    if ending.guess is not None and beside.counted >= comparison.MIN_PAIRS:
        against = comparison.compare_with_prediction(
            guess=beside.measurements["guess"],
            best=beside.measurements["best"],
            configuration=ending.guess,
            objective=names[0],
        )
        verdict = dataclasses.replace(verdict, against_guess=against)
    return ending, verdict


def _in_open_loop(
    setup: StudyRun, ending: VerificationState, verdict: Verdict, *, needs_s: float
) -> VerificationState:
    """Evaluate default and best in an open loop, at a share of the best's rate.

    Unlike at a fixed concurrency, waiting for a full batch is not free here.
    """
    if not needs_s:
        return ending
    if setup.left_s() < needs_s:
        said = "not shown in an open loop: the longest time (--max-time) left no time for it"
        setup.store.note(said)
        setup.progress.say(said)
        return ending
    settings = setup.settings
    rates = [launch.throughput_per_s for launch in verdict.best]
    rate_per_s = OPEN_SHARE * statistics.geometric_mean(rates)
    load = OpenLoopPlan(rate_per_s=rate_per_s, seed=settings.search.seed)
    setup.bench.stream = 0
    starts = []
    for role, configuration in (("default", setup.arena.default), ("best", ending.best)):
        assert configuration is not None, "a verdict has a best"
        seconds = OPEN_LOADS * settings.measurement.measured_s
        launch = setup.bench.launch_at(configuration, load, seconds=seconds)
        starts.append(
            RoundEvaluation(role=role, outcome=launch.outcome, measurement=launch.measurement)
        )
        setup.progress.opened(role, rate_per_s, launch.outcome, launch.measurement)
        setup.keep_used()
        setup.terminal.check()
    shown = OpenLoopCheck(rate_per_s=rate_per_s, share=OPEN_SHARE, starts=tuple(starts))
    ending = dataclasses.replace(ending, open_loop=shown)
    study_files.save_verification_state(setup.folder, ending)
    return ending


def _alternate(
    setup: StudyRun,
    sides: Mapping[str, Configuration],
    *,
    rounds: int,
    done: Sequence[RoundEvaluation],
    keep: Callable[[tuple[RoundEvaluation, ...]], VerificationState],
    is_enough: verification.IsEnough | None = None,
) -> verification.Rounds:
    """Run alternating rounds; save and print each evaluation.

    Args:
        rounds: at most.
        done: whole rounds of an earlier command.
        keep: returns the state to save.
    """
    if done:
        setup.progress.say(f"continues after {len(done)} evaluations")
    begun_s = time.monotonic()
    setup.bench.stream = 1 + len(done) // len(sides)

    def report(starts: Sequence[RoundEvaluation], launch: Evaluation) -> None:
        number, last = len(starts), starts[-1]
        setup.bench.stream = 1 + number // len(sides)  # one per round; 0 is the search's
        if launch.records is not None and number <= len(sides):
            setup.folder.write_bytes(
                f"verification/{last.role}.npz", records.encode(launch.records)
            )
        study_files.save_verification_state(setup.folder, keep(tuple(starts)))
        setup.keep_used()
        each_s = (time.monotonic() - begun_s) / (number - len(done))
        setup.progress.verification(
            number,
            len(sides) * rounds,
            last.role,
            last.outcome,
            last.measurement,
            left_s=(len(sides) * rounds - number) * each_s,
        )
        setup.terminal.check()

    before = verification.count_rounds(done, tuple(sides))
    if done and (len(done) == rounds * len(sides) or (is_enough and is_enough(before))):
        return before
    slowest_s = verification.slowest_latency_s(setup.store.trials(), sides.values())
    with verification.open_rounds(
        setup.bench, sides, round_trip_s=slowest_s, say=setup.progress.say
    ) as source:
        return verification.alternate(
            source,
            rounds=rounds,
            needs=needs_of(setup.settings),
            report=report,
            done=done,
            is_enough=is_enough,
        )


def _arms(setup: StudyRun, ending: VerificationState) -> dict[str, Configuration] | None:
    """Return the arms to compare, if any."""
    best = ending.best
    if best is None:
        return None
    if best == setup.arena.default:
        others = any(t.configuration != best for t in setup.store.trials())
        found = "the default is the best configuration found"
        alone = "only the default was evaluated, so nothing was searched"
        setup.progress.say(f"{found if others else alone}: there is nothing to compare")
        return None
    sides = {"default": setup.arena.default, "best": best}
    return sides if ending.guess is None else {**sides, "guess": ending.guess}


def _handle_interrupt(setup: StudyRun) -> Interrupted:
    """Leave the study consistent; return a summary."""
    cut_off = setup.store.give_up_running("interrupted by a signal")
    setup.keep_used()
    ending = study_files.read_verification_state(setup.folder)
    starts = 0
    if ending is not None:
        starts = len(verification.whole(ending.starts, len(ending.roles)))
        if ending.finalists:
            starts += len(verification.whole(ending.finals, len(ending.finalists)))
    kept = interruption.describe_saved(
        trials=len(setup.store.trials()),
        cut_off=cut_off,
        starts=None if ending is None else starts,
    )
    return Interrupted(f"{kept}; {interruption.go_on(setup.folder)}")


def _finish(folder: RunFolder, store: StudyStore, settings: StudySettings) -> StudyResult:
    """Write report and exports."""
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
        left = len(ending.roles) * ending.pairs - len(ending.starts)
        if ending.standings is None:
            left += max(0, FINAL_ROUNDS * len(ending.finalists) - len(ending.finals))
        expected_s = left * budget.compared_s + (0.0 if ending.open_loop else budget.open_s)
    return StudyPlan(
        name=setup.folder.name,
        model=str(setup.store.facts()["model"]),
        load=workload_in_words(
            settings.target.in_flight,
            settings.target.client_batch,
            rate_per_s=setup.arena.environment.rate_per_s,
            arrivals=settings.target.arrivals,
            objective=settings.measurement.objective,
        ),
        sampler=settings.search.sampler,
        cells=len(setup.arena.candidates.cells),
        trials=settings.search.trials,
        initial=settings.search.first_trials,
        done=done,
        pairs=budget.pairs if ending is None else ending.pairs,
        expected_s=expected_s,
        max_time_s=left_s,
        fits=settings.search.trials if ending else min(settings.search.trials, done + fits),
    )
