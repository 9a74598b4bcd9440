"""Replicas that many model versions share, under one scheduler that decides which of them is in memory where.

    join: profile in a replica of its own -> the scheduler may load it, wherever and whenever it is asked for
    leave: nobody may ask for it any more -> it is unloaded where it was
    begin: replicas that a killed server left get work, with those of the models that joined which they hold

In: cards that join and leave, settings. Out: a dispatcher that takes requests for all of them. One pool for each
kind of model, since a home runs one kind. Belongs to the event loop's thread.
"""

from __future__ import annotations

import itertools
import logging
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from serving import profiling
from serving.dispatch import BatchDone, Dispatcher, Loaded, Wanted
from serving.errors import InvalidSettings, ServingError
from serving.metrics.counters import Counters
from serving.pool import Home, Member, Pool
from serving.profiling import ModelProfile
from serving.replica.fingerprint import fingerprint
from serving.replica.left import LeftReplica
from serving.replica.wire import HeldModel
from serving.scheduling import SHARED
from serving.scheduling.seam import ModelUp
from serving.settings import ServingSettings
from serving.values import ModelCard, ModelId

log = logging.getLogger(__name__)

FIRST_CALL_S = 1e-6
"""Time for a warm-up in which nothing but the first call is made: what it costs is part of each load."""
MODELS_SHARE = 0.5
"""Of a replica's memory limit: what models may take where no budget is set. The runtime and batches need the rest."""


class _Tenant:
    """One model version of the pool."""

    __slots__ = ("card", "holders", "on_batch", "pages", "weights")

    def __init__(
        self,
        card: ModelCard,
        weights: pathlib.Path | None,
        pages: int,
        on_batch: Callable[[BatchDone], None],
    ) -> None:
        self.card = card
        self.weights = weights
        self.pages = pages
        self.on_batch = on_batch
        self.holders: set[int] = set()
        """Workers that were taken over, and hold it since before."""


class SharedPool:
    """The replicas of one kind of model."""

    is_shared = True

    def __init__(
        self,
        card: ModelCard,
        policy: str,
        settings: ServingSettings,
        home: Home,
        workers: Iterator[int],
    ) -> None:
        """Nothing is started yet.

        Args:
            card: the first model: what replicas are started for.
            policy: of its scheduler, a key of `scheduling.SHARED`.
            settings: those of the pool.
            home: where replicas live, open.
            workers: numbers for replicas that no other replica of the home has.
        """
        self.card = card
        self._settings = settings
        self._home = home
        self._workers = workers
        self._tenants: dict[ModelId, _Tenant] = {}
        self._again = itertools.count(2)
        self._profiles: dict[tuple[object, ...], ModelProfile] = {}
        self._held: dict[int, dict[int, HeldModel]] = {}
        """What workers hold that were taken over and have not begun, by the number on the wire."""
        self.dispatcher = Dispatcher(SHARED[policy](settings), on_batch=self._batch_done)
        self.counters = Counters()
        """Of replicas: their ends."""
        self.pool = Pool(home, self.dispatcher, settings, self.counters, workers, self)

    @property
    def is_empty(self) -> bool:
        """Whether no model is served by it."""
        return not self._tenants

    # Life

    async def open(self, left: list[LeftReplica] | None = None) -> None:
        """Start the replicas, or take those that a killed server has left; see `Pool.open`.

        Raises:
            ServingError: they do not become ready; nothing is left running.
        """
        try:
            taken = await self.pool.open(left)
        except BaseException:
            await self.close()
            raise
        for worker, models in taken.items():
            self._held[worker] = {held.model: held for held in models}
            for held in models:
                self.dispatcher.reserve_number(held.model)

    async def begin(self) -> None:
        """All models of the start have joined: replicas that were taken over keep these and unload the others."""
        held, self._held = self._held, {}
        for worker, models in held.items():
            loaded = [model for model, one in self._tenants.items() if worker in one.holders]
            wanted = {self.dispatcher.number(model) for model in loaded}
            await self.pool.begin(worker, loaded, [one for one in models if one not in wanted])

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learnt: bool) -> None:
        """Bring new settings into force while serving.

        Raises:
            ServingError: the old settings still serve.
        """
        for tenant in self._tenants.values():
            _check_fits(tenant.card, tenant.pages, settings)
        is_fresh = fresh or budget_of(self._settings) != budget_of(settings)
        await self.pool.apply(settings, fresh=is_fresh, keep_learnt=keep_learnt)
        self._settings = settings

    async def close(self) -> None:
        """End the replicas; whoever still waits is refused."""
        try:
            await self.pool.close(grace_s=0.0)
        finally:
            self.dispatcher.close(f"the pool of {self.card.kind} models")

    # Tenants

    async def join(
        self, card: ModelCard, settings: ServingSettings, on_batch: Callable[[BatchDone], None]
    ) -> tuple[ModelId, ModelProfile]:
        """A model may be asked for from now on; returns what the dispatcher calls it, and its profile.

        Args:
            card: the model.
            settings: its own.
            on_batch: called with each of its batches that came back.

        Raises:
            ServingError: it cannot be loaded or run, or is larger than a replica's budget.
        """
        own = {
            "model.variant": settings.model.variant,
            "batching.max_size": settings.batching.max_size,
        }
        settings = self._settings.changed(own)  # the rest is the pool's
        found = await self._profile(card, settings)
        weights = card.weights(settings.model.variant)
        holders = self._holders_of(card, weights, settings)
        if holders:  # counted as before: a measurement of memory is never the same twice
            pages = next(iter(holders.values())).pages
        else:
            pages = max(1, math.ceil(_bytes_of(card, settings, found) / page_bytes(settings)))
        _check_fits(card, pages, settings)
        model = card.id
        if model in self._tenants:  # from files that have changed, and the old one still answers
            model = ModelId(card.name, f"{card.version} again {next(self._again)}")
        tenant = self._tenants[model] = _Tenant(card, weights, pages, on_batch)
        for worker, held in holders.items():
            if held.pages == pages and self.dispatcher.reserve_number(held.model, model):
                tenant.holders.add(worker)
        most = settings.batching.max_size if found.signature.is_batched else 1
        batch_s = {size: took_s for size, took_s in found.batch_s.items() if size <= most}
        self.dispatcher.model_up(ModelUp(model, pages, found.load_s, batch_s))
        return model, found

    async def leave(self, model: ModelId) -> None:
        """A model may not be asked for any more; who waits for it is refused."""
        self.dispatcher.model_down(model)
        self._tenants.pop(model, None)

    def _holders_of(
        self, card: ModelCard, weights: pathlib.Path | None, settings: ServingSettings
    ) -> dict[int, HeldModel]:
        """Workers that hold a model since before, from the very file that it would be loaded from."""
        path = None if weights is None and card.path is None else str(weights or card.path)
        file = fingerprint(path)
        if file is None:
            return {}
        wanted = (card.name, card.version, card.kind, path, file)
        how = (settings.replica.threads, settings.accelerator.device)
        return {
            worker: held
            for worker, models in self._held.items()
            for held in models.values()
            if (held.name, held.version, held.kind, held.path, held.file) == wanted
            and (held.threads, held.device) == how
        }

    async def _profile(self, card: ModelCard, settings: ServingSettings) -> ModelProfile:
        """Of a model, or of another one from the same file under the same limits."""
        key = _file_of(card, settings) if card.path is not None else None
        known = self._profiles.get(key) if key is not None else None
        if known is not None:
            return known
        found = await profiling.profile(card, settings, self._home, self._workers)
        log.info(
            "model profiled",
            extra={
                "model": card.name,
                "version": card.version,
                "load_s": round(found.load_s, 6),
                "batch_s": {size: round(took_s, 6) for size, took_s in found.batch_s.items()},
                "memory_mb": round(found.memory_bytes / 2**20, 2),
            },
        )
        if key is not None:
            self._profiles[key] = found
        return found

    # What the pool's replicas hold

    def kept(self, settings: ServingSettings) -> Mapping[str, Any] | None:
        """What shows the next server whether a replica is as it would start it."""
        takeover_s = settings.clockwork.takeover_s
        if not takeover_s or settings.server.state_dir is None:
            return None
        replica, accelerator = settings.replica, settings.accelerator
        return {
            "takeover_s": takeover_s,
            "threads": replica.threads,
            "device": accelerator.device,
            "share": accelerator.share,
            "variant": settings.model.variant,
            "pages": budget_of(settings),
            "page_mb": settings.clockwork.page_mb,
        }

    def wanted(self, model: ModelId, member: Member) -> Wanted:
        """How a model is loaded, in the midst of serving: no more is run than its first call."""
        tenant = self._tenants[model]
        limits = member.limits
        return Wanted(
            tenant.card,
            limits.threads,
            1,
            min(limits.warmup_s, FIRST_CALL_S),
            device=member.accelerator.device,
            weights=tenant.weights,
            pages=tenant.pages,
            budget=member.pages,
        )

    def pages(self, settings: ServingSettings) -> int | None:
        """The budget."""
        return budget_of(settings)

    def loaded(self, _model: ModelId, _told: Loaded, _member: Member, *, reads_json: bool) -> bool:  # noqa: ARG002
        """Nothing follows: its profile has told all."""
        self.counters.loaded("ok")
        return False

    def failed(self, model: ModelId, error: ServingError) -> None:
        """The scheduler tries again later; who waits is refused."""
        self.counters.loaded("failed")
        log.warning("a model was not loaded", extra={"model": model.name, "error": str(error)})

    def possible(self, settings: ServingSettings) -> ServingSettings:
        """All of them."""
        return settings

    def _batch_done(self, done: BatchDone) -> None:
        self.pool.served(done.worker)
        tenant = self._tenants.get(done.model)
        if tenant is not None:
            tenant.on_batch(done)


def page_bytes(settings: ServingSettings) -> float:
    """Bytes of a page."""
    return settings.clockwork.page_mb * 2**20


def budget_of(settings: ServingSettings) -> int | None:
    """Pages of models in one replica, as settings have it; None: no limit."""
    memory_mb: float | None = settings.clockwork.memory_mb
    if memory_mb is None and settings.replica.memory_mb is not None:
        memory_mb = MODELS_SHARE * settings.replica.memory_mb
    return None if memory_mb is None else math.floor(memory_mb / settings.clockwork.page_mb)


def _check_fits(card: ModelCard, pages: int, settings: ServingSettings) -> None:
    """A model must have room in an empty replica.

    Raises:
        InvalidSettings: it has none.
    """
    budget = budget_of(settings)
    if budget is not None and pages > budget:
        raise InvalidSettings(
            f"{card.label} takes {pages} pages of {settings.clockwork.page_mb:g} MiB, and a replica's budget is "
            f"{budget} (clockwork.memory_mb): raise it, or serve the model with scheduling.policy adaptive"
        )


def _bytes_of(card: ModelCard, settings: ServingSettings, found: ModelProfile) -> int:
    """Memory of a model: what was measured, and its file's size at least."""
    weights = card.weights(settings.model.variant)
    file_bytes = weights.stat().st_size if weights is not None and weights.is_file() else 0
    return max(found.memory_bytes, file_bytes)


def _file_of(card: ModelCard, settings: ServingSettings) -> tuple[object, ...] | None:
    """What a profile depends on; None where files cannot tell that two models are the same."""
    weights = card.weights(settings.model.variant)
    if weights is None or not weights.is_file():
        return None
    seen = weights.stat()
    replica = settings.replica
    return (
        *(seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size, card.kind, card.sample),
        *(replica.cpu, replica.threads, replica.memory_mb, settings.accelerator.device),
        settings.batching.max_size,
    )
