"""What a record says to a start: settings, models, and what was taken out of service."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from serving.engine.version_folders import Stamp
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.state import record_schema
from serving.state.records import RecordKey, Revision, Rows
from serving.values import ModelId
from serving.zoo import model_specs as card_form

log = logging.getLogger(__name__)


class SavedState:
    """Settings and models with which a server starts, from its saved state."""

    def __init__(
        self, record: Revision, specs: Sequence[ModelSpec], settings: ServingSettings
    ) -> None:
        """Compare the record with the configuration at start.

        `specs` come from the command line, and `settings` from file, environment and command line.
        """
        self.record, self.rows = record, record.rows
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
            if retired.get(row_key(record_schema.RETIRED, spec.id)) != spec_json(spec)
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


def row_key(kind: str, id_: ModelId) -> RecordKey:
    """Return the key of a version's row."""
    return RecordKey(kind, id_.name, id_.version)


def spec_json(spec: ModelSpec) -> dict[str, Any]:
    """Return a deployed version's row."""
    return {"card": card_form.as_json(spec)}
