"""Replicas that many model versions share, under one scheduler that decides which of them is in memory where.

    join: profile in a replica of its own -> the scheduler may load it, wherever and whenever it is asked for
    leave: nobody may ask for it any more -> it is unloaded where it was

In: cards that join and leave, settings. Out: a dispatcher that takes requests for all of them. One pool for each
kind of model, since a home runs one kind. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from serving import kept_profiles, profiling
from serving.dispatch import ActionEnded, BatchDone, Dispatcher, Loaded, Wanted, told_inputs
from serving.errors import InvalidSettings, ServingError
from serving.kept_profiles import KeptProfiles
from serving.metrics.counters import PoolCounters
from serving.metrics.exposition import PoolMetrics
from serving.pool import Home, Member, Pool
from serving.profiling import Measured, ModelProfile
from serving.replica.fingerprint import Identity, identity_of
from serving.scheduling import SHARED
from serving.scheduling.seam import ModelUp, Profiled
from serving.settings import ModelSettings, ServingSettings
from serving.values import ModelCard, ModelId

log = logging.getLogger(__name__)

FIRST_CALL_S = 1e-6
"""Time for a warm-up in which nothing but the first call is made: what it costs is part of each load."""
MODELS_SHARE = 0.5
"""Of a replica's memory limit: what models may take where no budget is set. The runtime and batches need the rest."""

MOST_PROFILING_S = 60.0
"""Time for measuring models anew, before other limits come into force: they wait for it."""


class _Tenant:
    """One model version of the pool."""

    __slots__ = (
        "card",
        "identity",
        "key",
        "measured",
        "model",
        "most",
        "on_batch",
        "pad_to",
        "pages",
        "profile",
        "root",
        "weights",
    )

    def __init__(
        self,
        card: ModelCard,
        settings: ServingSettings,
        root: pathlib.Path | None,
        pages: int,
        profile: ModelProfile,
        on_batch: Callable[[BatchDone], None],
        identity: Identity | None,
    ) -> None:
        self.card = card
        self.root = root
        self.model = settings.model
        self.pad_to = settings.batching.pad_to
        self.weights = card.weights(self.model.variant)
        self.most = settings.batching.max_size
        """Items of its largest batch, as its settings have them."""
        self.pages = pages
        self.profile = profile
        self.measured = Measured(profile)
        """Since it has that profile."""
        self.key: str | None = None
        """Under which the profile is kept."""
        self.identity = identity
        """Of its files, as they were when it was deployed."""
        self.on_batch = on_batch

    def settings(self, pool: ServingSettings) -> ServingSettings:
        """The pool's, and its own where these are not meant."""
        batching = {"batching.max_size": self.most, "batching.pad_to": self.pad_to}
        return dataclasses.replace(pool.changed(batching), model=self.model)

    @property
    def memory_bytes(self) -> int:
        """What it takes in a replica's memory."""
        return _memory_bytes(self.profile, self.identity)

    @property
    def batch_s(self) -> dict[int, float]:
        """Items -> seconds of the batches that may be run."""
        most = self.most if self.profile.signature.is_batched else 1
        return {size: took_s for size, took_s in self.profile.batch_s.items() if size <= most}


class SharedPool:
    """The replicas of one kind of model."""

    is_shared = True
    card = None

    def __init__(
        self,
        kind: str,
        policy: str,
        settings: ServingSettings,
        home: Home,
        workers: Iterator[int],
        profiles: KeptProfiles,
    ) -> None:
        """Nothing is started yet.

        Args:
            kind: of its models.
            policy: of its scheduler, a key of `scheduling.SHARED`.
            settings: those of the pool.
            home: where replicas live, open.
            workers: numbers for replicas that no other replica of the home has.
            profiles: what was measured before.
        """
        settings = _of_no_model(settings)
        self._kind = kind
        self._settings = settings
        self._home = home
        self._workers = workers
        self._tenants: dict[ModelId, _Tenant] = {}
        self._again = itertools.count(2)
        self._profiles = profiles
        self.dispatcher = Dispatcher(
            SHARED[policy](settings), on_batch=self._batch_done, on_action=self._action_ended
        )
        self.counters = PoolCounters()
        """Of replicas: what they did, and their ends."""
        self.pool = Pool(home, self.dispatcher, settings, self.counters, workers, self)

    @property
    def is_empty(self) -> bool:
        """Whether no model is served by it."""
        return not self._tenants

    # Life

    async def open(self) -> None:
        """Start the replicas.

        Raises:
            ServingError: they do not become ready; nothing is left running.
        """
        try:
            await self.pool.open()
        except BaseException:
            await self.close()
            raise

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learnt: bool) -> None:
        """Bring new settings into force while serving.

        Where replicas get other limits, models are measured under these first. Their pages stay: how much
        memory a model needs hardly depends on limits.

        Raises:
            ServingError: the old settings still serve.
        """
        settings = _of_no_model(settings)
        for tenant in self._tenants.values():
            _check_fits(tenant.card, tenant.pages, settings)
        changed = {}
        if _limits(self._settings) != _limits(settings):
            changed = await self._measured_anew(settings)
        is_fresh = fresh or budget_of(self._settings) != budget_of(settings)
        await self.pool.apply(settings, fresh=is_fresh, keep_learnt=keep_learnt)
        has_other_limits = _limits(self._settings) != _limits(settings)
        self._settings = settings
        for model, tenant in self._tenants.items():
            if model in changed:
                tenant.key, tenant.profile = changed[model]
                load_s = tenant.profile.load_s
                self.dispatcher.profiled(Profiled(model, load_s, tenant.batch_s))
            elif has_other_limits:
                tenant.key = (
                    None  # what is measured from now on is of other limits than its profile
                )
            if has_other_limits:
                tenant.measured = Measured(tenant.profile)

    async def _measured_anew(
        self, settings: ServingSettings
    ) -> dict[ModelId, tuple[str | None, ModelProfile]]:
        """Profiles of the models under other limits, with their keys, as far as there is time."""
        until_s = time.monotonic() + MOST_PROFILING_S
        changed: dict[ModelId, tuple[str | None, ModelProfile]] = {}
        for model, tenant in list(self._tenants.items()):
            wanted = tenant.settings(settings)
            key = await self._key_of(tenant.card, wanted, tenant.identity)
            if self._profiles.of(key) is None and time.monotonic() > until_s:
                log.warning(
                    "not measured under the new limits, for others took too long",
                    extra={"model": model.name, "version": model.version},
                )
                continue
            found = await self._profile(tenant.card, wanted, key, tenant.identity)
            changed[model] = key, found
        return changed

    async def close(self) -> None:
        """End the replicas; whoever still waits is refused."""
        try:
            await self.pool.close(grace_s=0.0)
        finally:
            self.dispatcher.close(f"the pool of {self._kind} models")

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
            "batching.max_size": settings.batching.max_size,
            "batching.pad_to": settings.batching.pad_to,
        }
        # The rest is the pool's.
        settings = dataclasses.replace(self._settings.changed(own), model=settings.model)
        weights = card.weights(settings.model.variant)
        identity = await asyncio.to_thread(identity_of, card.kind, weights)
        key = await self._key_of(card, settings, identity)
        found = await self._profile(card, settings, key, identity)
        pages = max(1, math.ceil(_memory_bytes(found, identity) / page_bytes(settings)))
        _check_fits(card, pages, settings)
        root = await self._home.lend(card)
        model = card.id
        if model in self._tenants or self.dispatcher.has_numbered(model):
            # The old one still answers, or is still to be unloaded: what it is called is its own.
            model = ModelId(card.name, f"{card.version} again {next(self._again)}")
        tenant = _Tenant(card, settings, root, pages, found, on_batch, identity)
        self._tenants[model] = tenant
        tenant.key = key
        self.dispatcher.lay_out(model, found.signature)
        self.dispatcher.model_up(ModelUp(model, pages, found.load_s, tenant.batch_s))
        return model, found

    def facts_of(self, model: ModelId) -> dict[str, Any]:
        """What is known of a model, for people: its profile, its memory, and the replicas that have it in memory."""
        tenant = self._tenants[model]
        held = self.dispatcher.held()
        replicas = sorted(worker for worker, models in held.items() if model in models)
        return {
            "load_s": round(tenant.measured.taught().load_s, 6),
            "memory_mb": round(tenant.memory_bytes / 2**20, 2),
            "pages": tenant.pages,
            "in_memory": bool(replicas),
            "replicas": replicas,
            "profile": tenant.profile.facts(),
        }

    def most_items(self, model: ModelId) -> int | None:
        """Items of the largest batch of a model that was measured; None: it takes one request at a time."""
        profile = self._tenants[model].profile
        return max(profile.batch_s) if profile.signature.is_batched else None

    def set_most(self, model: ModelId, most: int) -> None:
        """Another largest batch of a model, as far as it was measured."""
        tenant = self._tenants[model]
        before = tenant.batch_s
        tenant.most = most
        if tenant.batch_s != before:
            self.dispatcher.profiled(Profiled(model, tenant.profile.load_s, tenant.batch_s))

    async def leave(self, model: ModelId) -> None:
        """A model may not be asked for any more; who waits for it is refused."""
        self.dispatcher.model_down(model)
        tenant = self._tenants.pop(model, None)
        if tenant is None:
            return
        taught = tenant.measured.taught()
        if taught is not tenant.profile:
            await self._profiles.keep(tenant.key, taught)
        await self._home.take_back(tenant.root)

    async def _profile(
        self,
        card: ModelCard,
        settings: ServingSettings,
        key: str | None,
        identity: Identity | None,
    ) -> ModelProfile:
        """Of a model, or of another one of the same content under the same limits, now or before a restart."""
        known = self._profiles.of(key)
        if known is not None and await asyncio.to_thread(_still_holds, known):
            return known
        digest = _digest_of(identity)
        found = await profiling.profile(card, settings, self._home, self._workers, digest=digest)
        log.info(
            "model profiled",
            extra={
                "model": card.name,
                "version": card.version,
                **found.facts(),
                "memory_mb": round(found.memory_bytes / 2**20, 2),
            },
        )
        # Else another file may have been measured.
        if identity is not None and identity.still_holds():
            await self._profiles.keep(key, found)
        return found

    async def _key_of(
        self, card: ModelCard, settings: ServingSettings, identity: Identity | None
    ) -> str | None:
        """Under which its profile is kept."""
        software = self._home.software
        return await asyncio.to_thread(kept_profiles.key_of, card, settings, identity, software)

    # What the pool's replicas hold

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
            root=tenant.root,
            pages=tenant.pages,
            budget=member.pages,
            digest=_digest_of(tenant.identity),
            inputs=told_inputs(
                tenant.card,
                tenant.model,
                pad_to=tenant.pad_to,
                known=tenant.profile.signature,
            ),
        )

    def pages(self, settings: ServingSettings) -> int | None:
        """The budget."""
        return budget_of(settings)

    def loaded(self, model: ModelId, told: Loaded, _member: Member, *, reads_json: bool) -> bool:  # noqa: ARG002
        """Its profile has told all."""
        tenant = self._tenants.get(model)
        if tenant is not None and told.load_s is not None:
            tenant.measured.load(told.load_s)
        return False

    def failed(self, model: ModelId, error: ServingError) -> None:
        """The scheduler tries again later; who waits is refused."""
        log.warning("a model was not loaded", extra={"model": model.name, "error": str(error)})

    def possible(self, settings: ServingSettings) -> ServingSettings:
        """All of them."""
        return settings

    def members(self) -> list[dict[str, Any]]:
        """Every replica as plain data, with the models that it has in memory."""
        held = self.dispatcher.held()
        return [
            {**member, "models": self._named(held.get(member["worker"], ()))}
            for member in self.pool.members()
        ]

    def _named(self, models: Iterable[ModelId]) -> list[dict[str, str]]:
        """Models as they are served, and not as the dispatcher calls them."""
        ids = [self._tenants[model].card.id for model in models if model in self._tenants]
        return [{"model": name, "version": version} for name, version in sorted(ids)]

    def metrics(self) -> PoolMetrics:
        """What the metrics show of this moment."""
        pages = {model: tenant.pages for model, tenant in self._tenants.items()}
        return PoolMetrics(
            kind=self._kind,
            counters=self.counters,
            models=len(pages),
            replicas=self.pool.states(),
            held={
                worker: (len(models), sum(pages.get(model, 0) for model in models))
                for worker, models in self.dispatcher.held().items()
            },
            budget=budget_of(self._settings),
        )

    def _action_ended(self, ended: ActionEnded) -> None:
        self.counters.ended(ended.kind.value, ended.outcome, ended.expected_s, ended.took_s)

    def _batch_done(self, done: BatchDone) -> None:
        self.pool.served(done.worker)
        tenant = self._tenants.get(done.model)
        if tenant is not None:
            tenant.measured.batch(done.items, done.times)
            tenant.on_batch(done)


def _of_no_model(settings: ServingSettings) -> ServingSettings:
    """Those of a pool: with what a model is loaded is each model's own, and no reason for other replicas."""
    return dataclasses.replace(settings.changed({"batching.pad_to": None}), model=ModelSettings())


def page_bytes(settings: ServingSettings) -> float:
    """Bytes of a page."""
    return settings.clockwork.page_mb * 2**20


def budget_of(settings: ServingSettings) -> int | None:
    """Pages of models in one replica, as settings have it; None: no limit."""
    memory_mb: float | None = settings.clockwork.memory_mb
    if memory_mb is None and settings.replica.memory_mb is not None:
        memory_mb = MODELS_SHARE * settings.replica.memory_mb
    return None if memory_mb is None else math.floor(memory_mb / settings.clockwork.page_mb)


def _memory_bytes(profile: ModelProfile, identity: Identity | None) -> int:
    """What a model takes: as measured, and its files at least."""
    return max(profile.memory_bytes, 0 if identity is None else identity.size)


def _digest_of(identity: Identity | None) -> str | None:
    """Of a model's one file, of which there may be an optimised copy; None: there is none that holds everything."""
    return identity.digest if identity is not None and identity.is_whole else None


def _still_holds(profile: ModelProfile) -> bool:
    """Whether what it measured the loads of is there: a copy may be removed at any time."""
    optimised = profile.told.optimised
    try:
        return optimised is None or pathlib.Path(optimised).is_dir()
    except OSError:  # a replica may tell anything
        return False


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


def _limits(settings: ServingSettings) -> tuple[object, ...]:
    """What durations depend on, of the settings of a pool."""
    replica, accelerator = settings.replica, settings.accelerator
    return (
        *(replica.cpu, replica.threads, replica.memory_mb),
        *(accelerator.device, accelerator.share, accelerator.clock_mhz),
    )
