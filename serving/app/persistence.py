"""Saves changes made by management calls, and restores them at the next start.

    start:   record -> `SavedState` (settings, first models) -> engine opens -> `StateSaver.restore`
    change:  done by the engine -> `StateSaver.keep`: compare with the record, write -> response

The record holds what differs from the configuration at start: command line, settings, repository.
The later change wins: a live setting holds until a start gives a new value, and a retired model
stays out until its spec or files change. A row that cannot be restored is logged, skipped and kept
until its subject is set again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.api.clipper.service import ClipperService, RegisteredModel
from serving.engine.applications import Applications
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.engine.version_folders import Stamp
from serving.errors import ServingError, UnknownModel
from serving.model_spec import ModelSpec
from serving.selection.application import Application
from serving.settings import ServingSettings
from serving.state import record_schema
from serving.state.records import RecordKey, Rows, SqliteRecords
from serving.values import ModelId
from serving.zoo import model_specs as card_form

log = logging.getLogger(__name__)


class SavedState:
    """Settings and models with which a server starts, from its saved state."""

    def __init__(self, rows: Rows, specs: Sequence[ModelSpec], settings: ServingSettings) -> None:
        """Compare the record with the configuration at start.

        `specs` come from the command line, and `settings` from file, environment and command line.
        """
        self.rows = rows
        self.left_out_rows: Rows = {}
        """Rows that could not be restored, as logged."""
        self._said: dict[RecordKey, Any] = {}
        for key, text in rows.items():
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
        records: SqliteRecords,
        past: SavedState,
        engine: Engine,
        repository: Repository | None,
        applications: Applications,
        clipper: ClipperService,
    ) -> None:
        """Store the parts; `close` also closes `records`."""
        self._records = records
        self._past = past
        self._start_specs = {spec.id: spec for spec in past.start_cards}
        self._engine = engine
        self._repository = repository
        self._applications = applications
        self._clipper = clipper
        self._written = past.rows
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
        self._clipper.restore(
            [
                RegisteredModel(**{**said, "labels": tuple(said["labels"])})
                for said in past.rows_of(record_schema.REGISTERED).values()
            ],
            {key.name: said for key, said in past.rows_of(record_schema.CURRENT).items()},
        )
        await self.keep()

    async def keep(self) -> None:
        """Save the state in force; return once the record is durable.

        Raises:
            NotReady: writing failed; the next change tries again.
        """
        async with self._keeping:
            now = self._in_force()
            changes: dict[RecordKey, str | None] = {
                key: text for key, text in now.items() if self._written.get(key) != text
            }
            changes |= dict.fromkeys(self._written.keys() - now.keys())
            if changes:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._records.write, changes)
                self._written = now
            if any(
                key.kind == record_schema.APPLICATION and text is None
                for key, text in changes.items()
            ):
                # If it is added again, it must not find its old policy state.
                await loop.run_in_executor(self._thread, self._applications.flush)

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

    # State in force

    def _in_force(self) -> Rows:
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


def _key(kind: str, id_: ModelId) -> RecordKey:
    return RecordKey(kind, id_.name, id_.version)


def _spec_json(spec: ModelSpec) -> dict[str, Any]:
    return {"card": card_form.as_json(spec)}


def _text(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))
