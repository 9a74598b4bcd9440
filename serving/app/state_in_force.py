"""The state in force, as rows of the record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from serving.api.clipper.service import ClipperService
from serving.app.saved_state import SavedState, row_key, spec_json
from serving.engine.applications import Applications
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.model_spec import ModelSpec
from serving.state import record_schema
from serving.state.records import RecordKey, Rows
from serving.values import ModelId


class StateInForce:
    """Settings, models and applications as they are now, for comparison with the record."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository | None,
        applications: Applications,
        clipper: ClipperService,
        start_specs: Mapping[ModelId, ModelSpec],
    ) -> None:
        self._engine = engine
        self._repository = repository
        self._applications = applications
        self._clipper = clipper
        self._start_specs = start_specs

    def rows(self, past: SavedState) -> Rows:
        """Return the rows of the state in force that differ from the start, and those not restored."""
        now = {**self._setting_rows(past), **self._version_rows(), **self._retired_rows()}
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
        rows = {key: as_text(data) for key, data in now.items()}
        return {**self._left_out_rows(past), **rows}

    def _setting_rows(self, past: SavedState) -> dict[RecordKey, Any]:
        start = past.start_settings.flat()
        return {
            RecordKey(record_schema.SETTING, name): {"value": value}
            | ({"instead_of": start[name]} if name in start else {})
            for name, value in self._engine.settings.flat().items()
            if name not in start or start[name] != value
        }

    def _version_rows(self) -> dict[RecordKey, Any]:
        rows: dict[RecordKey, Any] = {}
        for served in self._engine.deployments():
            if self._repository is not None and self._repository.has_loaded(served.id):
                rows[row_key(record_schema.VERSION, served.id)] = {"folder": True}
            elif self._start_specs.get(served.id) != served.spec:
                rows[row_key(record_schema.VERSION, served.id)] = spec_json(served.spec)
        return rows

    def _retired_rows(self) -> dict[RecordKey, Any]:
        served = self._engine.models()
        rows = {
            row_key(record_schema.RETIRED, id_): spec_json(spec)
            for id_, spec in self._start_specs.items()
            if id_ not in served
        }
        if self._repository is not None:
            for id_, stamp in self._repository.left_out().items():
                rows[row_key(record_schema.RETIRED, id_)] = {"files": stamp}
        return rows

    def _left_out_rows(self, past: SavedState) -> Rows:
        """Return unrestored rows, without versions since removed from the list."""
        failed = {id_ for id_, (state, _) in self._engine.states().items() if state == "failed"}
        names = {id_.name for id_ in failed}
        return {
            key: text
            for key, text in past.left_out_rows.items()
            if (key.kind != record_schema.VERSION or ModelId(key.name, key.version) in failed)
            and (
                key.kind != record_schema.MODEL
                or key.name in names
                or key not in past.rows_of(key.kind)
            )
        }


def as_text(data: object) -> str:
    """Return a row's text."""
    return json.dumps(data, separators=(",", ":"))
