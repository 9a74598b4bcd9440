"""Saves changes made by management calls, and restores them at the next start.

    start:   record -> `SavedState` (settings, first models) -> engine opens -> `StateSaver.restore`
    change:  done by the engine -> `StateSaver.keep`: compare with the record, write -> response
    other:   another gateway wrote the record -> `StateSaver.follow`: do what differs -> engine

The record holds what differs from the configuration at start: command line, settings, repository.
The later change wins: a live setting holds until a start gives a new value, and a retired model
stays out until its spec or files change. A row that cannot be restored is logged, skipped and kept
until its subject is set again.

Gateways that share a record each write what they changed, on the revision that they know. If another
one changed the same rows meanwhile, the change is undone here and refused. What a gateway cannot do
of another one's changes stays in the record, until the same is changed here. What the record loses
is not undone: the first gateway that sees it writes its rows again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar

from serving.api.clipper.service import ClipperService, RegisteredModel
from serving.app.followed_models import FollowedModels
from serving.app.saved_state import SavedState
from serving.app.state_in_force import StateInForce, as_text
from serving.engine.applications import Applications
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.errors import ChangeInWork, NotReady, ServingError, StaleRevision, UnknownModel
from serving.selection.application import Application
from serving.state import record_schema
from serving.state.records import (
    Changes,
    RecordKey,
    Records,
    Revision,
    Rows,
    changed,
    difference,
    newest,
)
from serving.values import ModelId
from serving.zoo import model_specs as card_form

log = logging.getLogger(__name__)

FOLLOW_S = 0.5
"""Seconds between looks for changes that other gateways wrote."""
_OF_MODELS = (record_schema.VERSION, record_schema.RETIRED, record_schema.MODEL)
_T = TypeVar("_T")


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
        start_specs = {spec.id: spec for spec in past.start_cards}
        self._models = FollowedModels(engine, start_specs, self._restore_version)
        self._in_force = StateInForce(engine, repository, applications, clipper, start_specs)
        self._engine = engine
        self._repository = repository
        self._applications = applications
        self._clipper = clipper
        self.is_shared = is_shared
        """Whether other gateways may change the record."""
        self._known = past.record
        """Newest revision that is known to be, or to be brought into force here."""
        self._changing = 0
        """Changes in work, which are not written yet."""
        self._undone = 0
        """Counts what may have undone, or overtaken, a part of the changes in work."""
        self._apart: dict[RecordKey, tuple[str | None, str | None]] = {}
        """Rows that could not be brought into force -> (row in force, row in the record)."""
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
        return self._known.id.number

    @contextlib.asynccontextmanager
    async def changing(self, based_on: int | None = None) -> AsyncIterator[None]:
        """Make a change in the body, on the newest revision, and keep it.

        Raises:
            StaleRevision: the newest revision is not `based_on`, or another gateway changed the
                same meanwhile; the change is not in force.
            ChangeInWork: another change is in work here, and `based_on` is given.
            NotReady: the record cannot be read, so that nothing was changed, or not be written: then
                the change is undone if others share the record, and else written with the next.
        """
        if self.is_shared:
            await self.follow()
        if based_on is not None and self._changing:
            raise ChangeInWork
        if based_on is not None and based_on != self.revision:
            raise StaleRevision(self.revision)
        self._changing += 1
        undone = self._undone
        try:
            try:
                yield
            finally:
                async with self._keeping:
                    if undone != self._undone:  # perhaps a part of it does not hold
                        await self._undo(self._known)
                        raise StaleRevision(self.revision)
                    await self._keep(undoes=self.is_shared)
        finally:
            self._changing -= 1

    async def keep(self) -> None:
        """Save the state in force; return once the record is durable.

        Raises:
            StaleRevision: another gateway changed the same rows meanwhile; its change is in force.
            NotReady: writing failed; the next change tries again.
        """
        async with self._keeping:
            await self._keep(undoes=False)

    async def _keep(self, *, undoes: bool) -> None:
        here = self._in_force.rows(self._past)
        self._apart = {key: two for key, two in self._apart.items() if here.get(key) == two[0]}
        now = self.in_force()
        changes = difference(self._known.rows, now)
        if not changes:
            return
        try:
            try:
                id_ = await self._call(self._records.write, changes, self._known.id)
                self._known = Revision(id_, now)
            except StaleRevision:
                changes = await self._keep_on_newest(now, changes)
        except NotReady as error:
            if not undoes:
                raise NotReady(f"the change is in effect, but {error}") from error
            await self._undo(self._known)
            raise NotReady(f"the change is undone, because {error}") from error
        if any(
            key.kind == record_schema.APPLICATION and text is None for key, text in changes.items()
        ):
            # If it is added again, it must not find its old policy state.
            await self._call(self._applications.flush)

    async def _keep_on_newest(self, now: Rows, changes: Changes) -> Changes:
        """Write changes on what other gateways wrote, unless they changed the same rows."""
        while True:
            found = await self._call(newest, self._records, self._known)
            theirs = difference(self._known.rows, found.rows)
            ours = {key: text for key, text in changes.items() if found.rows.get(key) != text}
            if ours.keys() & theirs.keys():
                await self._undo(found)
                raise StaleRevision(found.id.number)
            try:
                if ours:
                    id_ = await self._call(self._records.write, ours, found.id)
                    found = Revision(id_, changed(found.rows, ours))
            except StaleRevision:
                continue
            await self._adopt(found, now)
            return ours

    async def _undo(self, revision: Revision) -> None:
        """Bring into force what a revision says, and nothing else."""
        self._undone += 1
        await self._adopt(revision, self._in_force.rows(self._past))

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
            if self._changing or await self._call(self._records.revision) == self._known.id:
                return
            found = await self._call(newest, self._records, self._known)
            await self._adopt(found, self._known.rows)

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
                self._apart[key] = (
                    as_text(self._engine.catalogue.entry(key.name).as_json()),
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
            now = as_text(self._engine.catalogue.entry(key.name).as_json())
            self._apart[key] = (now, self._past.rows[key])

    # Changes of other gateways

    async def _adopt(self, record: Revision, base: Rows) -> None:
        """Bring into force what differs between `base`, which is in force, and a newer revision."""
        changes = difference(base, record.rows)
        past = SavedState(record, self._past.start_cards, self._past.start_settings)
        for key, text in self._past.left_out_rows.items():
            if record.rows.get(key) == text:
                past.left_out_rows[key] = text
        self._past = past
        self._known = record
        try:
            await self._adopt_rows(changes)
        finally:
            here = self._in_force.rows(self._past)
            for key in changes:
                self._apart.pop(key, None)
                if here.get(key) != record.rows.get(key):
                    self._apart[key] = (here.get(key), record.rows.get(key))
                    self._undone += 1  # perhaps a change in work made it so
        if changes:
            log.info("the record's changes are in force", extra={"revision": self.revision})

    async def _adopt_rows(self, changes: Changes) -> None:
        past = self._past
        kinds = {key.kind for key in changes}
        if record_schema.SETTING in kinds:
            with _going_on("settings"):
                await self._adopt_settings()
        for name in dict.fromkeys(key.name for key in changes if key.kind in _OF_MODELS):
            with _going_on(f"model {name}"):
                # Also what could not be done before: a version may have come in its place.
                keys = [key for key in {**changes, **self._apart} if key.name == name]
                await self._models.adopt(
                    past, name, [key for key in keys if key.kind in _OF_MODELS]
                )
                model_key = RecordKey(record_schema.MODEL, name)
                said = past.rows_of(record_schema.MODEL).get(model_key)
                if said is not None and name in self._engine.catalogue.entries:
                    self._restore_model(model_key, said)
        for key, row in changes.items():
            if key.kind == record_schema.APPLICATION:
                said = None if row is None else past.rows_of(key.kind).get(key)
                with _going_on(f"application {key.name}"), past.reporting(key):
                    self._applications.adopt(
                        key.name, None if said is None else Application.from_json(said)
                    )
        if kinds & {record_schema.REGISTERED, record_schema.CURRENT}:
            with _going_on("registered models"):
                self._restore_clipper()

    async def _adopt_settings(self) -> None:
        async with self._engine.editing:
            if self._past.settings != self._engine.settings:
                await self._engine.apply(self._past.settings, keep_learned=True)

    # State in force

    def in_force(self) -> Rows:
        """Return the rows of the state in force, and those that could not be brought into force."""
        here = self._in_force.rows(self._past)
        apart = {key: two for key, two in self._apart.items() if here.get(key) == two[0]}
        return changed(here, {key: row for key, (_, row) in apart.items()})


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Log any error raised in the body, which brings a change of the record into force."""
    text = "a change of the record fails here"
    try:
        yield
    except ServingError as error:
        log.error(text, extra={"what": what, "error": str(error)})
    except Exception:  # a fault of one change must not keep the others out
        log.exception(text, extra={"what": what})
