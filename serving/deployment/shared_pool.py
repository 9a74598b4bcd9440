"""Pool of replicas shared by models of one kind; its scheduler decides which are in memory.

Not thread-safe.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from serving.deployment import profile_store, profiler
from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec
from serving.deployment.dispatch.request_table import BatchDone
from serving.deployment.pool import Member, Pool, ReplicaContents, Spawner
from serving.deployment.profile_store import ProfileStore
from serving.deployment.profiler import ModelProfile, RecentDurations
from serving.deployment.shared_model import (
    SharedModel,
    budget_of,
    check_fits,
    digest_of,
    memory_bytes_of,
    still_holds,
    with_own,
)
from serving.errors import ServingError
from serving.metrics.counters import PoolCounters
from serving.metrics.exposition import PoolMetrics
from serving.model_spec import ModelSpec
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import ModelUp, Profiled
from serving.settings import ServingSettings
from serving.settings.replica import ModelSettings
from serving.system.fingerprint import Fingerprint, fingerprint_of
from serving.values import ModelId

log = logging.getLogger(__name__)

MAX_PROFILING_S = 60.0


class SharedPool(ReplicaContents):
    """Replicas shared by the models of one kind."""

    is_shared = True

    def __init__(
        self,
        kind: str,
        settings: ServingSettings,
        spawner: Spawner,
        workers: Iterator[int],
        profiles: ProfileStore,
    ) -> None:
        """Start nothing yet; `spawner` must be open, and `workers` must yield ids new to it."""
        settings = with_own(settings, ModelSettings(), pad_to=None)
        self.kind = kind
        self._settings = settings
        self._spawner = spawner
        self._workers = workers
        self._tenants: dict[ModelId, SharedModel] = {}
        self._again = itertools.count(2)
        self._profiles = profiles
        self.counters = PoolCounters()
        self.dispatcher = Dispatcher(
            ClockworkScheduler.of(settings),
            on_batch=self._batch_done,
            on_action=self.counters.record_action,
        )
        on_death = self.counters.on_replica_death
        self.pool = Pool(spawner, self.dispatcher, settings, on_death, workers, self)

    @property
    def is_empty(self) -> bool:
        """Whether the pool serves no model."""
        return not self._tenants

    # Life

    async def open(self) -> None:
        """Start the replicas; on failure, end all of them and raise a `ServingError`."""
        try:
            await self.pool.open()
        except BaseException:
            await self.close()
            raise

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        """Apply new settings while serving; if replica limits change, first measure the models.

        Raises:
            ServingError: the settings cannot be applied; the old ones stay in force.
        """
        settings = with_own(settings, ModelSettings(), pad_to=None)
        for tenant in self._tenants.values():
            check_fits(tenant.spec, tenant.pages, settings)
        has_other_limits = _limits(self._settings) != _limits(settings)
        changed = await self._measured_anew(settings) if has_other_limits else {}
        is_fresh = fresh or budget_of(self._settings) != budget_of(settings)
        await self.pool.apply(settings, fresh=is_fresh, keep_learned=keep_learned)
        self._settings = settings
        for model, tenant in self._tenants.items():
            if model in changed:
                tenant.key, tenant.profile = changed[model]
                self._announce_profile(model, tenant)
            elif has_other_limits:
                tenant.key = None  # later measurements are made under other limits
            if has_other_limits:
                tenant.measured = RecentDurations(tenant.profile)

    async def _measured_anew(
        self, settings: ServingSettings
    ) -> dict[ModelId, tuple[str | None, ModelProfile]]:
        until_s = time.monotonic() + MAX_PROFILING_S
        changed: dict[ModelId, tuple[str | None, ModelProfile]] = {}
        for model, tenant in list(self._tenants.items()):
            wanted = with_own(settings, tenant.model, most=tenant.most, pad_to=tenant.pad_to)
            key = await self._key_of(tenant.spec, wanted, tenant.identity)
            if self._profiles.of(key) is None and time.monotonic() > until_s:
                log.warning(
                    "not measured under the new limits, because other models took too long",
                    extra={"model": model.name, "version": model.version},
                )
                continue
            found = await self._profile(tenant.spec, wanted, key, tenant.identity)
            changed[model] = key, found
        return changed

    async def close(self) -> None:
        """End the replicas and reject waiting requests."""
        try:
            await self.pool.close()
        finally:
            self.dispatcher.close(f"the pool of {self.kind} models")

    # Shared models

    async def join(
        self, spec: ModelSpec, settings: ServingSettings, on_batch: Callable[[BatchDone], None]
    ) -> tuple[ModelId, ModelProfile]:
        """Accept requests for a model; return its id in the dispatcher, and its profile.

        Raises:
            ServingError: the model cannot be loaded or run, or exceeds a replica's page budget.
        """
        batching = settings.batching
        settings = with_own(
            self._settings, settings.model, most=batching.max_size, pad_to=batching.pad_to
        )
        weights = spec.weights(settings.model.variant)
        identity = await asyncio.to_thread(fingerprint_of, spec.kind, weights)
        key = await self._key_of(spec, settings, identity)
        found = await self._profile(spec, settings, key, identity)
        page_bytes = settings.clockwork.page_mb * 2**20
        pages = max(1, math.ceil(memory_bytes_of(found, identity) / page_bytes))
        check_fits(spec, pages, settings)
        root = await self._spawner.stage(spec)
        model = spec.id
        if model in self._tenants or self.dispatcher.has_numbered(model):
            # The old model still runs or is being unloaded under its own id.
            model = ModelId(spec.name, f"{spec.version} again {next(self._again)}")
        tenant = self._tenants[model] = SharedModel(
            spec=spec,
            model=settings.model,
            pad_to=batching.pad_to,
            most=batching.max_size,
            root=root,
            pages=pages,
            profile=found,
            on_batch=on_batch,
            identity=identity,
            key=key,
        )
        self.dispatcher.set_item_axes(model, found.signature)
        self.dispatcher.model_up(ModelUp(model, pages, found.load_s, tenant.batch_s))
        return model, found

    def describe(self, model: ModelId) -> dict[str, Any]:
        """See `SharedModel.facts`."""
        held = self.dispatcher.loaded_models()
        replicas = sorted(worker for worker, models in held.items() if model in models)
        return self._tenants[model].facts(replicas)

    def max_items(self, model: ModelId) -> int | None:
        """Return the largest measured batch size, or None if the model is unbatched."""
        profile = self._tenants[model].profile
        return max(profile.batch_s) if profile.signature.is_batched else None

    def set_most(self, model: ModelId, most: int) -> None:
        """Set the maximum size of a model's batches; only measured sizes are used."""
        tenant = self._tenants[model]
        before = tenant.batch_s
        tenant.most = most
        if tenant.batch_s != before:
            self._announce_profile(model, tenant)

    def _announce_profile(self, model: ModelId, tenant: SharedModel) -> None:
        self.dispatcher.notify(Profiled(model, tenant.profile.load_s, tenant.batch_s))

    async def leave(self, model: ModelId) -> None:
        """Remove a model from the pool, and reject its requests."""
        self.dispatcher.model_down(model)
        tenant = self._tenants.pop(model, None)
        if tenant is None:
            return
        taught = tenant.measured.taught()
        if taught is not tenant.profile:
            await self._profiles.keep(tenant.key, taught)
        await self._spawner.unstage(tenant.root)

    async def _profile(
        self,
        spec: ModelSpec,
        settings: ServingSettings,
        key: str | None,
        identity: Fingerprint | None,
    ) -> ModelProfile:
        known = self._profiles.of(key)
        if known is not None and await asyncio.to_thread(still_holds, known):
            return known
        digest = digest_of(identity)
        found = await profiler.profile(spec, settings, self._spawner, self._workers, digest=digest)
        log.info(
            "model profiled",
            extra={
                "model": spec.name,
                "version": spec.version,
                **found.facts(),
                "memory_mb": round(found.memory_bytes / 2**20, 2),
            },
        )
        # Otherwise another file may have been measured.
        if identity is not None and identity.still_holds():
            await self._profiles.keep(key, found)
        return found

    async def _key_of(
        self, spec: ModelSpec, settings: ServingSettings, identity: Fingerprint | None
    ) -> str | None:
        software = self._spawner.image_id
        return await asyncio.to_thread(profile_store.key_of, spec, settings, identity, software)

    # Contents of the replicas

    def make_load_spec(self, model: ModelId, member: Member) -> LoadSpec:
        """See `SharedModel.load_spec`."""
        return self._tenants[model].load_spec(member)

    def pages(self, settings: ServingSettings) -> int | None:
        """Return a replica's page budget."""
        return budget_of(settings)

    def on_loaded(self, model: ModelId, told: LoadReport, _member: Member) -> bool:
        """Record the duration of a load."""
        tenant = self._tenants.get(model)
        if tenant is not None and told.load_s is not None:
            tenant.measured.load(told.load_s)
        return False

    def on_load_failed(self, model: ModelId, error: ServingError) -> None:
        """Log the failure; the scheduler will retry."""
        log.warning("a model was not loaded", extra={"model": model.name, "error": str(error)})

    def members(self) -> list[dict[str, Any]]:
        """Return facts about each replica, with its loaded models."""
        held = self.dispatcher.loaded_models()
        return [
            {**member, "models": self._served_names(held.get(member["worker"], ()))}
            for member in self.pool.members()
        ]

    def _served_names(self, models: Iterable[ModelId]) -> list[dict[str, str]]:
        ids = [self._tenants[model].spec.id for model in models if model in self._tenants]
        return [{"model": name, "version": version} for name, version in sorted(ids)]

    def metrics(self) -> PoolMetrics:
        """Return the current metrics."""
        pages = {model: tenant.pages for model, tenant in self._tenants.items()}
        loaded = self.dispatcher.loaded_models()
        return PoolMetrics(
            kind=self.kind,
            actions=self.counters.actions,
            replicas=self.pool.states(),
            node_replicas=self.pool.on_nodes(),
            replica_deaths=self.counters.replica_deaths,
            load_seconds=self.counters.load_s,
            overestimate_seconds=self.counters.over_s,
            underestimate_seconds=self.counters.under_s,
            models=len(pages),
            budget_pages=budget_of(self._settings),
            loaded_models={worker: len(models) for worker, models in loaded.items()},
            loaded_pages={
                worker: sum(pages.get(model, 0) for model in models)
                for worker, models in loaded.items()
            },
        )

    def _batch_done(self, done: BatchDone) -> None:
        tenant = self._tenants.get(done.model)
        if tenant is not None:
            tenant.measured.batch(done.items, done.times)
            tenant.on_batch(done)


def _limits(settings: ServingSettings) -> tuple[object, ...]:
    replica, accelerator = settings.replica, settings.accelerator
    return (
        *(replica.cpu, replica.threads, replica.memory_mb),
        *(accelerator.device, accelerator.share, accelerator.clock_mhz),
    )
