"""Versions of models on a gateway, brought to what another gateway wrote into the record."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from serving.app.saved_state import SavedState, row_key, spec_json
from serving.engine.engine import Engine
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.state import record_schema
from serving.state.records import RecordKey
from serving.values import ModelId
from serving.zoo import model_specs as card_form

log = logging.getLogger(__name__)


class FollowedModels:
    """Loads and withdraws versions as the record says."""

    def __init__(
        self,
        engine: Engine,
        start_specs: Mapping[ModelId, ModelSpec],
        restore: Callable[[ModelId, Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Store the parts; `restore` loads a version from its row, if it is not served."""
        self._engine = engine
        self._start_specs = start_specs
        self._restore = restore

    async def adopt(self, past: SavedState, name: str, changed: Sequence[RecordKey]) -> None:
        """Load and withdraw versions of a model whose rows changed."""
        versions = past.rows_of(record_schema.VERSION)
        retired = past.rows_of(record_schema.RETIRED)
        said = past.rows_of(record_schema.MODEL).get(RecordKey(record_schema.MODEL, name))
        gone = []
        for id_ in dict.fromkeys(ModelId(name, key.version) for key in changed if key.version):
            wanted = versions.get(row_key(record_schema.VERSION, id_))
            if wanted is None and row_key(record_schema.RETIRED, id_) not in retired:
                start = self._start_specs.get(id_)
                wanted = None if start is None else spec_json(start)
            if wanted is None:
                gone.append(id_)
                continue
            key = row_key(record_schema.VERSION, id_)
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

    async def _adopt_version(self, id_: ModelId, wanted: Mapping[str, Any]) -> None:
        if "card" not in wanted:
            await self._restore(id_, wanted)
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
