"""The hub: which model version a request means, and models, versions and settings that change while it serves.

    resolve: name -> version (current, label, share of a split) -> `Served`; submit there
    deploy:  start replicas -> load and warm up -> register; then it takes traffic
    retire:  out of the catalogue -> answers what it has taken -> replicas end
    apply:   check -> replicas and limits (pool) -> scheduler -> cache -> generation, model by model

A request is resolved and submitted in one go, so that a version switch loses none: what was taken by the
old version is answered by it. One change is made at a time; a version that is out of the catalogue is in
nobody's way any more, so what it still answers holds up no other change.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from serving.accelerator.clocks import ClockLock
from serving.catalogue import STABLE, Catalogue, Entry
from serving.errors import (
    AcceleratorUnavailable,
    InvalidRequest,
    NotReady,
    ServingError,
    UnknownModel,
)
from serving.homes import Homes
from serving.kept_profiles import KeptProfiles
from serving.metrics.exposition import Gauges, ModelMetrics, Snapshot
from serving.served import Query, Served
from serving.setting_notes import setting_notes
from serving.settings import ServingSettings
from serving.shadowing import Shadowed
from serving.shared_pool import SharedPool
from serving.shared_pools import SharedPools
from serving.values import ModelCard, ModelId, Signature
from serving.waiter import Ticket, Waiter

log = logging.getLogger(__name__)

_VERSION = re.compile(r"[A-Za-z0-9._+:~-]{1,128}")
"""Versions are part of URLs, of metrics and of what is kept."""

RETIRE_S = 30.0
"""Longest time in which a version that was replaced answers what it has taken."""


class Target(Protocol):
    """What a request is sent to."""

    @property
    def id(self) -> ModelId:
        """Name and version that answer."""
        ...

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""
        ...

    @property
    def codecs(self) -> dict[str, Any]:
        """Room for the protocols to keep what they make of the signature, by protocol."""
        ...

    def submit(self, query: Query, waiter: Waiter, application: str = "") -> Ticket:
        """Take a request of an application; the waiter is called once, later, in the event loop."""
        ...

    def done(self, status: int, seconds: float) -> None:
        """Count an answered request."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Settings that came into force."""

    generation: int
    settings: ServingSettings
    seconds: float


class Engine:
    """Serves models under settings that can change."""

    def __init__(
        self,
        cards: Sequence[ModelCard],
        settings: ServingSettings,
        homes: Homes,
        clock: ClockLock | None = None,
        profiles: KeptProfiles | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            cards: the first models.
            settings: for all models, and what differs for some.
            homes: where replicas live.
            clock: holds the GPU's clock, from `open` to `close`.
            profiles: what was measured of models before; None: nothing.
        """
        self.settings = settings
        self.generation = 1
        self._cards = tuple(cards)
        self._homes = homes
        self._clock = clock or ClockLock()
        self._catalogue: Catalogue[Served] = Catalogue()
        self._loading: set[ModelId] = set()
        self._failed: dict[ModelId, str] = {}
        self.resolved: dict[tuple[str, str | None], Target] = {}
        """See `Inference.resolved`."""
        self._changing = asyncio.Lock()
        self._unsettled: set[Served | SharedPool] = set()
        """What a change that failed has left with its settings."""
        self._pools = SharedPools(homes, KeptProfiles() if profiles is None else profiles)
        self._endings: dict[asyncio.Task[None], Served] = {}
        """Versions that are out of service, and answer what they have taken."""
        self.editing = asyncio.Lock()
        """Held by whoever reads the settings, changes some, and applies the whole: no change is lost."""
        self._draining = False
        self.unresolved_responses: dict[int, int] = {}
        """Responses by HTTP status to requests that meant no model."""

    # Requests

    def ready(self) -> bool:
        """Whether a request that comes now, for whichever model, will be answered."""
        served = self._catalogue.all()
        return not self._draining and bool(served) and all(one.ready for one in served)

    def models(self) -> tuple[ModelId, ...]:
        """What is served."""
        return tuple(served.id for served in self._catalogue.all())

    def resolve(self, name: str, version: str | None) -> Target:
        """What a name and an optional version or label mean; ask each time, a split draws each time.

        Raises:
            UnknownModel: no such name, version or label.
            NotReady: it is being loaded for the first time.
        """
        known = self.resolved.get((name, version))
        if known is not None:
            return known
        if name not in self._catalogue.entries and any(name == one.name for one in self._loading):
            raise NotReady(f"model {name!r} is not loaded yet; ask /v2/health/ready")
        entry = self._catalogue.entry(name)
        served = entry.of(version, random.random())  # noqa: S311 - it guards nothing
        if version is None and entry.shadow is not None and served.id.version == entry.current:
            return Shadowed(served, entry.versions[entry.shadow])
        if version is not None or not entry.shares:
            self.resolved[name, version] = served
        return served

    def unresolved(self, status: int) -> None:
        """Count an answered request that meant no model."""
        self.unresolved_responses[status] = self.unresolved_responses.get(status, 0) + 1

    def model_ready(self, name: str, version: str | None) -> bool:
        """Whether the model answers now.

        Raises:
            UnknownModel: no such name, version or label.
        """
        try:
            self.resolve(name, version)
        except NotReady:
            return False
        entry = self._catalogue.entry(name)
        wanted = entry.current if version is None else entry.named(version)
        return not self._draining and entry.versions[wanted].ready

    # Models and versions

    def entry(self, name: str) -> Entry[Served]:
        """Versions, labels, shares and shadow of a model.

        Raises:
            UnknownModel: no such name.
        """
        return self._catalogue.entry(name)

    def versions(self, name: str) -> tuple[str, ...]:
        """All versions of a model that are served.

        Raises:
            UnknownModel: no such name.
        """
        return tuple(self._catalogue.entry(name).versions)

    def resolve_label(self, name: str, label: str) -> str | None:
        """The version that a label of a model means; None: the model or the label is unknown."""
        entry = self._catalogue.entries.get(name)
        if entry is None:
            return None
        return entry.labels.get(label, entry.current if label == STABLE else None)

    def states(self) -> dict[ModelId, tuple[str, str]]:
        """State of every version that is known, and why, where it failed.

        One that serves is what it is while it is loaded anew; the reason tells that this has failed.
        """
        states = dict.fromkeys(self._loading, ("loading", ""))
        states |= {id_: ("failed", why) for id_, why in self._failed.items()}
        return states | {
            served.id: ("ready" if served.ready else "unavailable", self._failed.get(served.id, ""))
            for served in self._catalogue.all()
        }

    def note_failure(self, id_: ModelId, why: str) -> None:
        """List a version that could not even be tried, as one that could not be loaded."""
        self._failed[id_] = why

    def forget_failure(self, id_: ModelId) -> None:
        """List a version no more that could not be loaded."""
        self._failed.pop(id_, None)

    async def deploy(self, card: ModelCard, *, current: bool = True) -> None:
        """Load a version and let it take traffic once it is warm.

        Args:
            card: what to load.
            current: whether requests that name no version get it.

        Raises:
            InvalidRequest: the version is served already, or no version can be called so.
            ServingError: it cannot be loaded; what was served before still is.
        """
        async with self._changing:
            await self._deploy(card, current=current)

    async def _deploy(self, card: ModelCard, *, current: bool) -> None:
        self._check_serving()
        if not _VERSION.fullmatch(card.version):
            raise InvalidRequest(
                f"version {card.version!r} of model {card.name!r}: expected 1 to 128 letters, digits and . _ + : ~ -"
            )
        entry = self._catalogue.entries.get(card.name)
        if entry is not None and card.version in entry.versions:
            raise InvalidRequest(f"model {card.name!r} has a version {card.version!r} already")
        served = await self._opened(card)
        self._catalogue.add(card.name, card.version, served, current=current)
        self.resolved.clear()

    async def _opened(self, card: ModelCard) -> Served:
        """A version with its replicas, loaded and warm, that takes no traffic yet."""
        began_s = time.monotonic()
        self._loading.add(card.id)
        self.forget_failure(card.id)
        try:
            home = await self._homes.of(card)
            shared = await self._pools.of(card, home, self.settings)
            settings = self.settings.of(card.name)
            served = Served(card, settings, home, self._homes.workers, shared)
            await served.open()
        except ServingError as error:
            self.note_failure(card.id, str(error))
            raise
        finally:
            self._loading.discard(card.id)
            await self._pools.give_up()
        log.info(
            "model loaded",
            extra={
                "model": card.name,
                "version": card.version,
                "seconds": round(time.monotonic() - began_s, 4),
                **served.load_facts,
            },
        )
        return served

    async def redeploy(self, card: ModelCard) -> None:
        """Load a version anew, from files that have changed, and let it take the place of the served one.

        What the old one has taken it goes on to answer.

        Raises:
            UnknownModel: no such name or version.
            ServingError: it cannot be loaded; the one that was served still is.
        """
        async with self._changing:
            self._check_serving()
            entry = self._catalogue.entry(card.name)
            old = entry.versions[entry.named(card.version)]
            new = await self._opened(card)
            entry.versions[card.version] = new
            self.resolved.clear()
            self._end(old, RETIRE_S)

    async def retire(self, name: str, version: str, *, within_s: float) -> None:
        """Take a version out of service; return when it has answered what it has taken, within a time.

        Other changes need not wait for this one. Broken off, it goes on by itself.

        Raises:
            UnknownModel: no such name or version.
            InvalidRequest: requests without a version go to it, and there is another one.
        """
        ending = await self.withdraw(name, version, within_s=within_s)
        if ending is not None:
            await asyncio.shield(ending)

    async def withdraw(
        self, name: str, version: str, *, within_s: float
    ) -> asyncio.Task[None] | None:
        """As `retire`, but return as soon as the version is out of service.

        Returns:
            What is done when it has ended, and is looked after here; None: it was only listed as one that
            could not be loaded, and is no more.

        Raises:
            As `retire`.
        """
        async with self._changing:
            try:
                served = self._catalogue.remove(name, version)
            except UnknownModel:
                if self._failed.pop(ModelId(name, version), None) is None:
                    raise
                return None
            self._failed.pop(served.id, None)
            self.resolved.clear()
            return self._end(served, within_s)

    async def retire_model(self, name: str, *, within_s: float) -> None:
        """Take all versions of a model out of service, as `retire` does with one.

        Raises:
            UnknownModel: no such name.
        """
        async with self._changing:
            all_served = self._catalogue.remove_all(name)
            for served in all_served:
                self._failed.pop(served.id, None)
            self.resolved.clear()
            endings = [self._end(served, within_s) for served in all_served]
        await asyncio.gather(*map(asyncio.shield, endings))

    def _end(self, served: Served, within_s: float) -> asyncio.Task[None]:
        """Let a version that is in no catalogue any more answer what it has taken, and end it."""
        ending = asyncio.create_task(self._ended(served, within_s), name=f"end {served.id}")
        self._endings[ending] = served
        ending.add_done_callback(self._endings.pop)
        return ending

    async def _ended(self, served: Served, within_s: float) -> None:
        name, version = served.id
        try:
            if not await served.drained(within_s):
                log.warning("not drained in time", extra={"model": name, "version": version})
        finally:
            try:
                await served.close()
                async with self._changing:
                    await self._pools.give_up()
            except Exception:  # it may be that nobody waits for this
                log.exception("a version has not ended", extra={"model": name, "version": version})

    def set_version(self, name: str, version: str) -> None:
        """Let requests that name no version get this one, from the next one on.

        Raises:
            UnknownModel: no such name, version or label.
        """
        self._catalogue.set_current(name, version)
        self.resolved.clear()

    def roll_back(self, name: str) -> str:
        """Return to the version before the current one; returns it.

        Raises:
            UnknownModel: no such name.
            InvalidRequest: there is none, or it is not loaded any more.
        """
        entry = self._catalogue.entry(name)
        if entry.previous is None:
            raise InvalidRequest(f"model {name!r} has no loaded version to go back to")
        self.set_version(name, entry.previous)
        return entry.current

    def restore(self, name: str, past: Mapping[str, Any]) -> None:
        """Decide about a model's versions as before. Raises as `Catalogue.restore`."""
        self._catalogue.restore(name, past)
        self.resolved.clear()

    def set_label(self, name: str, label: str, version: str | None) -> None:
        """Let a label mean a version; None takes it away. Raises as `Catalogue.set_label`."""
        self._catalogue.set_label(name, label, version)
        self.resolved.clear()

    def set_shares(self, name: str, shares: Mapping[str, float]) -> None:
        """Split the traffic that names no version. Raises as `Catalogue.set_shares`."""
        self._catalogue.set_shares(name, shares)
        self.resolved.clear()

    def set_shadow(self, name: str, version: str | None) -> None:
        """Copy the current version's requests to another one. Raises as `Catalogue.set_shadow`."""
        self._catalogue.set_shadow(name, version)
        self.resolved.clear()

    # Settings

    async def apply(
        self, settings: ServingSettings, *, fresh: bool = False, keep_learnt: bool = False
    ) -> Applied:
        """Bring new settings into force while serving.

        Calls are serialised. This one returns when limits have been read back and replicas are
        ready. No request fails meanwhile. What was learnt (cache, back-off, the scheduler's
        estimates) is reset, so that apply(A), apply(B) behaves like a fresh start of B.

        Args:
            settings: complete settings; those of the listeners must be unchanged.
            fresh: replace every replica, so that this is a launch of its own.
            keep_learnt: do not reset what was learnt.

        Raises:
            ServingError: with the reason; the old generation still serves.
        """
        async with self._changing:
            began_s = time.monotonic()
            self._check_serving()
            changed: list[Served] = []
            changed_pools: list[SharedPool] = []
            try:
                await self._hold_clock(settings)  # first: what starts now is measured under it
                for shared in self._pools:
                    changed_pools.append(shared)
                    await shared.apply(settings.of(""), fresh=fresh, keep_learnt=keep_learnt)
                for served in self._catalogue.all():
                    wanted = settings.of(served.id.name)
                    await served.apply(wanted, fresh=fresh, keep_learnt=keep_learnt)
                    changed.append(served)
            except BaseException:
                await self._put_back(changed, changed_pools)
                raise
            self.settings = settings
            self._unsettled.clear()
            self.generation += 1
            seconds = time.monotonic() - began_s
            log.info(
                "settings applied",
                extra={"generation": self.generation, "seconds": round(seconds, 4)},
            )
            return Applied(generation=self.generation, settings=settings, seconds=seconds)

    async def _hold_clock(self, settings: ServingSettings) -> None:
        clock_mhz = settings.accelerator.clock_mhz
        if clock_mhz is None and self._clock.clock_mhz is None:
            return
        try:
            await asyncio.to_thread(self._clock.hold, clock_mhz)
        except AcceleratorUnavailable as error:
            raise AcceleratorUnavailable(f"accelerator.clock_mhz = {clock_mhz}: {error}") from error

    async def _put_back(
        self, changed: Sequence[Served], changed_pools: Sequence[SharedPool]
    ) -> None:
        """The settings in force, for models that had got others already, and for the GPU."""
        self._unsettled |= {*changed, *changed_pools}  # each until it has them again
        try:
            await self._hold_clock(self.settings)
        except ServingError as error:
            log.error("the GPU's clock cannot be put back", extra={"error": str(error)})
        for shared in changed_pools:
            try:
                await shared.apply(self.settings.of(""), fresh=False, keep_learnt=True)
            except ServingError as error:
                log.error(
                    "settings of shared replicas cannot be put back", extra={"error": str(error)}
                )
            else:
                self._unsettled.discard(shared)
        for served in changed:
            settings = self.settings.of(served.id.name)
            try:
                await served.apply(settings, fresh=False, keep_learnt=True)
            except ServingError as error:
                log.error(
                    "settings cannot be put back",
                    extra={"model": served.id.name, "error": str(error)},
                )
            else:
                self._unsettled.discard(served)

    def unsettled(self) -> list[dict[str, Any]]:
        """What runs with other settings than those in force, for they could not be put back: plain data."""
        models = [
            {"name": served.id.name, "version": served.id.version}
            for served in self._catalogue.all()
            if served in self._unsettled
        ]
        pools = [
            {"pool": kind} for kind, shared in self._pools.items() if shared in self._unsettled
        ]
        return [*models, *pools]

    def _check_serving(self) -> None:
        if self._draining:
            raise NotReady("the server is stopping; models and settings cannot change any more")

    # Life

    async def open(self) -> None:
        """Load the first models.

        Raises:
            ServingError: one cannot be served under these settings; nothing is left running.
        """
        try:
            await self._hold_clock(self.settings)
            for card in self._cards:
                await self.deploy(card)
        except BaseException:
            await self.close()
            raise

    def drain(self) -> None:
        """Not ready from now on; what was taken is still answered."""
        self._draining = True

    @property
    def unfinished(self) -> int:
        """Requests without an answer."""
        served = [*self._catalogue.all(), *self._endings.values()]
        return sum(one.place.unfinished for one in served)

    async def close(self) -> None:
        """End replicas and their homes; whoever still waits is refused."""
        self._draining = True
        endings = dict(self._endings)
        for ending in endings:
            ending.cancel()
        await asyncio.gather(*endings, return_exceptions=True)
        # One that was cancelled before it began has ended nothing.
        served = [*self._catalogue.all(), *endings.values()]
        async with contextlib.AsyncExitStack() as last:
            last.push_async_callback(asyncio.to_thread, self._clock.close)
            last.push_async_callback(self._homes.close)
            for shared in self._pools:
                last.push_async_callback(shared.close)
            await asyncio.gather(*(one.close() for one in served))

    # Facts

    @property
    def limits(self) -> str:
        """`enforced`, or `not enforced: why`."""
        return self._homes.limits_text

    def notes(self) -> list[str]:
        """A line for every setting in force that changes nothing, or less than it says."""
        return setting_notes(self.settings, self._catalogue.all())

    def served(self) -> tuple[Served, ...]:
        """Every version that is served."""
        return self._catalogue.all()

    def replicas(self) -> dict[str, Any]:
        """Replicas and their deaths since the settings came into force, as plain data."""
        replicas: list[dict[str, Any]] = []
        deaths: list[dict[str, Any]] = []
        for served in self._catalogue.all():
            of_model = {"model": served.id.name, "version": served.id.version}
            replicas += [{**of_model, **member} for member in served.place.members()]
            deaths += [{**of_model, **dataclasses.asdict(d)} for d in served.place.deaths()]
        for kind, shared in self._pools.items():
            replicas += [{"pool": kind, **member} for member in shared.members()]
            deaths += [{"pool": kind, **dataclasses.asdict(d)} for d in shared.pool.deaths]
        return {"replicas": replicas, "deaths": deaths}

    def metrics(self, connections: int, *, fresh_states: Mapping[str, int]) -> Snapshot:
        """What the metrics show of this moment, with what others have counted."""
        return Snapshot(
            generation=self.generation,
            unsettled=len(self.unsettled()),
            connections=connections,
            fresh_states=fresh_states,
            unresolved=dict(self.unresolved_responses),
            models=tuple(
                ModelMetrics(id=served.id, counters=served.counters, gauges=_gauges(served))
                for served in self._catalogue.all()
            ),
            pools=tuple(shared.metrics() for shared in self._pools),
        )


def _gauges(served: Served) -> Gauges:
    cache = served.cache.cache
    return Gauges(
        queue_items=served.place.waiting_items,
        unfinished_requests=served.place.unfinished,
        replicas=served.place.states(),
        cache_hits=cache.hits,
        cache_misses=cache.misses - served.cache.shared,
        cache_shared=served.cache.shared,
        cache_bytes=cache.bytes,
        refusals=served.dispatcher.refusals_of(served.place.model),
    )
