"""Saves changes made by management calls, and restores them at the next start.

    start:   record -> `SavedState` (settings, first models) -> engine opens -> `StateSaver.restore`
    change:  done by the engine -> `StateSaver.keep`: compare with the record, write -> response
    other:   another gateway wrote the record -> `StateSaver.follow`: do what differs -> engine

The record holds what differs from the configuration at start: command line, settings, repository.
The later change wins: a live setting holds until a start gives a new value, and a retired model
stays out until its spec or files change. A row that cannot be restored is logged, skipped and kept
until its subject is set again.

Gateways that share a record each write what they changed, on the revision that they know. If another
one changed the same rows meanwhile, the change is undone here and refused.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from serving.api.clipper.service import ClipperService, RegisteredModel
from serving.engine.applications import Applications
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.engine.version_folders import Stamp
from serving.errors import NotReady, ServingError, StaleRevision, UnknownModel
from serving.model_spec import ModelSpec
from serving.selection.application import Application
from serving.settings import ServingSettings
from serving.state import record_schema
from serving.state.records import RecordKey, Records, Revision, Rows
from serving.values import ModelId
from serving.zoo import model_specs as card_form

log = logging.getLogger(__name__)

FOLLOW_S = 0.5
"""Seconds between looks for changes that other gateways wrote."""
_OF_MODELS = (record_schema.VERSION, record_schema.RETIRED, record_schema.MODEL)
_Changes = dict[RecordKey, str | None]
_T = TypeVar("_T")


class SavedState:
    """Settings and models with which a server starts, from its saved state."""

    def __init__(
        self, record: Revision, specs: Sequence[ModelSpec], settings: ServingSettings
    ) -> None:
        """Compare the record with the configuration at start.

        `specs` come from the command line, and `settings` from file, environment and command line.
        """
        self.revision, self.rows = record
        self.left_out_rows: Rows = {}
        """Rows that could not be restored, as logged."""
        self._said: dict[RecordKey, Any] = {}
        for key, text in self.rows.items():
            with self.reporting(key):
                self._said[key] = record_schema.read(key, text)
        self.start_cards = tuple(specs)
        self.start_settings = settings
        self.settings = self._settings(settings)
        retired = self.rows_of(record_schema.RETIRED)
        self.specs = tuple(
            spec
            for spec in specs
            if retired.get(_key(record_schema.RETIRED, spec.id)) != _spec_json(spec)
        )
        self.left_out: dict[ModelId, Stamp] = {
            ModelId(key.name, key.version): tuple(map(tuple, said["files"]))
            for key, said in retired.items()
            if "files" in said
        }
        """Repository versions not to load while their files are unchanged."""
        for spec in specs:
            if spec not in self.specs:
                log.warning(
                    "was taken out of service manually and stays so; deploy it through "
                    "the admin port",
                    extra={"model": spec.name, "version": spec.version},
                )

    def rows_of(self, kind: str) -> dict[RecordKey, Any]:
        """Return the readable rows of a kind in order, with parsed values."""
        return {key: said for key, said in self._said.items() if key.kind == kind}

    @contextlib.contextmanager
    def reporting(self, key: RecordKey) -> Iterator[None]:
        """Log an error raised in the body, which restores a row, and skip the row."""
        try:
            yield
        except ServingError as error:
            self.left_out_rows[key] = self.rows[key]
            log.error(
                "cannot be restored and is left out",
                extra={"what": " ".join(str(part) for part in key if part), "error": str(error)},
            )

    def _settings(self, start: ServingSettings) -> ServingSettings:
        """Return the settings at start, with saved changes where the start's value is the same."""
        given = start.flat()
        settings = start
        for key, said in self.rows_of(record_schema.SETTING).items():
            name = key.name
            was = {"instead_of": given[name]} if name in given else {}
            if {key: value for key, value in said.items() if key != "value"} != was:
                log.warning(
                    "the setting given at the start replaces one changed at run time",
                    extra={"setting": name},
                )
                continue
            with self.reporting(key):
                settings = settings.with_changes({name: said["value"]}, source="server.state_dir")
        return settings


class StateSaver:
    """Keeps a gateway's record up to date."""

    def __init__(
        self,
        records: Records,
        past: SavedState,
        engine: Engine,
        repository: Repository | None,
        applications: Applications,
        clipper: ClipperService,
        *,
        is_shared: bool = False,
    ) -> None:
        """Store the parts; `close` also closes `records`, which may be other gateways' as well."""
        self._records = records
        self._past = past
        self._start_specs = {spec.id: spec for spec in past.start_cards}
        self._engine = engine
        self._repository = repository
        self._applications = applications
        self._clipper = clipper
        self.is_shared = is_shared
        """Whether other gateways may change the record."""
        self._written = past.rows
        self._revision = past.revision
        self._changing = 0
        """Changes in work, which are not written yet."""
        self._shortened: dict[RecordKey, tuple[str, str]] = {}
        """Rows of models with unrestored versions -> (string in force, saved string)."""
        self._keeping = asyncio.Lock()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "record")

    async def restore(self) -> None:
        """Restore the record; engine and repository must have been opened with the `SavedState`.

        Raises:
            NotReady: the record cannot be written.
        """
        past = self._past
        for key, said in past.rows_of(record_schema.VERSION).items():
            with past.reporting(key):
                await self._restore_version(ModelId(key.name, key.version), said)
        self._list_unreadable()
        for key, said in past.rows_of(record_schema.MODEL).items():
            self._restore_model(key, said)
        if self._repository is not None:
            await self._repository.retire_unreferenced()
        for key, said in past.rows_of(record_schema.APPLICATION).items():
            with past.reporting(key):
                self._applications.add(Application.from_json(said))
        self._restore_clipper()
        with contextlib.suppress(StaleRevision):  # another gateway starts, too, and said the same
            await self.keep()

    def _restore_clipper(self) -> None:
        self._clipper.restore(
            [
                RegisteredModel(**{**said, "labels": tuple(said["labels"])})
                for said in self._past.rows_of(record_schema.REGISTERED).values()
            ],
            {key.name: said for key, said in self._past.rows_of(record_schema.CURRENT).items()},
        )

    @property
    def revision(self) -> int:
        """Number of the record's revision that is in force here."""
        return self._revision

    @contextlib.asynccontextmanager
    async def changing(self, based_on: int | None = None) -> AsyncIterator[None]:
        """Make a change in the body, on the newest revision, and keep it.

        Raises:
            StaleRevision: the newest revision is not `based_on`, or another gateway changed the
                same meanwhile; the change is not in force.
            NotReady: the record cannot be read, so that nothing was changed, or not be written.
        """
        if self.is_shared:
            await self.follow()
        if based_on is not None and based_on != self._revision:
            raise StaleRevision(self._revision)
        self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1
            await self.keep()

    async def keep(self) -> None:
        """Save the state in force; return once the record is durable.

        Raises:
            StaleRevision: another gateway changed the same rows meanwhile; its change is in force.
            NotReady: writing failed; the next change tries again.
        """
        async with self._keeping:
            now = self.in_force()
            changes = _difference(self._written, now)
            if not changes:
                return
            try:
                self._revision = await self._call(self._records.write, changes, self._revision)
                self._written = now
            except StaleRevision:
                changes = await self._keep_on_newest(now, changes)
            if any(
                key.kind == record_schema.APPLICATION and text is None
                for key, text in changes.items()
            ):
                # If it is added again, it must not find its old policy state.
                await self._call(self._applications.flush)

    async def _keep_on_newest(self, now: Rows, changes: _Changes) -> _Changes:
        """Write changes on what other gateways wrote, unless they changed the same rows."""
        while True:
            newest = await self._call(self._records.snapshot)
            theirs = _difference(self._written, newest.rows)
            ours = {key: text for key, text in changes.items() if newest.rows.get(key) != text}
            if ours.keys() & theirs.keys():
                await self._adopt(newest, now)
                raise StaleRevision(newest.number)
            try:
                if ours:
                    number = await self._call(self._records.write, ours, newest.number)
                    newest = Revision(number, _changed(newest.rows, ours))
            except StaleRevision:
                continue
            await self._adopt(newest, now)
            return ours

    async def watch(self) -> None:
        """Follow the record until cancelled; failures are logged once, and tried again."""
        was_told = False
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self.follow()
                was_told = False
            except NotReady as error:
                if not was_told:
                    log.error("the shared record cannot be followed", extra={"error": str(error)})
                was_told = True
            except Exception:  # a fault of one change must not end this
                log.exception("the shared record cannot be followed")

    async def follow(self) -> None:
        """Do what other gateways changed, unless a change of this one is in work.

        Raises:
            NotReady: the record cannot be read.
        """
        async with self._keeping:
            if self._changing or await self._call(self._records.revision) == self._revision:
                return
            await self._adopt(await self._call(self._records.snapshot), self._written)

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """Finish writing and close the record."""
        self._thread.shutdown()
        self._records.close()

    # Restoring

    async def _restore_version(self, id_: ModelId, data: Mapping[str, Any]) -> None:
        if id_ in self._engine.models():  # given at the start
            return
        if "card" in data:
            await self._engine.deploy(card_form.from_json(data["card"]), current=False)
        elif self._repository is not None:
            await self._repository.restore(id_)

    def _list_unreadable(self) -> None:
        """List versions with unreadable rows as failed; keep unreadable rows of served models."""
        served = self._engine.models()
        listed = self._engine.states()
        for key, text in self._past.left_out_rows.items():
            id_ = ModelId(key.name, key.version)
            if key.kind == record_schema.VERSION and id_ not in listed:
                why = "its row in the state database cannot be read; see the log"
                self._engine.failed[id_] = why
            if key.kind == record_schema.MODEL and any(one.name == key.name for one in served):
                self._shortened[key] = (
                    _text(self._engine.catalogue.entry(key.name).as_json()),
                    text,
                )

    def _restore_model(self, key: RecordKey, said: Mapping[str, Any]) -> None:
        left_out = self._past.left_out_rows
        lacks = any((one.kind, one.name) == (record_schema.VERSION, key.name) for one in left_out)
        try:
            self._engine.catalogue.restore(key.name, said)
        except UnknownModel:
            if lacks:  # logged already
                left_out[key] = self._past.rows[key]
            else:
                log.warning(
                    "is removed, because the start names no such model",
                    extra={"what": f"model {key.name}"},
                )
            return
        if lacks:
            now = _text(self._engine.catalogue.entry(key.name).as_json())
            self._shortened[key] = (now, self._past.rows[key])

    # Changes of other gateways

    async def _adopt(self, newest: Revision, base: Rows) -> None:
        """Bring into force what differs between `base`, which is in force, and the newest revision."""
        changes = _difference(base, newest.rows)
        past = SavedState(newest, self._past.start_cards, self._past.start_settings)
        for key, text in self._past.left_out_rows.items():
            if newest.rows.get(key) == text:
                past.left_out_rows[key] = text
        self._past = past
        self._written, self._revision = newest.rows, newest.number
        kinds = {key.kind for key in changes}
        if record_schema.SETTING in kinds:
            await self._adopt_settings()
        for name in dict.fromkeys(key.name for key in changes if key.kind in _OF_MODELS):
            await self._adopt_model(name, [key for key in changes if key.name == name])
        for key, row in changes.items():
            if key.kind == record_schema.APPLICATION:
                said = None if row is None else past.rows_of(key.kind).get(key)
                with past.reporting(key):
                    self._applications.adopt(
                        key.name, None if said is None else Application.from_json(said)
                    )
        if kinds & {record_schema.REGISTERED, record_schema.CURRENT}:
            self._restore_clipper()
        if changes:
            log.info("another gateway's changes are in force", extra={"revision": newest.number})

    async def _adopt_settings(self) -> None:
        async with self._engine.editing:
            if self._past.settings != self._engine.settings:
                try:
                    await self._engine.apply(self._past.settings, keep_learned=True)
                except ServingError as error:
                    text = "another gateway's change of settings fails here"
                    log.error(text, extra={"error": str(error)})

    async def _adopt_model(self, name: str, changed: Sequence[RecordKey]) -> None:
        """Load and withdraw versions of a model, then set what gets traffic."""
        past = self._past
        versions = past.rows_of(record_schema.VERSION)
        retired = past.rows_of(record_schema.RETIRED)
        model_key = RecordKey(record_schema.MODEL, name)
        said = past.rows_of(record_schema.MODEL).get(model_key)
        gone = []
        for id_ in dict.fromkeys(ModelId(name, key.version) for key in changed if key.version):
            wanted = versions.get(_key(record_schema.VERSION, id_))
            if wanted is None and _key(record_schema.RETIRED, id_) not in retired:
                start = self._start_specs.get(id_)
                wanted = None if start is None else _spec_json(start)
            if wanted is None:
                gone.append(id_)
                continue
            key = _key(record_schema.VERSION, id_)
            try:
                await self._adopt_version(id_, wanted)
            except ServingError as error:
                text = "a version that another gateway serves cannot be loaded here"
                log.error(text, extra={"model": name, "version": id_.version, "error": str(error)})
                self._engine.failed.setdefault(id_, str(error))
                if key in past.rows:
                    past.left_out_rows[key] = past.rows[key]
        for id_ in gone:
            await self._adopt_withdrawal(id_, said)
        if said is not None and name in self._engine.catalogue.entries:
            self._restore_model(model_key, said)

    async def _adopt_version(self, id_: ModelId, wanted: Mapping[str, Any]) -> None:
        if "card" not in wanted:
            await self._restore_version(id_, wanted)
            return
        spec = card_form.from_json(wanted["card"])
        served = {one.id: one.spec for one in self._engine.deployments()}
        if id_ not in served:
            await self._engine.deploy(spec, current=False)
        elif served[id_] != spec:
            await self._engine.redeploy(spec)

    async def _adopt_withdrawal(self, id_: ModelId, said: Mapping[str, Any] | None) -> None:
        entry = self._engine.catalogue.entries.get(id_.name)
        if entry is None or id_.version not in entry.versions:
            self._engine.failed.pop(id_, None)
            return
        others = [version for version in entry.versions if version != id_.version]
        if said is not None and not others:
            return  # what comes in its place is not loaded here yet
        if others and entry.current == id_.version:
            current = None if said is None else said["current"]
            to = current if current in others else others[-1]
            self._engine.catalogue.set_current(id_.name, to)
        self._engine.catalogue.set_shares(id_.name, {})
        await self._engine.withdraw(id_.name, id_.version)

    # State in force

    def in_force(self) -> Rows:
        """Return the rows of the state in force."""
        now = {**self._changed_settings(), **self._versions(), **self._retired()}
        for name in dict.fromkeys(id_.name for id_ in self._engine.models()):
            now[RecordKey(record_schema.MODEL, name)] = self._engine.catalogue.entry(name).as_json()
        for application in self._applications.all():
            now[RecordKey(record_schema.APPLICATION, application.name)] = dataclasses.asdict(
                application
            )
        for model in self._clipper.models():
            key = RecordKey(record_schema.REGISTERED, model.name, model.version)
            now[key] = model._asdict()
        for name, version in self._clipper.current_versions().items():
            now[RecordKey(record_schema.CURRENT, name)] = version
        rows = {key: _text(data) for key, data in now.items()}
        for key, (shortened, whole) in self._shortened.items():
            if rows.get(key) == shortened:
                rows[key] = whole
        return {**self._still_left_out(), **rows}

    def _changed_settings(self) -> dict[RecordKey, Any]:
        start = self._past.start_settings.flat()
        return {
            RecordKey(record_schema.SETTING, name): {"value": value}
            | ({"instead_of": start[name]} if name in start else {})
            for name, value in self._engine.settings.flat().items()
            if name not in start or start[name] != value
        }

    def _versions(self) -> dict[RecordKey, Any]:
        rows: dict[RecordKey, Any] = {}
        for served in self._engine.deployments():
            if self._repository is not None and self._repository.has_loaded(served.id):
                rows[_key(record_schema.VERSION, served.id)] = {"folder": True}
            elif self._start_specs.get(served.id) != served.spec:
                rows[_key(record_schema.VERSION, served.id)] = _spec_json(served.spec)
        return rows

    def _retired(self) -> dict[RecordKey, Any]:
        served = self._engine.models()
        rows = {
            _key(record_schema.RETIRED, id_): _spec_json(spec)
            for id_, spec in self._start_specs.items()
            if id_ not in served
        }
        if self._repository is not None:
            for id_, stamp in self._repository.left_out().items():
                rows[_key(record_schema.RETIRED, id_)] = {"files": stamp}
        return rows

    def _still_left_out(self) -> Rows:
        """Return unrestored rows, without versions since removed from the list."""
        failed = {id_ for id_, (state, _) in self._engine.states().items() if state == "failed"}
        names = {id_.name for id_ in failed}
        return {
            key: text
            for key, text in self._past.left_out_rows.items()
            if (key.kind != record_schema.VERSION or ModelId(key.name, key.version) in failed)
            and (
                key.kind != record_schema.MODEL
                or key.name in names
                or key not in self._past.rows_of(key.kind)
            )
        }


def _difference(before: Rows, after: Rows) -> _Changes:
    """Return the rows to write, or with None to delete, to come from one record to another."""
    changes: _Changes = {key: text for key, text in after.items() if before.get(key) != text}
    return changes | dict.fromkeys(key for key in before if key not in after)


def _changed(rows: Rows, changes: _Changes) -> Rows:
    kept = {key: text for key, text in rows.items() if changes.get(key, "") is not None}
    return kept | {key: text for key, text in changes.items() if text is not None}


def _key(kind: str, id_: ModelId) -> RecordKey:
    return RecordKey(kind, id_.name, id_.version)


def _spec_json(spec: ModelSpec) -> dict[str, Any]:
    return {"card": card_form.as_json(spec)}


def _text(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))
