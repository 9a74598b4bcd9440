"""One study, from the default configuration to the verdict. Read `tune` from top to bottom.

    inputs -> engine started once -> folder and store -> search (trial after trial) -> verification
    -> verdict -> files

In: settings. Out: `Finished`: the record of the study and the files that were written. Nothing is
written before the inputs were checked and the engine has served; a signal or a `kill -9` at any
point loses at most the running trial, and `resume` goes on to the same budget. Blocking, for one
thread; signals arrive as KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from serving.accelerator import clocks
from serving.values import ModelCard
from tuner import answers, inputs, probe, study_files, verification
from tuner.bench import Bench, Launch, Served
from tuner.budget import Budget
from tuner.errors import Interrupted, StudyExists, TunerError
from tuner.export import serving as serving_export
from tuner.inputs import Arena
from tuner.launching import machine
from tuner.measurement import comparison
from tuner.measurement.doubts import doubts
from tuner.progress import Plan, Progress, Terminal
from tuner.report import files as report_files
from tuner.sampling.gp import GpSampler
from tuner.search import Search, sampler_of
from tuner.settings import StudySettings
from tuner.space.environment import Environment
from tuner.store import records, study_store
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.traffic.payloads import Payloads
from tuner.values import Configuration, Measurement, StudyRecord, Verdict

FEWEST_PAIRS = 2


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
    card = inputs.card_of(settings.target.model)
    settings = named(settings, card, now=dt.datetime.now().astimezone())
    folder = folder_of(settings)
    if folder.exists() and not fresh:
        raise StudyExists(folder.name)
    with resumable(None), bench_of(settings) as bench:
        arena, payloads, served = prepared(bench, settings, card, terminal)
        store = _created(folder, settings, arena, served, fresh=fresh)
        with folder.locked():
            terminal.log.write_to(folder.log)
            for note in (*arena.notes, *notes_of(payloads, served)):
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
    with folder.locked():
        terminal.log.write_to(folder.log)
        store = study_files.store_of(folder, settings, url=storage)
        if study_files.is_finished(folder):
            return _finished(folder, store, settings)
        card = inputs.card_of(settings.target.model)
        space = str(folder.path / "space.yaml")  # as it was searched, also where it was derived
        target = dataclasses.replace(settings.target, space=space)
        with resumable(folder), bench_of(settings) as bench:
            searched = dataclasses.replace(settings, target=target)
            arena, payloads, _ = prepared(bench, searched, card, terminal)
            study_files.check_same_space(store, arena)
            return _conducted(_setup(settings, folder, store, arena, bench, payloads, terminal))


def prepared(
    bench: Bench, settings: StudySettings, card: ModelCard, terminal: Terminal
) -> tuple[Arena, Payloads, Served]:
    """Check the inputs, start the engine, and bind the space to this machine.

    Raises:
        WrongUse: an input is wrong.
        LaunchFailed: the engine does not start.
    """
    target = settings.target
    environment = inputs.environment_of(target, machine.read())
    text = inputs.space_text_of(target, card)
    source = target.space or f"{card.name}.yaml"
    if text is not None:  # what is wrong is said before anything starts
        expected = inputs.arena_of(text, environment, source=source, limits="enforced")
        sampler_of(settings.search, expected)
    with importing_early():
        served = bench.start()
        payloads = inputs.payloads_of(target, card, served, seed=settings.search.seed)
        bench.send(payloads)
    if text is None:
        text = _derived(bench, environment, served, terminal)
    arena = inputs.arena_of(text, environment, source=source, limits=served.limits)
    sampler_of(settings.search, arena)
    return arena, payloads, served


def _derived(bench: Bench, environment: Environment, served: Served, terminal: Terminal) -> str:
    terminal.console.print(f"no search space for {served.model}: probing the model to derive one")
    return probe.text(bench, environment, model=served.model)


def named(
    settings: StudySettings, card: ModelCard, *, now: dt.datetime, prefix: str = ""
) -> StudySettings:
    """The settings with a name for the study, and with paths that any working folder understands."""
    target, store = settings.target, settings.store
    name = store.study or f"{prefix}{card.name}-c{target.concurrency}-{now:%Y%m%d-%H%M%S}"
    target = dataclasses.replace(
        target,
        model=inputs.absolute_model(target.model, card),
        space=_absolute(target.space),
        payload=_absolute(target.payload),
    )
    return dataclasses.replace(
        settings, target=target, store=dataclasses.replace(store, study=name)
    )


def folder_of(settings: StudySettings) -> RunFolder:
    """The folder of a named study."""
    assert settings.store.study is not None
    return RunFolder(pathlib.Path(settings.store.runs_dir), settings.store.study)


def bench_of(settings: StudySettings) -> Bench:
    """A bench for the study's target; nothing is started yet."""
    return Bench(
        model=settings.target.model,
        concurrency=settings.target.concurrency,
        settings=settings.measurement,
    )


def budget_of(settings: StudySettings) -> Budget:
    """What the study may use."""
    measurement = settings.measurement
    return Budget(
        trials=settings.search.trials,
        initial=settings.search.first_trials,
        max_time_s=settings.search.max_time_s,
        load_s=measurement.warmup_s + measurement.seconds,
        pairs=measurement.pairs,
    )


def environment_facts(served: Served) -> dict[str, Any]:
    """What `environment.json` holds."""
    found = clocks.supported_clocks_mhz()
    return {
        **machine.describe(machine.read()),
        "limits": served.limits,
        "gpu": found if isinstance(found, str) else {"clocks_mhz": list(found)},
    }


@contextlib.contextmanager
def importing_early() -> Iterator[None]:
    """Import what the sampler's model needs (over a second) while the engine starts, not while it is measured."""
    thread = threading.Thread(target=_import_quietly, name="import GPy")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _import_quietly() -> None:
    with contextlib.suppress(Exception):  # the sampler imports it again, and says what is wrong
        GpSampler.warm_up()


@contextlib.contextmanager
def resumable(folder: RunFolder | None) -> Iterator[None]:
    """Turn a signal into `Interrupted`, with the command that goes on where there is a study."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "nothing was kept"
        if folder is not None:
            kept = f"everything measured is kept, go on with: {resume_command(folder)}"
        raise Interrupted(kept) from None


def resume_command(folder: RunFolder) -> str:
    """The command that goes on with a study."""
    where = "" if str(folder.runs_dir) == "runs" else f" --runs-dir {folder.runs_dir}"
    return f"tune resume {folder.name}{where}"


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
    )


def _created(
    folder: RunFolder, settings: StudySettings, arena: Arena, served: Served, *, fresh: bool
) -> StudyStore:
    """Make the folder and the store, both or none."""
    url = settings.store.storage
    if fresh:
        if folder.exists():
            with folder.locked():
                folder.delete()
        if url is not None:
            study_store.delete(folder.name, url=url)
    kept_url = None if url is None else study_store.without_password(url)
    kept = dataclasses.replace(
        settings, store=dataclasses.replace(settings.store, storage=kept_url)
    )
    is_new_place = not folder.runs_dir.exists()
    folder.create(kept.nested(), environment_facts(served))
    try:
        folder.write_text("space.yaml", arena.text)
        return StudyStore.create(
            folder.name,
            database=folder.database,
            url=url,
            facts=study_files.facts_of(settings, arena, served.model),
        )
    except BaseException:
        folder.delete()
        if is_new_place:
            folder.runs_dir.rmdir()
        raise


def _conducted(setup: Setup) -> Finished:
    """Search, verify, write: the study itself."""
    settings, store, progress = setup.settings, setup.store, setup.progress
    begin_s = time.monotonic() - store.used_s()
    search = Search(
        store=store,
        arena=setup.arena,
        bench=setup.bench,
        budget=budget_of(settings),
        objective=settings.measurement.objective,
        slo_ms=settings.measurement.slo_ms,
        stop_ei=settings.search.stop_ei,
        keep_in=setup.folder,
    )
    with resumable(setup.folder):
        try:
            search.prepare(settings.search)
            progress.plan(_plan(setup, search), now=dt.datetime.now().astimezone())
            stopped = _searched(setup, search, begin_s)
            progress.say(stopped)
            left_s = settings.search.max_time_s - (time.monotonic() - begin_s)
            best, verdict = _verified(setup, search, left_s)
        except KeyboardInterrupt:
            store.give_up_running("interrupted by a signal")
            raise
        setup.bench.close()
        study_files.keep_end(setup.folder, best=best, verdict=verdict, stopped=stopped)
        return _finished(setup.folder, store, settings)


def _searched(setup: Setup, search: Search, begin_s: float) -> str:
    """Run trials until there is a reason to stop; returns it."""
    while (reason := search.stop_reason(time.monotonic() - begin_s)) is None:
        setup.terminal.check()
        trial = search.step()
        left_s = search.left_s(time.monotonic() - begin_s)
        setup.progress.trial(trial, best=search.best_seen(), left_s=left_s)
        if trial.origin == "default" and trial.measurement is not None:
            _look_closer(setup, trial.measurement)
            search.pause()
    return reason


def _look_closer(setup: Setup, measurement: Measurement) -> None:
    """What the first launch tells beside its figures: doubts, and whether answers are right."""
    address = setup.bench.address
    checked = None if address is None else answers.checked(address, setup.payloads)
    found = [] if checked is None else [checked]
    found += [f"the default's launch: {doubt}" for doubt in doubts(measurement, cores=_cores())]
    for note in found:
        setup.store.note(note)
        setup.progress.say(note)


def _cores() -> int:
    return machine.read().cores


def _verified(
    setup: Setup, search: Search, left_s: float
) -> tuple[Configuration | None, Verdict | None]:
    """The configuration to recommend, re-measured beside the default on fresh starts."""
    best, default = search.recommended(), setup.arena.default
    if best is None:
        return None, None
    if setup.arena.is_default(best):
        setup.progress.say("the default is the best that was found: there is nothing to compare")
        return default, None
    pairs = search.budget.pairs_in(left_s)

    def report(number: int, role: str, launch: Launch) -> None:
        setup.terminal.check()
        setup.progress.verification(number, 2 * pairs, role, launch.outcome, launch.measurement)
        if launch.records is not None and number <= len(study_files.ROLES):
            setup.folder.write_bytes(f"verification/{role}.npz", records.encoded(launch.records))

    rounds = verification.alternate(
        setup.bench, {"default": default, "best": best}, rounds=pairs, report=report
    )
    for failure in dict.fromkeys(rounds.failures):
        setup.store.note(f"a launch of the verification failed; {failure}")
    if rounds.counted < FEWEST_PAIRS:
        return best, None
    return best, comparison.compare(
        default=rounds.measurements["default"],
        best=rounds.measurements["best"],
        objective=setup.settings.measurement.objective,
    )


def _finished(folder: RunFolder, store: StudyStore, settings: StudySettings) -> Finished:
    """Write what a finished study offers to its readers."""
    record = study_files.read(folder, store, settings)
    written: dict[str, pathlib.Path] = {}
    if record.best is not None:
        text = serving_export.settings_text(study_files.recommended(record))
        written["settings"] = folder.write_text(serving_export.FILE_NAME, text)
    written["report"] = report_files.write_study(record, folder.path / "report.html")
    written["study"] = folder.path
    if record.best is None:
        last = record.trials[-1].outcome.reason if record.trials else "no trial was run"
        raise TunerError(
            f"study {folder.name}: no configuration worked ({last}); see {written['report']}"
        )
    return Finished(record=record, stopped=study_files.stopped_of(folder), files=written)


def _plan(setup: Setup, search: Search) -> Plan:
    settings = setup.settings
    return Plan(
        name=setup.folder.name,
        model=str(setup.store.facts()["model"]),
        concurrency=settings.target.concurrency,
        sampler=settings.search.sampler,
        cells=len(setup.arena.candidates.cells),
        trials=settings.search.trials,
        initial=settings.search.first_trials,
        done=len(search.trials),
        pairs=settings.measurement.pairs,
        expected_s=search.budget.left_s(len(search.trials), []),
        max_time_s=settings.search.max_time_s - setup.store.used_s(),
    )


def notes_of(payloads: Payloads, served: Served) -> Iterator[str]:
    """What readers must know of the payloads and of the limits."""
    if payloads.is_synthetic:
        yield f"the payloads are synthetic ({payloads.description}): real inputs may take another time"
    if served.limits != "enforced":
        yield f"limits: {served.limits}"


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(pathlib.Path(path).absolute())
