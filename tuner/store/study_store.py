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
import dataclasses
import pathlib
import sqlite3
import warnings
from collections.abc import Collection, Iterator, Mapping
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

Sampler = BaseSampler
"""What proposes configurations; any sampler of Optuna's interface."""
Distributions = Mapping[str, BaseDistribution]
"""Parameter -> its distribution, the form in which a space is given to Optuna."""
PROPOSAL = "sampler:proposal"
"""User attribute in which a sampler keeps what it proposed: `origin`, and what it expected to gain."""
BUSY_TIMEOUT_S = 20.0
"""How long SQLite waits for a reader (a dashboard) to let go."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposed:
    """A running trial: what it launches, and who proposed it."""

    trial: optuna.Trial
    configuration: Configuration
    origin: str
    gain: float | None
    """The largest improvement that the sampler expected of any configuration, as a share of the
    best; None where it tells none."""


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
        facts: Mapping[str, Any],
    ) -> StudyStore:
        """A new study.

        Args:
            name: name of the study inside the storage.
            database: SQLite file to use without a URL.
            url: an Optuna storage URL.
            facts: plain data kept with the study.

        Raises:
            StudyExists: the storage has a study of that name.
            StorageFailed: it cannot be reached or written; the storage is left without the study.
        """
        where = _place(database, url)
        with _storage_errors(where):
            storage = _storage(database, url)
            try:
                study = optuna.create_study(
                    storage=storage,
                    study_name=name,
                    direction="minimize",
                )
            except optuna.exceptions.DuplicatedStudyError:
                instead = "choose another --study, or delete that one with --fresh"
                raise StudyExists(f"study {name!r} in {where}", instead) from None
            try:
                study.set_user_attr("luthier", dict(facts))
            except BaseException:
                with contextlib.suppress(Exception):  # the error before it is the one to be seen
                    optuna.delete_study(study_name=name, storage=storage)
                raise
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
            raise UnknownStudy(name, (), where)
        with _storage_errors(where):
            storage = _storage(database, url)
            try:
                return cls(optuna.load_study(storage=storage, study_name=name), where)
            except KeyError:
                known = tuple(optuna.get_all_study_names(storage))
                raise UnknownStudy(name, known, where) from None

    @classmethod
    def in_memory(cls, name: str) -> StudyStore:
        """A new study that ends with the process."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=optuna.storages.InMemoryStorage(), study_name=name, direction="minimize"
        )
        return cls(study, "memory")

    def use_sampler(self, sampler: BaseSampler) -> None:
        """Let a sampler propose from now on."""
        self.study.sampler = sampler

    def enqueue(self, configuration: Configuration, *, origin: str) -> None:
        """Make a configuration the next one that `ask` gives."""
        with _storage_errors(self._where), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study.enqueue_trial(dict(configuration), user_attrs={"origin": origin})

    def ask(self, distributions: Distributions, *, else_origin: str) -> Proposed:
        """The next configuration to launch; its trial is RUNNING until told.

        Args:
            distributions: one for every knob.
            else_origin: what to call it where neither the queue nor the sampler says.
        """
        with _storage_errors(self._where):
            trial = self.study.ask(dict(distributions))
            # The sampler writes beside the trial object, so the storage is asked for what it wrote.
            attrs = self.study.get_trials(deepcopy=False)[trial.number].user_attrs
            by_sampler = attrs.get(PROPOSAL, {}).get("origin")
            origin = str(attrs.get("origin") or by_sampler or else_origin)
            configuration = Configuration(trial.params)
            trial.set_user_attr("configuration", dict(configuration))
            if attrs.get("origin") != origin:
                trial.set_user_attr("origin", origin)
        return Proposed(trial=trial, configuration=configuration, origin=origin, gain=_gain(attrs))

    def tell(self, proposed: Proposed, result: TrialResult) -> Trial:
        """End a trial with its result."""
        with _storage_errors(self._where):
            for name, value in trial_rows.attributes(result).items():
                proposed.trial.set_user_attr(name, value)
            is_ok = result.outcome.status == "ok" and result.objective is not None
            self.study.tell(
                proposed.trial,
                result.objective if is_ok else None,
                state=TrialState.COMPLETE if is_ok else TrialState.PRUNED,
            )
        return Trial(
            number=proposed.trial.number,
            configuration=proposed.configuration,
            outcome=result.outcome,
            measurement=result.measurement,
            origin=proposed.origin,
            objective=result.objective if is_ok else None,
            launch_s=result.launch_s,
            overhead_s=result.overhead_s,
            started_at=result.started_at,
            missed=result.missed,
        )

    def give_up_running(self, reason: str) -> tuple[int, ...]:
        """Mark trials that nobody measures any more: they count for nothing. Returns their numbers."""
        with _storage_errors(self._where):
            running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            for frozen in running:
                trial = optuna.Trial(self.study, frozen._trial_id)  # noqa: SLF001 - no public way
                trial.set_user_attr("interrupted", reason)
                self.study.tell(trial, state=TrialState.FAIL)
            return tuple(frozen.number for frozen in running)

    def trials(self) -> tuple[Trial, ...]:
        """All trials that ended, by number."""
        with _storage_errors(self._where):
            return trial_rows.as_trials(self.study.get_trials(deepcopy=False))

    def note(self, text: str) -> None:
        """Keep a line for the readers of the study, once."""
        with _storage_errors(self._where):
            notes = list(self.study.user_attrs.get("notes", []))
            if text not in notes:
                self.study.set_user_attr("notes", [*notes, text])

    def notes(self) -> tuple[str, ...]:
        """The lines that were kept, in order."""
        with _storage_errors(self._where):
            return tuple(self.study.user_attrs.get("notes", []))

    def facts(self) -> dict[str, Any]:
        """The plain data that was kept with the study."""
        with _storage_errors(self._where):
            return dict(self.study.user_attrs.get("luthier", {}))

    def has_waiting(self) -> bool:
        """Whether an enqueued configuration still waits to be asked for."""
        with _storage_errors(self._where):
            return bool(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def used_s(self) -> float:
        """Seconds of the study so far, over all processes that ran it, as they were kept."""
        with _storage_errors(self._where):
            return float(self.study.user_attrs.get("used_s", 0.0))

    def keep_used_s(self, seconds: float) -> None:
        """Keep the seconds that the study has used so far."""
        with _storage_errors(self._where):
            self.study.set_user_attr("used_s", seconds)

    def gains(self, origins: Collection[str]) -> tuple[float | None, ...]:
        """`Proposed.gain` of the trials of these origins that ended, by number."""
        with _storage_errors(self._where):
            frozen = [t for t in self.study.get_trials(deepcopy=False) if trial_rows.is_ended(t)]
        frozen.sort(key=lambda trial: trial.number)
        return tuple(
            _gain(trial.user_attrs) for trial in frozen if trial.user_attrs["origin"] in origins
        )


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


def _gain(attributes: Mapping[str, Any]) -> float | None:
    found = attributes.get(PROPOSAL, {}).get("largest_expected_improvement")
    return None if found is None else float(found)


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
