"""Construction of the server's components from the command line and the saved state.

Files in the state folder: `records.db` (changes made by management calls), `states.db` (learned
policy states, and what gateways share of them, unless in Redis), and `profiles.db` (profiles of
models that share replicas).
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import AsyncIterator, Sequence

from serving.api.clipper.service import ClipperService
from serving.app.persistence import StateSaver
from serving.app.saved_state import SavedState
from serving.deployment.profile_store import ProfileStore
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.engine.applications import Applications
from serving.engine.engine import Engine
from serving.engine.gateway_share import GatewayShare
from serving.engine.repository import Repository
from serving.model_spec import ModelSpec
from serving.selection.feedback_exchange import FeedbackExchange
from serving.selection.stores.redis_shared import RedisShared
from serving.selection.stores.sqlite_shared import SqliteShared
from serving.selection.stores.sqlite_store import SqliteStore
from serving.selection.stores.state_store import MemoryStore, StateStore
from serving.settings import ServingSettings
from serving.state.records import Records, Revision, RevisionId, SqliteRecords
from serving.state.redis_records import RedisRecords


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerComponents:
    """The components behind the listeners."""

    engine: Engine
    repository: Repository | None
    applications: Applications
    clipper: ClipperService
    past: SavedState
    profiles: ProfileStore
    keeper: StateSaver | None
    """Saves changes; None without a state folder."""

    async def open(self) -> None:
        """Load the models and restore saved changes.

        Raises:
            ServingError: one of the first models cannot be served; nothing is left running.
        """
        await self.engine.open()
        try:
            if self.repository is not None:
                await self.repository.open(self.past.left_out)
            if self.keeper is not None:
                await self.keeper.restore()
        except BaseException:
            await self.engine.close()
            raise

    async def keep(self) -> None:
        """Make changes durable."""
        if self.keeper is not None:
            await self.keeper.keep()

    @contextlib.asynccontextmanager
    async def changing(self, based_on: int | None = None) -> AsyncIterator[None]:
        """Make a change in the body and make it durable, as `StateSaver.changing`."""
        if self.keeper is None:
            yield
            return
        async with self.keeper.changing(based_on):
            yield

    def close(self) -> None:
        """Write pending data and close everything."""
        self.applications.close()
        self.profiles.close()
        if self.keeper is not None:
            self.keeper.close()


def build(
    specs: Sequence[ModelSpec],
    settings: ServingSettings,
    spawners: SpawnerRegistry,
    *,
    root: pathlib.Path | None,
    folder: pathlib.Path | None,
    store_password: str | None = None,
    share: GatewayShare | None = None,
) -> ServerComponents:
    """Build the components; nothing runs before `ServerComponents.open`.

    `folder` is the state folder, which this server must own; `root` is the model repository, and
    `share` this gateway's part of the replicas.

    Raises:
        NotReady: the state folder cannot be read, or Redis cannot be reached.
        InvalidSettings: `server.state_store` is invalid, or the redis package is missing.
    """
    with contextlib.ExitStack() as opened:  # close everything on failure
        store = settings.server.state_store
        records: Records | None = None
        if folder is not None:
            records = SqliteRecords(folder / "records.db")
        elif store is not None:
            records = RedisRecords(store, password=store_password)
        if records is not None:
            opened.callback(records.close)
        nothing = Revision(RevisionId(0), {})
        past = SavedState(nothing if records is None else records.snapshot(), specs, settings)
        states = _states(store, folder, store_password, is_shared=share is not None)
        opened.pop_all()
    of_profiles = settings.server.profiles_dir
    profiles = ProfileStore.of_folder(folder if of_profiles is None else pathlib.Path(of_profiles))
    engine = Engine(past.specs, past.settings, spawners, profiles=profiles, share=share)
    repository = None
    if root is not None:
        repository = Repository(
            root,
            engine,
            kept=settings.server.repository_loaded_versions,
            poll_s=settings.server.repository_poll_s,
        )
    # Microseconds since 1970: query ids stay unique across restarts.
    applications = Applications(engine, states, first_id=time.time_ns() // 1000)
    clipper = ClipperService(engine, applications, settings)
    keeper = None
    if records is not None:
        keeper = StateSaver(
            records,
            past,
            engine,
            repository,
            applications,
            clipper,
            is_shared=share is not None or not isinstance(records, SqliteRecords),
        )
    return ServerComponents(
        engine=engine,
        repository=repository,
        applications=applications,
        clipper=clipper,
        past=past,
        profiles=profiles,
        keeper=keeper,
    )


def _states(
    address: str | None, folder: pathlib.Path | None, password: str | None, *, is_shared: bool
) -> StateStore | FeedbackExchange:
    if address is not None:
        return FeedbackExchange(RedisShared(address, password=password))
    if folder is None:
        return MemoryStore()
    if is_shared:
        return FeedbackExchange(SqliteShared(folder / "states.db"))
    return SqliteStore(folder / "states.db")
