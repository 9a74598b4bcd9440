"""What management changes is kept, and put back at the next start.

    start:   record -> `Past` (settings, models to start with) -> engine opens -> `Keeper.restore`
    change:  done by the engine and its hubs -> `Keeper.keep`: what is in force now -> record -> answer

The record holds what differs from what the start itself says: the command line with its settings, and
the folder of models. So `keep` needs no account of a change: it compares what is in force with what
was written last. The newest word counts: a setting that was changed live holds until the start gives
another value than it gave then; a model of the command line that was taken out of service stays out
until the command line, or its files in the folder, say something else.

What cannot be put back, be it that a model is gone or that somebody has edited the row to nonsense, is told
in one line and left out; it stays in the record, for the next start, until what it speaks of is set anew.

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
from serving.state import forms
from serving.state.records import Key, Records, Rows
from serving.values import ModelCard, ModelId
from serving.zoo import cards as card_form

log = logging.getLogger(__name__)


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
        self.left_out_rows: Rows = {}
        """What cannot be put back, each told in one line."""
        self._said: dict[Key, Any] = {}
        for key, text in rows.items():
            with self.reporting(key):
                self._said[key] = forms.read(key, text)
        self.start_cards = tuple(cards)
        self.start_settings = settings
        self.settings = self._settings(settings)
        """In force from the start on."""
        retired = self.said(forms.RETIRED)
        self.cards = tuple(
            card for card in cards if retired.get(_key(forms.RETIRED, card.id)) != _card(card)
        )
        """Models to start with."""
        self.left_out: dict[ModelId, Stamp] = {
            ModelId(key.name, key.version): tuple(map(tuple, said["files"]))
            for key, said in retired.items()
            if "files" in said
        }
        """Versions of the folder that are not to be loaded while their files are these."""
        for card in cards:
            if card not in self.cards:
                log.warning(
                    "was taken out of service by hand and stays out; deploy it through the admin port",
                    extra={"model": card.name, "version": card.version},
                )

    def said(self, kind: str) -> dict[Key, Any]:
        """What the rows of a kind say, in the order in which they came; those that cannot be read are left out."""
        return {key: said for key, said in self._said.items() if key.kind == kind}

    @contextlib.contextmanager
    def reporting(self, key: Key) -> Iterator[None]:
        """What cannot be put back keeps nothing else down."""
        try:
            yield
        except ServingError as error:
            self.left_out_rows[key] = self.rows[key]
            log.error(
                "cannot be restored and is left out",
                extra={"what": " ".join(str(part) for part in key if part), "error": str(error)},
            )

    def _settings(self, start: ServingSettings) -> ServingSettings:
        """The start's settings with what was changed live, as far as the start says what it said then."""
        given = start.flat()
        settings = start
        for key, said in self.said(forms.SETTING).items():
            name = key.name
            was = {"instead_of": given[name]} if name in given else {}
            if {key: value for key, value in said.items() if key != "value"} != was:
                log.warning(
                    "the start's setting replaces one changed live", extra={"setting": name}
                )
                continue
            with self.reporting(key):
                settings = settings.changed({name: said["value"]}, source="server.state_dir")
        return settings


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
        self._shortened: dict[Key, tuple[str, str]] = {}
        """Models that lack a version which could not be put back: what is in force, what the record says."""
        self._keeping = asyncio.Lock()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "record")

    async def restore(self) -> None:
        """Put back what the record holds, after engine and repository were opened with `Past`.

        Raises:
            NotReady: the record cannot be written.
        """
        past = self._past
        for key, said in past.said(forms.VERSION).items():
            with past.reporting(key):
                await self._restore_version(ModelId(key.name, key.version), said)
        self._list_unreadable()
        for key, said in past.said(forms.MODEL).items():
            self._restore_model(key, said)
        if self._repository is not None:
            await self._repository.settle()
        for key, said in past.said(forms.APPLICATION).items():
            with past.reporting(key):
                self._applications.add(Application.from_json(said))
        self._clipper.restore(
            [
                Model(**{**said, "labels": tuple(said["labels"])})
                for said in past.said(forms.REGISTERED).values()
            ],
            {key.name: said for key, said in past.said(forms.CURRENT).items()},
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
            if any(key.kind == forms.APPLICATION and text is None for key, text in changes.items()):
                # It must not find its policy's state when it comes again.
                await loop.run_in_executor(self._thread, self._applications.flush)

    def close(self) -> None:
        """Let go of the record, after what is being written."""
        self._thread.shutdown()
        self._records.close()

    # What was

    async def _restore_version(self, id_: ModelId, data: Mapping[str, Any]) -> None:
        if id_ in self._engine.models():  # the start gave it
            return
        if "card" in data:
            await self._engine.deploy(card_form.from_json(data["card"]), current=False)
        elif self._repository is not None:
            await self._repository.restore(id_)

    def _list_unreadable(self) -> None:
        """Versions of which the row cannot be read are listed as failed; a model's row stays while it may."""
        served = self._engine.models()
        listed = self._engine.states()
        for key, text in self._past.left_out_rows.items():
            id_ = ModelId(key.name, key.version)
            if key.kind == forms.VERSION and id_ not in listed:
                self._engine.note_failure(id_, "its row in the record cannot be read; see the log")
            if key.kind == forms.MODEL and any(one.name == key.name for one in served):
                self._shortened[key] = (_text(self._engine.entry(key.name).as_json()), text)

    def _restore_model(self, key: Key, said: Mapping[str, Any]) -> None:
        left_out = self._past.left_out_rows
        lacks = any((one.kind, one.name) == (forms.VERSION, key.name) for one in left_out)
        try:
            self._engine.restore(key.name, said)
        except UnknownModel:
            if lacks:  # that is told already
                left_out[key] = self._past.rows[key]
            else:
                log.warning(
                    "is forgotten, for the start names no such model",
                    extra={"what": f"model {key.name}"},
                )
            return
        if lacks:
            now = _text(self._engine.entry(key.name).as_json())
            self._shortened[key] = (now, self._past.rows[key])

    # What is

    def _in_force(self) -> Rows:
        """Everything that the start itself would not give."""
        rows = {**self._changed_settings(), **self._versions(), **self._retired()}
        for name in dict.fromkeys(id_.name for id_ in self._engine.models()):
            key = Key(forms.MODEL, name)
            text = _text(self._engine.entry(name).as_json())
            shortened, whole = self._shortened.get(key, ("", ""))
            rows[key] = whole if text == shortened else text
        for application in self._applications.all():
            rows[Key(forms.APPLICATION, application.name)] = _text(application.as_json())
        for model in self._clipper.models():
            rows[Key(forms.REGISTERED, model.name, model.version)] = _text(model._asdict())
        for name, version in self._clipper.current_versions().items():
            rows[Key(forms.CURRENT, name)] = _text(version)
        return {**self._still_left_out(), **rows}

    def _changed_settings(self) -> Rows:
        start = self._past.start_settings.flat()
        rows: Rows = {}
        for name, value in self._engine.settings.flat().items():
            if name not in start:
                rows[Key(forms.SETTING, name)] = _text({"value": value})
            elif start[name] != value:
                rows[Key(forms.SETTING, name)] = _text({"value": value, "instead_of": start[name]})
        return rows

    def _versions(self) -> Rows:
        rows: Rows = {}
        for served in self._engine.served():
            if self._repository is not None and self._repository.has_loaded(served.id):
                rows[_key(forms.VERSION, served.id)] = _text({"folder": True})
            elif self._start_cards.get(served.id) != served.card:
                rows[_key(forms.VERSION, served.id)] = _text(_card(served.card))
        return rows

    def _retired(self) -> Rows:
        served = self._engine.models()
        rows = {
            _key(forms.RETIRED, id_): _text(_card(card))
            for id_, card in self._start_cards.items()
            if id_ not in served
        }
        if self._repository is not None:
            for id_, stamp in self._repository.left_out().items():
                rows[_key(forms.RETIRED, id_)] = _text({"files": stamp})
        return rows

    def _still_left_out(self) -> Rows:
        """What could not be put back, without the versions that somebody has taken off the list since."""
        failed = {id_ for id_, (state, _) in self._engine.states().items() if state == "failed"}
        names = {id_.name for id_ in failed}
        return {
            key: text
            for key, text in self._past.left_out_rows.items()
            if (key.kind != forms.VERSION or ModelId(key.name, key.version) in failed)
            and (
                key.kind != forms.MODEL or key.name in names or key not in self._past.said(key.kind)
            )
        }


def _key(kind: str, id_: ModelId) -> Key:
    return Key(kind, id_.name, id_.version)


def _card(card: ModelCard) -> dict[str, Any]:
    return {"card": card_form.as_json(card)}


def _text(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))
