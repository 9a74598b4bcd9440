"""The hub: one request from the protocols to an answer, and settings that change while it serves.

    predict: resolve (application -> model) -> cache -> dispatch (queue -> batch -> replica) -> answer
    apply:   check -> replicas and limits (pool) -> scheduler -> cache -> generation

A model name in a request resolves to an application; here every model has an implicit application
of one, itself, so that there is one request path. Selection comes before the cache, which is keyed
by model, version and input.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from typing import Any, Protocol

from serving.cache.prediction_cache import Key
from serving.cache.single_flight import SingleFlight
from serving.dispatch import Dispatcher, Request
from serving.errors import NotReady, UnknownModel
from serving.metrics.counters import Counters
from serving.metrics.exposition import Gauges
from serving.pool import Pool
from serving.replica.as_process import ProcessHome
from serving.scheduling import SCHEDULERS
from serving.settings import ServingSettings
from serving.values import ModelCard, ModelId, Signature, StageTimes
from serving.waiter import Ticket, Waiter

log = logging.getLogger(__name__)


class Query(Request, Protocol):
    """A request as a protocol's codec made it."""

    @property
    def timeout_s(self) -> float | None:
        """The request's own time limit."""
        ...


class _Sent:
    """Ticket of a request that went straight to dispatch."""

    __slots__ = ("_dispatcher", "_id")

    def __init__(self, dispatcher: Dispatcher, id_: int) -> None:
        self._dispatcher = dispatcher
        self._id = id_

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._dispatcher.cancel(self._id)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Settings that came into force."""

    generation: int
    settings: ServingSettings
    seconds: float


class Engine:
    """Serves one model under settings that can change."""

    def __init__(self, card: ModelCard, settings: ServingSettings, home: ProcessHome) -> None:
        self.card = card
        self.settings = settings
        self.generation = 1
        self.counters = Counters()
        self._home = home
        scheduler = SCHEDULERS[settings.scheduling.policy](card.id, settings)
        self._dispatcher = Dispatcher(scheduler, card, on_batch=self._batch_done)
        self._pool = Pool(card, home, self._dispatcher, settings, self.counters)
        self._cache = SingleFlight(settings.cache.capacity_mb * 2**20)
        self._caching = settings.cache.capacity_mb > 0
        self._resolved: dict[tuple[str, str | None], tuple[ModelId, Signature]] = {}
        self._applying = asyncio.Lock()
        self._draining = False

    # Requests

    def ready(self) -> bool:
        """Whether a request that comes now will be answered."""
        return not self._draining and self._pool.ready_count > 0

    def models(self) -> tuple[ModelId, ...]:
        """What is served."""
        return (self.card.id,)

    def resolve(self, name: str, version: str | None) -> tuple[ModelId, Signature]:
        """The model that a name and an optional version mean, with its signature.

        Raises:
            UnknownModel: no such name or version.
            NotReady: it has never been loaded.
        """
        known = self._resolved.get((name, version))
        if known is not None and known[1] is self._pool.signature:
            return known
        model = self.card.id
        if name != model.name or version not in (None, model.version):
            raise UnknownModel(name, (f"{model.name} (version {model.version})",), version)
        if self._pool.signature is None:
            raise NotReady(f"model {name!r} is not loaded yet; ask /v2/health/ready")
        resolved = self._resolved[name, version] = (model, self._pool.signature)
        return resolved

    def model_ready(self, name: str, version: str | None) -> bool:
        """Whether the model answers now.

        Raises:
            UnknownModel: no such name or version.
        """
        try:
            self.resolve(name, version)
        except NotReady:
            return False
        return self.ready()

    def submit(self, model: ModelId, query: Query, waiter: Waiter) -> Ticket:
        """Take a request; the waiter is called once, later, in the event loop."""
        now_s = time.monotonic()
        deadline_s = now_s + (query.timeout_s or self.settings.scheduling.default_deadline_s)
        dispatcher = self._dispatcher
        if not self._caching:
            return _Sent(dispatcher, dispatcher.submit(query, waiter, model, deadline_s, now_s))
        key = Key(model, query.encoding, b"".join(query.frame))

        def send(inner: Waiter, inner_deadline_s: float) -> Ticket:
            id_ = dispatcher.submit(query, inner, model, inner_deadline_s, time.monotonic())
            return _Sent(dispatcher, id_)

        return self._cache.submit(key, waiter, deadline_s, send)

    def _batch_done(self, worker: int, items: int, times: StageTimes) -> None:
        self._pool.served(worker)
        self.counters.batch_items.observe(items)
        self.counters.exec_s.observe(times.exec_s)

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
        async with self._applying:
            began_s = time.monotonic()
            if self._draining:
                raise NotReady("the server is stopping; settings cannot change any more")
            await self._pool.apply(settings, fresh=fresh, keep_learnt=keep_learnt)
            self.settings = settings
            self.generation += 1
            if not keep_learnt:
                self._cache.reset(settings.cache.capacity_mb * 2**20)
            else:
                self._cache.cache.resize(settings.cache.capacity_mb * 2**20)
            self._caching = settings.cache.capacity_mb > 0
            seconds = time.monotonic() - began_s
            log.info(
                "settings applied",
                extra={"generation": self.generation, "seconds": round(seconds, 4)},
            )
            return Applied(generation=self.generation, settings=settings, seconds=seconds)

    # Life

    async def open(self) -> None:
        """Load the model and start the replicas.

        Raises:
            ServingError: it cannot be served under these settings; nothing is left running.
        """
        try:
            await self._home.open(self.card.kind)
            await self._pool.open()
        except BaseException:
            await self.close()
            raise

    def drain(self) -> None:
        """Not ready from now on; what was taken is still answered."""
        self._draining = True

    @property
    def unfinished(self) -> int:
        """Requests without an answer."""
        return self._dispatcher.unfinished

    async def close(self) -> None:
        """End replicas and their home; whoever still waits is refused."""
        self._draining = True
        await self._pool.close(grace_s=0.0)
        self._dispatcher.close()
        await self._home.close()

    # Facts

    @property
    def limits(self) -> str:
        """`enforced`, or `not enforced: why`."""
        return self._home.limits_text

    def replicas(self) -> dict[str, Any]:
        """Replicas and their deaths since the settings came into force, as plain data."""
        return {
            "replicas": self._pool.members(),
            "deaths": [dataclasses.asdict(death) for death in self._pool.deaths],
        }

    def gauges(self, connections: int) -> Gauges:
        """What the metrics show of this moment."""
        cache = self._cache.cache
        return Gauges(
            queue_items=self._dispatcher.waiting_items,
            unfinished_requests=self._dispatcher.unfinished,
            replicas=self._pool.states(),
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            cache_shared=self._cache.shared,
            cache_bytes=cache.bytes,
            generation=self.generation,
            connections=connections,
        )
