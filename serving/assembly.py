"""The core behind the listeners, put together from the command line and from what a server before it kept.

In: model cards, settings, a folder of models, and the folder of the state. Out: engine, applications and
their hubs; nothing runs before `Core.open`. What is kept in the state's folder: `records.db`, what
management changed, `states.db`, what policies have learnt, unless a Redis server keeps that, and `profiles.db`,
what was measured of models that share replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Sequence

from serving.applications import Applications
from serving.clipper import ClipperHub
from serving.engine import Engine
from serving.homes import Homes
from serving.keeping import Keeper, Past
from serving.kept_profiles import KeptProfiles
from serving.repository import Repository
from serving.selection.redis_store import RedisStore
from serving.selection.sqlite_store import SqliteStore
from serving.selection.state_store import MemoryStore, StateStore
from serving.settings import ServingSettings
from serving.state.records import SqliteRecords
from serving.values import ModelCard


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What stands behind the listeners."""

    engine: Engine
    repository: Repository | None
    applications: Applications
    clipper: ClipperHub
    past: Past
    profiles: KeptProfiles
    keeper: Keeper | None
    """None where nothing outlives the server."""

    async def open(self) -> None:
        """Load the models, and put back what was changed before.

        Raises:
            ServingError: what the start names cannot be served; nothing is left running.
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
        """Make durable what was changed."""
        if self.keeper is not None:
            await self.keeper.keep()

    def close(self) -> None:
        """Write what is left to write."""
        self.applications.close()
        self.profiles.close()
        if self.keeper is not None:
            self.keeper.close()


def assembled(
    cards: Sequence[ModelCard],
    settings: ServingSettings,
    homes: Homes,
    *,
    root: pathlib.Path | None,
    folder: pathlib.Path | None,
    store_password: str | None = None,
) -> Core:
    """The parts, connected; nothing runs yet.

    Args:
        cards: models of the command line.
        settings: all settings, as the start gives them.
        homes: where replicas live.
        root: a watched folder of models.
        folder: of the state, which this process owns; None: nothing outlives it.
        store_password: of the Redis server of the states, where it asks for one.

    Raises:
        NotReady: the folder's files cannot be read, or the server of the states cannot be reached.
        InvalidSettings: `server.state_store` is no address of such a server, or its package is missing.
    """
    with contextlib.ExitStack() as opened:  # what fails leaves nothing open
        records = None
        if folder is not None:
            records = SqliteRecords(folder / "records.db")
            opened.callback(records.close)
        past = Past({} if records is None else records.load(), cards, settings)
        states = _states(settings.server.state_store, folder, store_password)
        opened.pop_all()
    of_profiles = settings.server.profiles_dir
    profiles = KeptProfiles.of_folder(folder if of_profiles is None else pathlib.Path(of_profiles))
    engine = Engine(past.cards, past.settings, homes, profiles=profiles)
    repository = None
    if root is not None:
        repository = Repository(
            root,
            engine,
            kept=settings.server.repository_kept,
            poll_s=settings.server.repository_poll_s,
        )
    # Microseconds since 1970: no number of a query comes again after a restart.
    applications = Applications(engine, states, first_id=time.time_ns() // 1000)
    clipper = ClipperHub(engine, applications, settings)
    keeper = None
    if records is not None:
        keeper = Keeper(
            records,
            past,
            engine=engine,
            repository=repository,
            applications=applications,
            clipper=clipper,
        )
    return Core(
        engine=engine,
        repository=repository,
        applications=applications,
        clipper=clipper,
        past=past,
        profiles=profiles,
        keeper=keeper,
    )


def _states(address: str | None, folder: pathlib.Path | None, password: str | None) -> StateStore:
    """Where policies' states are kept."""
    if address is not None:
        return RedisStore(address, password=password)
    return MemoryStore() if folder is None else SqliteStore(folder / "states.db")
