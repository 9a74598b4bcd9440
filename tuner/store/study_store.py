"""Trials of one study in Optuna's storage: SQLite in the study's folder, or any storage by URL.

A trial is RUNNING from `ask` to `tell`; after a kill, the study's next owner marks it as
interrupted. One process owns a study at a time: the run folder's lock, and in PostgreSQL one that
holds over machines (`hold_lock`).

SQLite uses a write-ahead log without waiting for the disk: a kill loses nothing, while a power cut
may lose the last trials.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import pathlib
import sqlite3
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import optuna
import sqlalchemy
import sqlalchemy.exc
from optuna.distributions import BaseDistribution
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from tuner.errors import StorageFailed, StudyBusy, StudyExists, UnknownStudy
from tuner.store import session_lock, trial_rows
from tuner.store.session_lock import SessionLock
from tuner.store.trial_rows import TrialResult
from tuner.values.configuration import Configuration
from tuner.values.trial import Trial

Sampler = BaseSampler
Distributions = Mapping[str, BaseDistribution]
PROPOSAL = "sampler:proposal"
DISREGARDED = "disregarded"
SECOND = "second_try"
CONSTRAINTS = "constraints"
"""System attribute of a trial that every Optuna reads.

`Trial.set_constraint` of Optuna 5 writes others, which neither Optuna 4 nor its dashboard reads.
"""
BUSY_TIMEOUT_S = 20.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningTrial:
    """Running trial, with its configuration and origin."""

    trial: optuna.Trial
    configuration: Configuration
    origin: str
    gain: float | None
    """Largest expected improvement as a share of the best, or None if unknown."""
    is_second: bool
    """Whether it repeats a trial whose machine was lost."""


class StudyStore:
    """One study in one storage; see `create` and `open_study`."""

    def __init__(self, study: optuna.Study, where: str, storage: RDBStorage | None = None) -> None:
        self.study = study
        self._where = where
        self._storage = storage
        self._lock: SessionLock | None = None

    @classmethod
    def create(
        cls, name: str, *, database: pathlib.Path, url: str | None, facts: Mapping[str, Any]
    ) -> StudyStore:
        """Create a study with `facts`, in the SQLite `database` or the storage at `url`.

        Raises:
            StudyExists: the storage has a study of that name.
            StorageFailed: the storage is unreachable or not writable; it is left without the study.
        """
        where = _place(database, url)
        with _storage_errors(where):
            storage = _storage(database, url)
            try:
                study = optuna.create_study(storage=storage, study_name=name)
            except optuna.exceptions.DuplicatedStudyError:
                instead = "choose another --study, or delete the existing one with --overwrite"
                raise StudyExists(f"study {name!r} in {where}", instead) from None
            try:
                study.set_user_attr("luthier", dict(facts))
            except BaseException:
                with contextlib.suppress(Exception):  # the error before it matters
                    optuna.delete_study(study_name=name, storage=storage)
                raise
        return cls(study, where, storage)

    @classmethod
    def open_study(cls, name: str, *, database: pathlib.Path, url: str | None) -> StudyStore:
        """Open an existing study, or raise UnknownStudy, or StorageFailed if unreachable."""
        where = _place(database, url)
        if url is None and not database.exists():
            raise UnknownStudy(name, (), where)
        with _storage_errors(where):
            storage = _storage(database, url)
            try:
                return cls(optuna.load_study(storage=storage, study_name=name), where, storage)
            except KeyError:
                known = tuple(optuna.get_all_study_names(storage))
                raise UnknownStudy(name, known, where) from None

    @classmethod
    def in_memory(cls, name: str) -> StudyStore:
        """Create a study that is lost when the process ends."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.InMemoryStorage()
        return cls(optuna.create_study(storage=storage, study_name=name), "memory")

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Lock the study against processes on other machines until the block or this process ends.

        PostgreSQL has such locks; other storages are left to the run folder's. Nothing is written
        once it is lost.

        Raises:
            StudyBusy: another process runs the study.
            StorageFailed: the storage is unreachable.
        """
        if self._storage is None or self._storage.engine.dialect.name != "postgresql":
            yield
            return
        name = self.study.study_name
        with contextlib.ExitStack() as held:
            with _storage_errors(self._where):
                lock = held.enter_context(session_lock.take(self._storage.engine, name))
            if lock is None:
                raise StudyBusy(name, None)
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Let the block write; raise StorageFailed if it fails, or if the study's lock is lost."""
        if self._lock is not None and (reason := self._lock.lost()) is not None:
            raise StorageFailed(
                f"the lock of study {self.study.study_name!r} in the storage {self._where} is lost "
                f"({reason}), so another process may run it: let nothing end or pool its session"
            )
        with _storage_errors(self._where):
            yield

    def delete(self) -> None:
        """Delete the study from its storage, or raise StorageFailed."""
        storage = self.study._storage  # noqa: SLF001 - no public way
        with self._writing():
            optuna.delete_study(study_name=self.study.study_name, storage=storage)

    def use_sampler(self, sampler: BaseSampler) -> None:
        """Let this sampler make the proposals from now on."""
        self.study.sampler = sampler

    def enqueue(
        self, configuration: Configuration, *, origin: str, is_second: bool = False
    ) -> None:
        """Queue a configuration, which `ask` returns before any proposal."""
        attributes = {"origin": origin, **({SECOND: True} if is_second else {})}
        with self._writing(), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study.enqueue_trial(dict(configuration), user_attrs=attributes)

    def ask(self, distributions: Distributions, *, else_origin: str) -> RunningTrial:
        """Return the next configuration to evaluate; its trial is RUNNING until `tell`.

        `else_origin` is the origin if neither the queue nor the sampler gives one.
        """
        with self._writing():
            trial = self.study.ask(dict(distributions))
            # The sampler writes beside the trial object, so read the storage.
            attrs = self.study.get_trials(deepcopy=False)[trial.number].user_attrs
            by_sampler = attrs.get(PROPOSAL, {}).get("origin")
            origin = str(attrs.get("origin") or by_sampler or else_origin)
            configuration = Configuration(trial.params)
            trial.set_user_attr("configuration", dict(configuration))
            if attrs.get("origin") != origin:
                trial.set_user_attr("origin", origin)
        return RunningTrial(
            trial=trial,
            configuration=configuration,
            origin=origin,
            gain=_gain(attrs),
            is_second=SECOND in attrs,
        )

    def tell(self, proposed: RunningTrial, result: TrialResult) -> Trial:
        """End a trial with its result."""
        with self._writing():
            for name, value in trial_rows.attributes(result).items():
                proposed.trial.set_user_attr(name, value)
            if constraints := trial_rows.constraints(result):
                proposed.trial.storage.set_trial_system_attr(
                    proposed.trial._trial_id,  # noqa: SLF001 - no public way
                    CONSTRAINTS,
                    constraints,
                )
            is_ok = result.outcome.status == "ok" and result.objective is not None
            ended = self.study.tell(
                proposed.trial,
                result.objective if is_ok else None,
                state=TrialState.COMPLETE if is_ok else TrialState.PRUNED,
            )
            return trial_rows.as_trial(ended)

    def give_up_running(self, reason: str) -> tuple[int, ...]:
        """Mark running trials as interrupted, and return their numbers."""
        with self._writing():
            running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            for frozen in running:
                trial = optuna.Trial(self.study, frozen._trial_id)  # noqa: SLF001 - no public way
                self._interrupt(trial, reason)
            return tuple(frozen.number for frozen in running)

    def give_up(self, proposed: RunningTrial, reason: str) -> None:
        """Mark one running trial as interrupted."""
        with self._writing():
            self._interrupt(proposed.trial, reason)

    def disregard(self, numbers: Collection[int]) -> None:
        """Let these ended trials count for nothing: their machine failed, not their configuration."""
        with self._writing():
            before = self.study.user_attrs.get(DISREGARDED, [])
            self.study.set_user_attr(DISREGARDED, [*before, *numbers])

    def _interrupt(self, trial: optuna.Trial, reason: str) -> None:
        trial.set_user_attr("interrupted", reason)
        self.study.tell(trial, state=TrialState.FAIL)

    def trials(self) -> tuple[Trial, ...]:
        """Return all trials that have ended and count, ordered by number."""
        with _storage_errors(self._where):
            ended = trial_rows.as_trials(self.study.get_trials(deepcopy=False))
            disregarded = set(self.study.user_attrs.get(DISREGARDED, ()))
            return tuple(trial for trial in ended if trial.number not in disregarded)

    def note(self, text: str) -> None:
        """Save a note, unless it is saved already."""
        with self._writing():
            notes = list(self.study.user_attrs.get("notes", []))
            if text not in notes:
                self.study.set_user_attr("notes", [*notes, text])

    def notes(self) -> tuple[str, ...]:
        """Return the notes, oldest first."""
        with _storage_errors(self._where):
            return tuple(self.study.user_attrs.get("notes", []))

    def facts(self) -> dict[str, Any]:
        """Return the plain data saved at creation."""
        with _storage_errors(self._where):
            return dict(self.study.user_attrs.get("luthier", {}))

    def has_waiting(self) -> bool:
        """Whether a configuration is queued."""
        with _storage_errors(self._where):
            return bool(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def used_s(self) -> float:
        """Return the seconds used by all processes of the study."""
        with _storage_errors(self._where):
            return float(self.study.user_attrs.get("used_s", 0.0))

    def keep_used_s(self, seconds: float) -> None:
        """Save the seconds used so far by all processes."""
        with self._writing():
            self.study.set_user_attr("used_s", seconds)

    def gains(self, origins: Collection[str]) -> tuple[float | None, ...]:
        """Return `RunningTrial.gain` of ended trials with these origins, ordered by number."""
        with _storage_errors(self._where):
            frozen = [t for t in self.study.get_trials(deepcopy=False) if trial_rows.is_ended(t)]
        frozen.sort(key=lambda trial: trial.number)
        return tuple(
            _gain(trial.user_attrs) for trial in frozen if trial.user_attrs["origin"] in origins
        )


def without_password(url: str) -> str:
    """Return a storage URL with the password hidden."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url


def _gain(attributes: Mapping[str, Any]) -> float | None:
    found = attributes.get(PROPOSAL, {}).get("largest_expected_improvement")
    return None if found is None else float(found)


def _storage(database: pathlib.Path, url: str | None) -> RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is not None:
        return RDBStorage(_with_driver(url))
    return RDBStorage(
        f"sqlite:///{database}", engine_kwargs={"creator": lambda: _connection(database)}
    )


def _with_driver(url: str) -> str:
    """Return a storage URL that names psycopg 3 if it is there and the URL names no driver."""
    scheme, _, rest = url.partition("://")
    is_plain = scheme in {"postgresql", "postgres"}
    if is_plain and importlib.util.find_spec("psycopg") is not None:
        scheme = "postgresql+psycopg"
    elif is_plain and importlib.util.find_spec("psycopg2") is None:
        raise ModuleNotFoundError("psycopg is not installed: pip install 'luthier[postgresql]'")
    return f"{scheme}://{rest}"


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
    except ImportError as error:  # of the database's driver
        raise StorageFailed(f"the storage {where} cannot be used: {error}") from error
    except (StorageInternalError, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error) as error:
        cause = error.__cause__ or error
        reason = session_lock.reason_of(cause)
        is_damaged = "malformed" in reason or "not a database" in reason
        check = "content" if is_damaged else "space, permissions and address"
        raise StorageFailed(f"the storage {where} failed: {reason}; check its {check}") from error
