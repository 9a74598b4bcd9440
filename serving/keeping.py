"""What management changes is kept, and put back at the next start.

    start:   record -> `Past` (settings, models to start with) -> engine opens -> `Keeper.restore`
    change:  done by the engine and its hubs -> `Keeper.keep`: what is in force now -> record -> answer

The record holds what differs from what the start itself says: the command line with its settings, and
the folder of models. So `keep` needs no account of a change: it compares what is in force with what
was written last. The newest word counts: a setting that was changed live holds until the start gives
another value than it gave then; a model of the command line that was taken out of service stays out
until the command line, or its files in the folder, say something else.

What cannot be put back is told in one line and left out; it stays in the record, for the next start.

All methods belong to the event loop's thread; the record is written by a thread beside it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.applications import Applications
from serving.clipper import ClipperHub
from serving.engine import Engine
from serving.errors import ServingError, UnknownModel
from serving.protocol.clipper_catalogue import Model
from serving.repository import Repository, Stamp
from serving.selection.application import Application
from serving.settings import ServingSettings
from serving.state.records import Key, Records, Rows
from serving.values import ModelCard, ModelId
from serving.zoo import cards as card_form

log = logging.getLogger(__name__)

# Kinds of rows; a row's text is JSON.
_SETTING = (
    "setting"  # of a dotted name: value, and instead_of: what the start gave, where it gave any
)
_VERSION = "version"  # of a model that is served: its card, or that it came from the folder
_RETIRED = (
    "retired"  # a version of the start that is not served: its card, or its files in the folder
)
_MODEL = "model"  # `catalogue.Entry.as_json`
_APPLICATION = "application"  # `Application.as_json`
_REGISTERED = "registered"  # Clipper's record of a model's version
_CURRENT = "registered current"  # Clipper's current version of a model


class Past:
    """What a record says about a start: the settings, and the models to begin with."""

    def __init__(self, rows: Rows, cards: Sequence[ModelCard], settings: ServingSettings) -> None:
        """Compare the record with the start.

        Args:
            rows: the record.
            cards: the models of the command line.
            settings: as file, environment and command line give them.
        """
        self.rows = rows
        self.start_cards = tuple(cards)
        self.start_settings = settings
        self.settings = _settings(rows, settings)
        """In force from the start on."""
        retired = dict(_of_kind(rows, _RETIRED))
        self.cards = tuple(
            card for card in cards if retired.get(_key(_RETIRED, card.id)) != _card_text(card)
        )
        """Models to start with."""
        self.left_out: dict[ModelId, Stamp] = {}
        """Versions of the folder that are not to be loaded while their files are these."""
        for key, text in retired.items():
            files = json.loads(text).get("files")
            if files is not None:
                self.left_out[ModelId(key.name, key.version)] = tuple(map(tuple, files))
        for card in cards:
            if card not in self.cards:
                log.warning(
                    "was taken out of service by hand and stays out; deploy it through the admin port",
                    extra={"model": card.name, "version": card.version},
                )


class Keeper:
    """Keeps one gateway's record true."""

    def __init__(
        self,
        records: Records,
        past: Past,
        *,
        engine: Engine,
        repository: Repository | None,
        applications: Applications,
        clipper: ClipperHub,
    ) -> None:
        """Nothing is put back yet.

        Args:
            records: where the record is; closed with this.
            past: what it held at the start.
            engine: models, versions and settings.
            repository: the watched folder, where there is one.
            applications: with their links and policies.
            clipper: registered versions.
        """
        self._records = records
        self._past = past
        self._start_cards = {card.id: card for card in past.start_cards}
        self._engine = engine
        self._repository = repository
        self._applications = applications
        self._clipper = clipper
        self._written = past.rows
        self._left_out: Rows = {}
        """What could not be put back; it stays in the record."""
        self._shortened: dict[Key, tuple[str, str]] = {}
        """Models that lack a version which could not be put back: what is in force, what the record says."""
        self._keeping = asyncio.Lock()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "record")

    async def restore(self) -> None:
        """Put back what the record holds, after engine and repository were opened with `Past`.

        Raises:
            NotReady: the record cannot be written.
        """
        rows = self._past.rows
        for key, text in _of_kind(rows, _VERSION):
            with self._reporting(key, text):
                await self._restore_version(ModelId(key.name, key.version), json.loads(text))
        for key, text in _of_kind(rows, _MODEL):
            with self._reporting(key, text):
                self._restore_model(key, text)
        if self._repository is not None:
            await self._repository.settle()
        for key, text in _of_kind(rows, _APPLICATION):
            with self._reporting(key, text):
                self._applications.add(Application.from_json(json.loads(text)))
        self._clipper.restore(
            [_registered(json.loads(text)) for _, text in _of_kind(rows, _REGISTERED)],
            {key.name: json.loads(text) for key, text in _of_kind(rows, _CURRENT)},
        )
        await self.keep()

    async def keep(self) -> None:
        """Return when the record holds what is in force now, durably.

        Raises:
            NotReady: it cannot be written; what was changed is in force, and written with the next change.
        """
        async with self._keeping:
            now = self._in_force()
            changes: dict[Key, str | None] = {
                key: text for key, text in now.items() if self._written.get(key) != text
            }
            changes |= dict.fromkeys(self._written.keys() - now.keys())
            if changes:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._records.write, changes)
                self._written = now
                # An application that is gone must not find its policy's state when it comes again.
                await loop.run_in_executor(self._thread, self._applications.flush)

    def close(self) -> None:
        """Let go of the record, after what is being written."""
        self._thread.shutdown()
        self._records.close()

    # What was

    @contextlib.contextmanager
    def _reporting(self, key: Key, text: str) -> Iterator[None]:
        """What cannot be put back keeps nothing else down."""
        try:
            yield
        except ServingError as error:
            self._left_out[key] = text
            log.error(
                "cannot be restored and is left out",
                extra={"what": " ".join(filter(None, key)), "error": str(error)},
            )

    async def _restore_version(self, id_: ModelId, data: Mapping[str, Any]) -> None:
        if id_ in self._engine.models():  # the start gave it
            return
        if "card" in data:
            await self._engine.deploy(card_form.from_json(data["card"]), current=False)
        elif self._repository is not None:
            await self._repository.restore(id_)

    def _restore_model(self, key: Key, text: str) -> None:
        lacks = any((one.kind, one.name) == (_VERSION, key.name) for one in self._left_out)
        try:
            self._engine.restore(key.name, json.loads(text))
        except UnknownModel:
            if lacks:  # that is told already
                self._left_out[key] = text
            return
        if lacks:
            self._shortened[key] = (_text(self._engine.entry(key.name).as_json()), text)

    # What is

    def _in_force(self) -> Rows:
        """Everything that the start itself would not give."""
        rows = {**self._changed_settings(), **self._versions(), **self._retired()}
        for name in dict.fromkeys(id_.name for id_ in self._engine.models()):
            key = Key(_MODEL, name)
            text = _text(self._engine.entry(name).as_json())
            shortened, whole = self._shortened.get(key, ("", ""))
            rows[key] = whole if text == shortened else text
        for application in self._applications.all():
            rows[Key(_APPLICATION, application.name)] = _text(application.as_json())
        for model in self._clipper.models():
            rows[Key(_REGISTERED, model.name, model.version)] = _text(model._asdict())
        for name, version in self._clipper.current_versions().items():
            rows[Key(_CURRENT, name)] = _text(version)
        return {**self._still_left_out(), **rows}

    def _changed_settings(self) -> Rows:
        start = self._past.start_settings.flat()
        rows: Rows = {}
        for name, value in self._engine.settings.flat().items():
            if name not in start:
                rows[Key(_SETTING, name)] = _text({"value": value})
            elif start[name] != value:
                rows[Key(_SETTING, name)] = _text({"value": value, "instead_of": start[name]})
        return rows

    def _versions(self) -> Rows:
        rows: Rows = {}
        for served in self._engine.served():
            if self._repository is not None and self._repository.has_loaded(served.id):
                rows[_key(_VERSION, served.id)] = _text({"folder": True})
            elif self._start_cards.get(served.id) != served.card:
                rows[_key(_VERSION, served.id)] = _card_text(served.card)
        return rows

    def _retired(self) -> Rows:
        served = self._engine.models()
        rows = {
            _key(_RETIRED, id_): _card_text(card)
            for id_, card in self._start_cards.items()
            if id_ not in served
        }
        if self._repository is not None:
            for id_, stamp in self._repository.left_out().items():
                rows[_key(_RETIRED, id_)] = _text({"files": stamp})
        return rows

    def _still_left_out(self) -> Rows:
        """What could not be put back, without the versions that somebody has taken off the list since."""
        failed = {id_ for id_, (state, _) in self._engine.states().items() if state == "failed"}
        names = {id_.name for id_ in failed}
        return {
            key: text
            for key, text in self._left_out.items()
            if (key.kind != _VERSION or ModelId(key.name, key.version) in failed)
            and (key.kind != _MODEL or key.name in names)
        }


def _settings(rows: Rows, start: ServingSettings) -> ServingSettings:
    """The start's settings with what was changed live, as far as the start says what it said then."""
    given = start.flat()
    settings = start
    for key, text in _of_kind(rows, _SETTING):
        name, data = key.name, json.loads(text)
        was = {"instead_of": given[name]} if name in given else {}
        if {key: value for key, value in data.items() if key != "value"} != was:
            log.warning("the start's setting replaces one changed live", extra={"setting": name})
            continue
        try:
            settings = settings.changed({name: data["value"]}, source="server.state_dir")
        except ServingError as error:
            log.error("cannot be restored and is left out", extra={"error": str(error)})
    return settings


def _of_kind(rows: Rows, kind: str) -> list[tuple[Key, str]]:
    return [(key, text) for key, text in rows.items() if key.kind == kind]


def _key(kind: str, id_: ModelId) -> Key:
    return Key(kind, id_.name, id_.version)


def _card_text(card: ModelCard) -> str:
    return _text({"card": card_form.as_json(card)})


def _text(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _registered(data: Mapping[str, Any]) -> Model:
    return Model(**{**data, "labels": tuple(data["labels"])})
