"""The trials of one study in Optuna's storage: SQLite in the study's folder, or any other by URL.

A trial exists from the moment it is asked for, and has its result in the moment it is told; a
process that is killed between the two leaves a RUNNING trial, which the next owner of the study
marks as interrupted. One process owns a study at a time (the lock is the run folder's). What is
returned are values, never Optuna's own objects of past trials.

SQLite runs with a write-ahead log and without waiting for the disk at each commit: a killed process
loses nothing, a power cut may lose the last trials, and a trial costs a tenth of what it does with
the defaults.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.distributions import BaseDistribution
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from tuner.errors import StorageFailed, StudyExists, UnknownStudy
from tuner.store import trial_rows
from tuner.store.trial_rows import TrialResult
from tuner.values import Configuration, Trial

BUSY_TIMEOUT_S = 20.0
"""How long SQLite waits for a reader (a dashboard) to let go."""


class StudyStore:
    """One study in one storage; made by `create` or `open_study`."""

    def __init__(self, study: optuna.Study, where: str) -> None:
        self.study = study
        """The Optuna study itself, for samplers."""
        self._where = where

    @classmethod
    def create(
        cls,
        name: str,
        *,
        database: pathlib.Path,
        url: str | None,
        is_minimised: bool,
        facts: Mapping[str, Any],
    ) -> StudyStore:
        """A new study.

        Args:
            name: name of the study inside the storage.
            database: SQLite file to use without a URL.
            url: an Optuna storage URL.
            is_minimised: direction of the objective.
            facts: plain data kept with the study.

        Raises:
            StudyExists: the storage has a study of that name.
            StorageFailed: it cannot be reached or written.
        """
        where = _place(database, url)
        with _storage_errors(where):
            storage = _storage(database, url)
            try:
                study = optuna.create_study(
                    storage=storage,
                    study_name=name,
                    direction="minimize" if is_minimised else "maximize",
                )
            except optuna.exceptions.DuplicatedStudyError:
                raise StudyExists(name) from None
            study.set_user_attr("luthier", dict(facts))
        return cls(study, where)

    @classmethod
    def open_study(cls, name: str, *, database: pathlib.Path, url: str | None) -> StudyStore:
        """A study that is there.

        Raises:
            UnknownStudy: the storage has none of that name.
            StorageFailed: it cannot be reached.
        """
        where = _place(database, url)
        if url is None and not database.exists():
            raise UnknownStudy(name, ())
        with _storage_errors(where):
            storage = _storage(database, url)
            try:
                return cls(optuna.load_study(storage=storage, study_name=name), where)
            except KeyError:
                raise UnknownStudy(name, tuple(optuna.get_all_study_names(storage))) from None

    def use_sampler(self, sampler: BaseSampler) -> None:
        """Let a sampler propose from now on."""
        self.study.sampler = sampler

    def enqueue(self, configuration: Configuration, *, origin: str) -> None:
        """Make a configuration the next one that `ask` gives."""
        with _storage_errors(self._where), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study.enqueue_trial(dict(configuration), user_attrs={"origin": origin})

    def ask(self, distributions: Mapping[str, BaseDistribution]) -> optuna.Trial:
        """The next trial, with a value for every distribution; it is RUNNING until told."""
        with _storage_errors(self._where):
            return self.study.ask(dict(distributions))

    def describe(self, trial: optuna.Trial, configuration: Configuration, origin: str) -> None:
        """Write what a running trial launches, before it is launched."""
        with _storage_errors(self._where):
            trial.set_user_attr("configuration", dict(configuration))
            if trial.user_attrs.get("origin") != origin:
                trial.set_user_attr("origin", origin)

    def tell(self, trial: optuna.Trial, result: TrialResult) -> None:
        """End a trial with its result."""
        with _storage_errors(self._where):
            for name, value in trial_rows.attributes(result).items():
                trial.set_user_attr(name, value)
            is_ok = result.outcome.status == "ok" and result.objective is not None
            self.study.tell(
                trial,
                result.objective if is_ok else None,
                state=TrialState.COMPLETE if is_ok else TrialState.PRUNED,
            )

    def give_up_running(self, reason: str) -> int:
        """Mark trials that nobody measures any more: they count for nothing. Returns how many."""
        with _storage_errors(self._where):
            running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            for frozen in running:
                trial = optuna.Trial(self.study, frozen._trial_id)  # noqa: SLF001 - no public way
                trial.set_user_attr("interrupted", reason)
                self.study.tell(trial, state=TrialState.FAIL)
            return len(running)

    def trials(self) -> tuple[Trial, ...]:
        """All trials that ended, by number."""
        with _storage_errors(self._where):
            return trial_rows.as_trials(self.study.get_trials(deepcopy=False))

    def facts(self) -> dict[str, Any]:
        """The plain data that was kept with the study."""
        with _storage_errors(self._where):
            return dict(self.study.user_attrs.get("luthier", {}))

    def has_waiting(self) -> bool:
        """Whether an enqueued configuration still waits to be asked for."""
        with _storage_errors(self._where):
            return bool(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def used_s(self) -> float:
        """Seconds that trials took so far, over all processes that ran the study."""
        with _storage_errors(self._where):
            durations = [
                t.duration for t in self.study.get_trials(deepcopy=False) if trial_rows.is_ended(t)
            ]
        return sum(duration.total_seconds() for duration in durations if duration is not None)


def delete(name: str, *, url: str) -> None:
    """Remove a study from a shared storage; harmless where there is none.

    Raises:
        StorageFailed: the storage cannot be reached or written.
    """
    with _storage_errors(_place(pathlib.Path(), url)), contextlib.suppress(KeyError):
        optuna.delete_study(study_name=name, storage=_storage(pathlib.Path(), url))


def without_password(url: str) -> str:
    """A storage URL as it may be written to a file."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url


def _storage(database: pathlib.Path, url: str | None) -> RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is not None:
        return RDBStorage(url)
    return RDBStorage(
        f"sqlite:///{database}", engine_kwargs={"creator": lambda: _connection(database)}
    )


def _connection(database: pathlib.Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=normal")
    return connection


def _place(database: pathlib.Path, url: str | None) -> str:
    return str(database) if url is None else without_password(url)


@contextlib.contextmanager
def _storage_errors(where: str) -> Iterator[None]:
    try:
        yield
    except (
        StorageInternalError,
        sqlalchemy.exc.SQLAlchemyError,
        sqlite3.Error,
        ModuleNotFoundError,
        ImportError,
    ) as error:
        cause = error.__cause__ or error
        reason = str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]
        raise StorageFailed(
            f"the storage {where} failed: {reason}; check its space, rights and address"
        ) from error
