"""One study, from the default configuration to the verdict. Read `tune` from top to bottom.

    inputs -> engine started once -> folder and store -> search (trial after trial) -> verification
    -> verdict -> files

In: settings. Out: `Finished`: the record of the study and the files that were written. Nothing is
written before the inputs were checked and the engine has served; a signal or a `kill -9` at any
point loses at most the running launch, and `resume` goes on to the same budget. Blocking, for one
thread; signals arrive as KeyboardInterrupt.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import pathlib
import time
from collections.abc import Mapping, Sequence

from tuner import answers, export, interruption, other_engines, study_files, verification
from tuner.advice import advised, why_nothing
from tuner.bench import Bench, Launch
from tuner.creation import created, folder_of, name_taken, named
from tuner.errors import Interrupted, StorageFailed, TunerError
from tuner.export import serving as serving_export
from tuner.inputs import Arena
from tuner.interruption import resumable
from tuner.launching import machine
from tuner.measurement import comparison
from tuner.measurement.doubts import doubts
from tuner.preparation import bench_of, budget_of, notes_of, prepared
from tuner.progress import Plan, Progress, Terminal
from tuner.report import files as report_files
from tuner.search import Search
from tuner.settings import StudySettings, load_in_words
from tuner.store import records
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.traffic.payloads import Payloads
from tuner.values import Configuration, Ending, FreshStart, Measurement, StudyRecord, Verdict


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A study that came to its end."""

    record: StudyRecord
    stopped: str
    """Why the search ended."""
    files: Mapping[str, pathlib.Path]
    """What was written, by what to call it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """Everything that a study runs on, checked and started."""

    settings: StudySettings
    folder: RunFolder
    store: StudyStore
    arena: Arena
    bench: Bench
    payloads: Payloads
    terminal: Terminal
    progress: Progress
    begin_s: float
    """Monotonic time at which the study would have begun without its interruptions."""

    def used_s(self) -> float:
        """Seconds of the study so far, over all processes that ran it."""
        return time.monotonic() - self.begin_s

    def keep_used(self) -> None:
        """Let the next process know of them."""
        self.store.keep_used_s(self.used_s())


def tune(settings: StudySettings, *, fresh: bool, terminal: Terminal) -> Finished:
    """Run a new study.

    Args:
        settings: what is asked for.
        fresh: whether a study of the same name is deleted first.
        terminal: where to speak and log.

    Raises:
        WrongUse: an input is wrong; nothing was written.
        TunerError: the study could not be done.
        Interrupted: a signal came; what was measured is kept.
    """
    engine = other_engines.engine_of(settings.target)
    card = other_engines.card_of(settings.target, engine)
    settings = named(settings, card, now=dt.datetime.now().astimezone())
    folder = folder_of(settings)
    if folder.exists() and not fresh:
        raise name_taken(folder)
    with resumable(None), bench_of(settings, card, engine, terminal) as bench:
        arena, payloads, served = prepared(bench, settings, card, engine, terminal)
        with resumable(folder, interruption.NOT_BEGUN):
            store = created(folder, settings, arena, served, fresh=fresh, engine=engine)
            with folder.locked():
                terminal.log.write_to(folder.log)
                for note in notes_of(arena, payloads, served, bench.counted):
                    store.note(note)
                return _conducted(_setup(settings, folder, store, arena, bench, payloads, terminal))


def resume(folder: RunFolder, *, storage: str | None, terminal: Terminal) -> Finished:
    """Go on with a study to the budget it was given; a finished one is only reported again.

    Args:
        folder: of the study.
        storage: URL to use instead of the kept one, whose password is not kept.
        terminal: where to speak and log.

    Raises:
        TunerError, Interrupted: as for `tune`.
    """
    settings = study_files.settings_of(folder)
    with resumable(folder), folder.locked():
        terminal.log.write_to(folder.log)
        store = study_files.store_of(folder, settings, url=storage)
        if study_files.is_finished(folder):
            return _finished(folder, store, settings)
        engine = other_engines.engine_of(settings.target, kept=study_files.engine_copy(folder))
        card = other_engines.card_of(settings.target, engine)
        space = str(folder.path / "space.yaml")  # as it was searched, also where it was derived
        target = dataclasses.replace(settings.target, space=space)
        with bench_of(settings, card, engine, terminal) as bench:
            searched = dataclasses.replace(settings, target=target)
            arena, payloads, _ = prepared(bench, searched, card, engine, terminal)
            study_files.check_same_space(store, arena)
            return _conducted(_setup(settings, folder, store, arena, bench, payloads, terminal))


def _setup(
    settings: StudySettings,
    folder: RunFolder,
    store: StudyStore,
    arena: Arena,
    bench: Bench,
    payloads: Payloads,
    terminal: Terminal,
) -> Setup:
    objective = settings.measurement.objective
    return Setup(
        settings=settings,
        folder=folder,
        store=store,
        arena=arena,
        bench=bench,
        payloads=payloads,
        terminal=terminal,
        progress=Progress(terminal.console, default=arena.default, objective=objective),
        begin_s=time.monotonic() - store.used_s(),
    )


def _conducted(setup: Setup) -> Finished:
    """Search, verify, write: the study itself."""
    settings, folder = setup.settings, setup.folder
    search = Search(
        store=setup.store,
        arena=setup.arena,
        bench=setup.bench,
        budget=budget_of(settings, setup.bench),
        objective=settings.measurement.objective,
        slo_ms=settings.measurement.slo_ms,
        stop_ei=settings.search.stop_ei,
        keep_in=folder,
    )
    try:
        search.prepare(settings.search)
        ending = study_files.ending_of(folder)
        setup.progress.plan(_plan(setup, search, ending), now=dt.datetime.now().astimezone())
        if ending is None:
            ending = _searched(setup, search)
            study_files.keep_ending(folder, ending)
        ending, verdict = _verified(setup, ending)
        setup.bench.close()
        study_files.keep_end(folder, ending, verdict)
        return _finished(folder, setup.store, settings)
    except KeyboardInterrupt:
        raise _interrupted(setup) from None
    except StorageFailed as error:
        raise StorageFailed(f"{error}; then {interruption.go_on(folder)}") from error


def _searched(setup: Setup, search: Search) -> Ending:
    """Run trials until there is a reason to stop; then say what is to be verified."""
    while (reason := search.stop_reason(setup.used_s())) is None:
        setup.terminal.check()
        trial = search.step()
        setup.keep_used()
        left_s = search.left_s(setup.used_s())
        setup.progress.trial(trial, best=search.best_seen(), left_s=left_s)
        if trial.origin == "default" and trial.measurement is not None:
            _look_closer(setup, trial.measurement)
            search.pause()
    setup.progress.say(reason)
    left_s = setup.settings.search.max_time_s - setup.used_s()
    best = search.recommended()
    if best is not None and setup.arena.is_default(best):
        best = setup.arena.default
    luckier = search.best_seen()
    if best is not None and luckier is not None and luckier.configuration != best:
        setup.progress.recommended(best, luckier)
    return Ending(stopped=reason, best=best, pairs=search.budget.pairs_in(left_s))


def _look_closer(setup: Setup, measurement: Measurement) -> None:
    """What the first launch tells beside its figures: doubts, and whether answers are right."""
    address = setup.bench.address
    checked = None if address is None else answers.checked(address, setup.payloads)
    found = [] if checked is None else [checked]
    cores = machine.read().cores
    found += [f"the default's launch: {doubt}" for doubt in doubts(measurement, cores=cores)]
    for note in found:
        setup.store.note(note)
        setup.progress.say(note)


def _verified(setup: Setup, ending: Ending) -> tuple[Ending, Verdict | None]:
    """The best configuration and the default, measured in turn on fresh starts."""
    sides = _sides(setup, ending.best)
    if sides is None:
        return ending, None
    done = verification.whole(ending.starts, len(sides))
    if done:
        setup.progress.say(f"the verification goes on behind {len(done)} fresh starts")
    begun_s = time.monotonic()

    def report(starts: Sequence[FreshStart], launch: Launch) -> None:
        number, last = len(starts), starts[-1]
        if launch.records is not None and number <= len(sides):
            setup.folder.write_bytes(
                f"verification/{last.role}.npz", records.encoded(launch.records)
            )
        study_files.keep_ending(setup.folder, dataclasses.replace(ending, starts=tuple(starts)))
        setup.keep_used()
        whole = len(sides) * ending.pairs
        each_s = (time.monotonic() - begun_s) / (number - len(done))
        setup.progress.verification(
            number,
            whole,
            last.role,
            last.outcome,
            last.measurement,
            left_s=(whole - number) * each_s,
        )
        setup.terminal.check()

    rounds = verification.alternate(
        setup.bench,
        sides,
        rounds=ending.pairs,
        slo_ms=setup.settings.measurement.slo_ms,
        report=report,
        done=done,
    )
    ending = dataclasses.replace(ending, starts=rounds.starts)
    if rounds.counted < comparison.LEAST_PAIRS:
        return ending, None
    return ending, comparison.compare(
        default=rounds.measurements["default"],
        best=rounds.measurements["best"],
        objective=setup.settings.measurement.objective,
    )


def _sides(setup: Setup, best: Configuration | None) -> dict[str, Configuration] | None:
    """What is compared, by role; None where there is nothing to compare."""
    if best is None:
        return None
    if best == setup.arena.default:
        others = any(t.configuration != best for t in setup.store.trials())
        found = "the default is the best that was found"
        alone = "only the default was launched, so that nothing was searched"
        setup.progress.say(f"{found if others else alone}: there is nothing to compare")
        return None
    return {"default": setup.arena.default, "best": best}


def _interrupted(setup: Setup) -> Interrupted:
    """Leave a study that was interrupted whole, and say what it has."""
    cut_off = setup.store.give_up_running("interrupted by a signal")
    setup.keep_used()
    ending, size = study_files.ending_of(setup.folder), len(study_files.ROLES)
    kept = interruption.kept(
        trials=len(setup.store.trials()),
        cut_off=cut_off,
        starts=0 if ending is None else len(verification.whole(ending.starts, size)),
        of=0 if ending is None else size * ending.pairs,
    )
    return Interrupted(f"{kept}; {interruption.go_on(setup.folder)}")


def _finished(folder: RunFolder, store: StudyStore, settings: StudySettings) -> Finished:
    """Write what a finished study offers to its readers."""
    record = study_files.read(folder, store, settings)
    written: dict[str, pathlib.Path] = {}
    advice = advised(record)
    if advice is not None:
        text = export.best_text(record, advice)
        written["settings"] = folder.write_text(serving_export.FILE_NAME, text)
    written["report"] = report_files.write_study(record, folder.path / "report.html")
    written["study"] = folder.path
    if advice is None:
        why = why_nothing(record)
        raise TunerError(
            f"study {folder.name}: no configuration worked ({why}); see {written['report']}"
        )
    return Finished(record=record, stopped=study_files.stopped_of(folder), files=written)


def _plan(setup: Setup, search: Search, ending: Ending | None) -> Plan:
    settings, budget = setup.settings, search.budget
    left_s = max(0.0, settings.search.max_time_s - setup.used_s())
    done, fits = len(search.trials), budget.trials_in(left_s)
    expected_s = budget.left_s(done, [])
    if ending is not None:
        starts = len(verification.whole(ending.starts, len(study_files.ROLES)))
        expected_s = budget.verification_s(ending.pairs) - budget.verification_s(1) / 2 * starts
    return Plan(
        name=setup.folder.name,
        model=str(setup.store.facts()["model"]),
        load=load_in_words(settings.target.concurrency, settings.target.client_batch),
        sampler=settings.search.sampler,
        cells=len(setup.arena.candidates.cells),
        trials=settings.search.trials,
        initial=settings.search.first_trials,
        done=done,
        pairs=settings.measurement.pairs if ending is None else ending.pairs,
        expected_s=expected_s,
        max_time_s=left_s,
        fits=settings.search.trials if ending else min(settings.search.trials, done + fits),
    )
