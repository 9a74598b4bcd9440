"""Creation of a study on disk: name, folder and store; on failure, nothing is left."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import pathlib
from typing import Any

from serving.accelerator import clocks
from serving.model_spec import ModelSpec
from tuner.errors import StudyExists, UnknownStudy
from tuner.launching import machine
from tuner.launching.engine import EngineInfo
from tuner.settings.study import StudySettings
from tuner.settings.workload import RATE, TRACE
from tuner.store import study_store
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import problem, study_files
from tuner.study.interruption import resume_command
from tuner.study.preparation import StudyInputs, files_to_keep
from tuner.study.target import Target


def name_study(
    settings: StudySettings, card: ModelSpec, *, now: dt.datetime, prefix: str = ""
) -> StudySettings:
    """Return the settings with a study name, and absolute paths."""
    target, store = settings.target, settings.store
    load = f"c{target.in_flight}"
    if target.is_open:
        load = f"r{target.rate:g}" if target.rate is not None else "trace"
    if settings.measurement.objective == RATE:
        load = f"rate{settings.measurement.slo_ms:g}ms"
    load += f"-b{target.client_batch}" if target.client_batch > 1 else ""
    name = store.study or f"{prefix}{card.name}-{load}-{now:%Y%m%d-%H%M%S}"
    measurement = dataclasses.replace(
        settings.measurement, prices=_absolute(settings.measurement.prices)
    )
    target = dataclasses.replace(
        target,
        model=problem.absolute_model(target.model, card),
        scenario=_absolute(target.scenario),
        space=_absolute(target.space),
        payload=_absolute(target.payload),
        shape=tuple(_absolute(one, "=@") for one in target.shape),
        values=tuple(_absolute(one, "=@") for one in target.values),
        engine=_absolute(target.engine, "command:")
        if target.engine.startswith("command:")
        else target.engine,
        arrivals=_absolute(target.arrivals, TRACE),
    )
    return dataclasses.replace(
        settings,
        target=target,
        measurement=measurement,
        store=dataclasses.replace(store, study=name),
    )


def folder_of(settings: StudySettings) -> RunFolder:
    """Return the folder of a named study, without creating it."""
    assert settings.store.study is not None
    return RunFolder(pathlib.Path(settings.store.runs_dir), settings.store.study)


def name_taken(folder: RunFolder) -> StudyExists:
    """Return the error for a study name that is taken."""
    if not folder.is_study():
        return StudyExists(str(folder.path), "it is not a study; choose another --study")
    return StudyExists(
        f"study {folder.name!r}",
        f"resume it with `{resume_command(folder)}`, choose another --study, or delete it "
        "with --overwrite",
    )


def create_study(folder: RunFolder, inputs: StudyInputs, *, overwrite: bool) -> StudyStore:
    """Create the folder and the store.

    Args:
        inputs: includes any storage password, which is used but not saved.

    Raises:
        StudyExists: the storage has a study of that name.
        StudyBusy: `overwrite` is set, but another process runs the study.
        UsageError: `overwrite` is set, but the folder is not a study folder.
        StorageFailed: the storage cannot be written.
    """
    settings, problem, target = inputs.settings, inputs.problem, inputs.target
    url = settings.store.storage
    if overwrite:
        _delete(folder, url)
    kept_url = None if url is None else study_store.without_password(url)
    saved = dataclasses.replace(settings.store, storage=kept_url)
    kept = dataclasses.replace(settings, store=saved)
    folder.create(kept.as_nested(), environment_facts(inputs.served))
    try:
        folder.write_text("space.yaml", problem.text)
        save_copies(folder, settings, target)
        return StudyStore.create(
            folder.name,
            database=folder.database,
            url=url,
            facts=study_files.facts_of(
                settings, problem, inputs.served, target.shared(), inputs.payloads.sent
            ),
        )
    except BaseException:
        folder.discard()
        raise


def save_copies(folder: RunFolder, settings: StudySettings, target: Target) -> None:
    """Copy the engine or scenario file and the prices, so that a resumed study finds them unchanged."""
    for name, text in files_to_keep(settings, target).items():
        folder.write_text(name, text)


def environment_facts(served: EngineInfo) -> dict[str, Any]:
    """Return the content of `environment.json`."""
    found = clocks.supported_clocks_mhz()
    return {
        **machine.describe(machine.read()),
        "engine": served.engine,
        "limits": served.limits,
        "gpu": found if isinstance(found, str) else {"clocks_mhz": list(found)},
    }


def _delete(folder: RunFolder, url: str | None) -> None:
    with contextlib.ExitStack() as held:
        if is_here := folder.exists():
            held.enter_context(folder.hold_lock())
        store = None if url is None else _stored(folder, url)
        if store is not None:  # another machine may run it, without this folder
            held.enter_context(store.hold_lock())
        if is_here:
            folder.delete()
        if store is not None:
            store.delete()


def _stored(folder: RunFolder, url: str) -> StudyStore | None:
    try:
        return StudyStore.open_study(folder.name, database=folder.database, url=url)
    except UnknownStudy:
        return None


def _absolute(text: Any, after: str = "") -> Any:
    if text is None or after not in text:
        return text
    start = text.index(after) + len(after)
    return text[:start] + str(pathlib.Path(text[start:]).absolute())
