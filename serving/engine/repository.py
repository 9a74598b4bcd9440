"""Model repository: a folder of models with numbered versions, watched for changes.

A new version is loaded and made current; then the oldest versions beyond the number to retain are
retired, as are versions whose folders disappear. A version set by hand stays current until a new
one appears. New or changed files are loaded once two scans find them the same.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import Awaitable, Callable, Mapping

from serving.engine.engine import Engine
from serving.engine.version_folders import (
    NUMBER,
    Stamp,
    VersionFolder,
    find_spec,
    newest,
    plan_actions,
    scan,
)
from serving.errors import InvalidRequest, InvalidSettings, ServingError, UnknownModel
from serving.values import ModelId

log = logging.getLogger(__name__)


class Repository:
    """One model repository; if loading fails, the versions served before stay in service.

    Call methods only from the event loop's thread.
    """

    def __init__(self, root: pathlib.Path, engine: Engine, *, kept: int, poll_s: float) -> None:
        """Read nothing yet; `kept` versions per model stay loaded, including a new one."""
        self.root = root
        self._engine = engine
        self._kept = kept
        self._poll_s = poll_s
        self._found: dict[ModelId, VersionFolder] = {}
        self._tried: dict[ModelId, Stamp] = {}
        self._taken: dict[ModelId, Stamp] = {}
        self._changing = asyncio.Lock()

    async def open(self, left_out: Mapping[ModelId, Stamp] | None = None) -> None:
        """Load every model's newest versions; failures are logged and listed.

        If all of a model's fail, older ones are tried, unless a version of it was left out.
        Versions in `left_out` are not loaded while their files are unchanged.

        Raises:
            ServingError: the folder cannot be read, or none of the models can be loaded.
        """
        left_out = left_out or {}
        self._found = await asyncio.to_thread(scan, self.root)
        if not self._found:
            raise InvalidSettings(
                f"model repository {self.root} contains no version of a model; expected "
                "MODEL/NUMBER/ in it"
            )
        failures: list[ServingError] = []
        for name in dict.fromkeys(id_.name for id_ in self._found):
            versions = [id_.version for id_ in self._found if id_.name == name]
            chosen = newest(versions, self._kept)
            for version in versions:  # versions not chosen are loaded on request only
                id_ = ModelId(name, version)
                self._tried[id_] = self._found[id_].stamp
            for version in chosen:
                id_ = ModelId(name, version)
                if left_out.get(id_) == self._found[id_].stamp:
                    self._taken[id_] = self._found[id_].stamp
                else:
                    await self._load_at_start(id_, failures)
            ids = (ModelId(name, version) for version in versions)
            is_left_out = any(left_out.get(id_) == self._found[id_].stamp for id_ in ids)
            older = [] if is_left_out else sorted(versions, key=int)[: -len(chosen)]
            while older and all(
                self._state(ModelId(name, version)) == "failed" for version in chosen
            ):
                chosen = [older.pop()]
                await self._load_at_start(ModelId(name, chosen[0]), failures)
        if failures and not self._engine.models() and not left_out:
            raise failures[0]

    async def restore(self, id_: ModelId) -> None:
        """Load a version served before, if it still exists; it does not become current.

        Raises:
            ServingError: the load failed.
        """
        async with self._changing:
            if id_ in self._found and self._state(id_) != "ready":
                await self._load(id_, current=False)

    async def retire_unreferenced(self) -> None:
        """Retire old versions that nothing refers to, beyond the number to retain."""
        async with self._changing:
            served = {id_.name for id_ in self._engine.models()}
            for name in served & {id_.name for id_ in self._found}:
                await self._retire_old(name)

    def has_loaded(self, id_: ModelId) -> bool:
        """Whether a served version came from the repository."""
        return id_ in self._taken and id_ in self._engine.models()

    def left_out(self) -> dict[ModelId, Stamp]:
        """Return versions retired by hand that a restart would load, with their files."""
        would_load = {
            ModelId(name, version)
            for name in dict.fromkeys(id_.name for id_ in self._found)
            for version in newest([i.version for i in self._found if i.name == name], self._kept)
        }
        served = {id_.name for id_ in self._engine.models()}
        return {
            id_: stamp
            for id_, stamp in self._taken.items()
            if (id_ in would_load or id_.name not in served)
            and id_ in self._found
            and self._found[id_].stamp == stamp
            and not self._state(id_)
        }

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Scan until cancelled, and await `changed` after changes; log and list failures."""
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                if await self.reconcile():
                    await changed()
            except ServingError as error:
                log.warning("a scan of the model repository failed", extra={"error": str(error)})
            except Exception:  # a passing fault, such as too many open files, must not end this
                log.exception("a scan of the model repository failed")

    async def reconcile(self) -> bool:
        """Scan once and apply the changes; return whether there were any."""
        async with self._changing:
            found = await asyncio.to_thread(scan, self.root)
            todo = plan_actions(found, self._found, self._tried)
            self._found = found
            for id_ in todo.load:
                self._tried[id_] = found[id_].stamp
                try:
                    await self._load(id_, current=True)
                    await self._retire_old(id_.name)
                except ServingError as error:
                    text = "a version cannot be loaded; the version served before stays"
                    self._note_failure(id_, error, text)
            for id_ in todo.gone:
                del self._tried[id_]
                try:
                    await self._retire_gone(id_)
                except ServingError as error:
                    log.error(
                        "a version whose folder was removed cannot be retired",
                        extra={"model": id_.name, "version": id_.version, "error": str(error)},
                    )
            return bool(todo.load or todo.gone)

    async def set_version(self, name: str, version: str) -> None:
        """Make a version current, loading it if needed.

        Raises:
            UnknownModel: neither the engine nor the repository has it.
            ServingError: the load failed.
        """
        async with self._changing:
            try:
                self._engine.catalogue.set_current(name, version)
            except UnknownModel:
                if ModelId(name, version) not in self._found:
                    raise
                await self._load(ModelId(name, version), current=True)

    async def roll_back(self, name: str) -> None:
        """Return to the previous version, loading it if needed.

        Raises:
            UnknownModel: the model is unknown.
            InvalidRequest: neither the engine nor the repository has a previous version.
            ServingError: the load failed.
        """
        async with self._changing:
            entry = self._engine.catalogue.entry(name)
            if entry.previous is not None:
                self._engine.catalogue.roll_back(name)
                return
            numbers = [id_.version for id_ in self._found if id_.name == name]
            if NUMBER.fullmatch(entry.current):
                numbers = [version for version in numbers if int(version) < int(entry.current)]
            if not numbers:
                raise InvalidRequest(
                    f"model {name!r} has no version before {entry.current!r} to return "
                    "to, loaded or in the folder"
                )
            await self._load(ModelId(name, newest(numbers, 1)[0]), current=True)

    async def load(self, name: str) -> bool:
        """Serve a model's newest version from its current files; return False if there is none.

        Raises:
            ServingError: the load failed.
        """
        async with self._changing:
            self._found |= await asyncio.to_thread(scan, self.root)
            numbers = [id_.version for id_ in self._found if id_.name == name]
            if not numbers:
                return False
            id_ = ModelId(name, newest(numbers, 1)[0])
            stamp = self._found[id_].stamp
            if self._state(id_) != "ready" or self._tried.get(id_) != stamp:
                self._tried[id_] = stamp
                await self._load(id_, current=True)
                await self._retire_old(name)
            return True

    async def unload(self, name: str) -> None:
        """Retire all versions of a model until one is requested or newer files appear.

        Raises:
            UnknownModel: the model is not served.
        """
        await self._engine.retire_model(name)

    def list_versions(self) -> dict[ModelId, pathlib.Path]:
        """Return the folder of every version in the repository, loaded or not."""
        return {id_: what.path for id_, what in self._found.items()}

    def _state(self, id_: ModelId) -> str:
        state, _ = self._engine.states().get(id_, ("", ""))
        return state

    async def _load(self, id_: ModelId, *, current: bool) -> None:
        path, stamp = self._found[id_]
        spec = await asyncio.to_thread(find_spec, path, id_)  # a slow disk must not block requests
        if id_ in self._engine.models():  # its files have changed
            await self._engine.redeploy(spec)
        else:
            await self._engine.deploy(spec, current=current)
        self._taken[id_] = stamp

    async def _load_at_start(self, id_: ModelId, failures: list[ServingError]) -> None:
        try:
            await self._load(id_, current=True)
        except ServingError as error:
            self._note_failure(id_, error, "a version cannot be loaded")
            failures.append(error)

    async def _retire_old(self, name: str) -> None:
        entry = self._engine.catalogue.entry(name)
        numbered = [version for version in entry.versions if NUMBER.fullmatch(version)]
        kept = {*newest(numbered, self._kept), entry.current, *entry.labels.values(), *entry.shares}
        kept.add(entry.shadow or entry.current)
        for version in numbered:
            if version not in kept:
                await self._engine.withdraw(name, version)

    async def _retire_gone(self, id_: ModelId) -> None:
        entry = self._engine.catalogue.entries.get(id_.name)
        if entry is None or id_.version not in entry.versions:
            self._engine.failed.pop(id_, None)
            return
        others = [version for version in entry.versions if version != id_.version]
        if others and entry.current == id_.version:
            numbered = [version for version in others if NUMBER.fullmatch(version)]
            self._engine.catalogue.set_current(
                id_.name, newest(numbered, 1)[0] if numbered else others[-1]
            )
        elif not others:
            left = [other.version for other in self._found if other.name == id_.name]
            if left:
                await self._load(ModelId(id_.name, newest(left, 1)[0]), current=True)
        if id_.version in entry.shares:  # its share goes to the current version
            shares = {one: share for one, share in entry.shares.items() if one != id_.version}
            self._engine.catalogue.set_shares(id_.name, shares)
        await self._engine.withdraw(id_.name, id_.version)

    def _note_failure(self, id_: ModelId, error: ServingError, text: str) -> None:
        self._engine.failed[id_] = str(error)
        log.error(
            text,
            extra={"model": id_.name, "version": id_.version, "error": str(error)},
        )
