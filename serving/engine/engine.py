"""The engine: resolves requests to deployments; changes models, versions and settings live.

    deploy:  start replicas -> load and warm up -> register -> take traffic
    retire:  unregister -> drain -> end replicas
    apply:   per model: replicas and limits -> scheduler -> cache; then the generation

Requests are resolved and submitted in one step, so a version switch loses none. Changes are
serialised; draining blocks none. All methods belong to the event loop's thread.
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
from serving.deployment.deployment import Deployment, InferRequest
from serving.deployment.profile_store import ProfileStore
from serving.deployment.settings_warnings import settings_warnings
from serving.deployment.shadow import ShadowedDeployment
from serving.deployment.shared_pool import SharedPool
from serving.deployment.shared_pools import SharedPools
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.engine.versions import STABLE, ModelEntry, VersionRegistry
from serving.errors import (
    AcceleratorUnavailable,
    InvalidRequest,
    NotReady,
    ServingError,
    UnknownModel,
)
from serving.metrics.exposition import Gauges, ModelMetrics, Snapshot
from serving.model_spec import ModelSpec
from serving.response_handler import RequestHandle, ResponseHandler
from serving.settings import ServingSettings
from serving.values import ModelId, Signature

log = logging.getLogger(__name__)

_VERSION = re.compile(r"[A-Za-z0-9._+:~-]{1,128}")

RETIRE_S = 30.0


class DeploymentHandle(Protocol):
    """Interface of a deployment, or of a shadowed one, for requests."""

    @property
    def id(self) -> ModelId:
        """Name and version."""
        ...

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""
        ...

    @property
    def codecs(self) -> dict[str, Any]:
        """Objects that protocols derive from the signature, by protocol."""
        ...

    def submit(
        self, query: InferRequest, handler: ResponseHandler, flow: str = ""
    ) -> RequestHandle:
        """Take a request; the response handler is called once, later, in the event loop."""
        ...

    def count_response(self, status: int, seconds: float) -> None:
        """Count a response."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """Settings that came into force."""

    generation: int
    settings: ServingSettings
    seconds: float


class Engine:
    """Serves models under live settings; a failed change leaves the old state in force."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        settings: ServingSettings,
        spawners: SpawnerRegistry,
        clock: ClockLock | None = None,
        profiles: ProfileStore | None = None,
    ) -> None:
        """Start nothing yet; `clock` locks the GPU's clock from `open` to `close`."""
        self.settings = settings
        self.generation = 1
        self._specs = tuple(specs)
        self._spawners = spawners
        self._clock = clock or ClockLock()
        self._catalogue: VersionRegistry[Deployment] = VersionRegistry()
        self._loading: set[ModelId] = set()
        self._failed: dict[ModelId, str] = {}
        self.resolve_cache: dict[tuple[str, str | None], DeploymentHandle] = {}
        """Cache of `resolve`, always the same object, which the routes read first."""
        self._changing = asyncio.Lock()
        self._out_of_sync: set[Deployment | SharedPool] = set()
        self._pools = SharedPools(spawners, ProfileStore() if profiles is None else profiles)
        self._endings: dict[asyncio.Task[None], Deployment] = {}
        self.editing = asyncio.Lock()
        """Held while settings are read, changed and applied."""
        self._draining = False
        self.unknown_model_responses: dict[int, int] = {}

    # Requests

    def ready(self) -> bool:
        """Whether models are served, and all can respond."""
        served = self._catalogue.all()
        return not self._draining and bool(served) and all(one.ready for one in served)

    def models(self) -> tuple[ModelId, ...]:
        """Served versions."""
        return tuple(served.id for served in self._catalogue.all())

    def resolve(self, name: str, version: str | None) -> DeploymentHandle:
        """Deployment for a name and version or label, drawn anew under a split.

        Raises:
            UnknownModel: no such name, version or label.
            NotReady: its first load is running.
        """
        known = self.resolve_cache.get((name, version))
        if known is not None:
            return known
        if name not in self._catalogue.entries and any(name == one.name for one in self._loading):
            raise NotReady(f"model {name!r} is not loaded yet; query /v2/health/ready")
        entry = self._catalogue.entry(name)
        served = entry.of(version, random.random())  # noqa: S311 - it guards nothing
        if version is None and entry.shadow is not None and served.id.version == entry.current:
            return ShadowedDeployment(served, entry.versions[entry.shadow])
        if version is not None or not entry.shares:
            self.resolve_cache[name, version] = served
        return served

    def count_unknown_model(self, status: int) -> None:
        """Count a response for an unknown model."""
        self.unknown_model_responses[status] = self.unknown_model_responses.get(status, 0) + 1

    def model_ready(self, name: str, version: str | None) -> bool:
        """Whether a model can respond.

        Raises:
            UnknownModel: no such name, version or label.
        """
        try:
            self.resolve(name, version)
        except NotReady:
            return False
        entry = self._catalogue.entry(name)
        wanted = entry.current if version is None else entry.resolve_version(version)
        return not self._draining and entry.versions[wanted].ready

    # Models and versions

    def entry(self, name: str) -> ModelEntry[Deployment]:
        """Versions, labels, shares and shadow of a model.

        Raises:
            UnknownModel: no such name.
        """
        return self._catalogue.entry(name)

    def versions(self, name: str) -> tuple[str, ...]:
        """A model's served versions.

        Raises:
            UnknownModel: no such name.
        """
        return tuple(self._catalogue.entry(name).versions)

    def resolve_label(self, name: str, label: str) -> str | None:
        """Version of a label; None: unknown model or label."""
        entry = self._catalogue.entries.get(name)
        if entry is None:
            return None
        return entry.labels.get(label, entry.current if label == STABLE else None)

    def states(self) -> dict[ModelId, tuple[str, str]]:
        """State of every known version, and why it failed.

        During a reload a served version keeps its state; a reason beside it means the reload
        failed.
        """
        states = dict.fromkeys(self._loading, ("loading", ""))
        states |= {id_: ("failed", why) for id_, why in self._failed.items()}
        return states | {
            served.id: ("ready" if served.ready else "unavailable", self._failed.get(served.id, ""))
            for served in self._catalogue.all()
        }

    def note_failure(self, id_: ModelId, why: str) -> None:
        """List a version as failed."""
        self._failed[id_] = why

    def forget_failure(self, id_: ModelId) -> None:
        """Unlist a failed version."""
        self._failed.pop(id_, None)

    async def deploy(self, spec: ModelSpec, *, current: bool = True) -> None:
        """Load a version; it takes traffic once warm.

        Raises:
            InvalidRequest: the version exists, or its name is invalid.
            ServingError: loading failed.
        """
        async with self._changing:
            await self._deploy(spec, current=current)

    async def _deploy(self, spec: ModelSpec, *, current: bool) -> None:
        self._check_serving()
        if not _VERSION.fullmatch(spec.version):
            raise InvalidRequest(
                f"version {spec.version!r} of model {spec.name!r}: expected 1 to 128 letters, digits and . _ + : ~ -"
            )
        entry = self._catalogue.entries.get(spec.name)
        if entry is not None and spec.version in entry.versions:
            raise InvalidRequest(f"model {spec.name!r} already has a version {spec.version!r}")
        served = await self._open_deployment(spec)
        self._catalogue.add(spec.name, spec.version, served, current=current)
        self.resolve_cache.clear()

    async def _open_deployment(self, spec: ModelSpec) -> Deployment:
        began_s = time.monotonic()
        self._loading.add(spec.id)
        self.forget_failure(spec.id)
        try:
            spawner = await self._spawners.of(spec)
            shared = await self._pools.of(spec, spawner, self.settings)
            settings = self.settings.of(spec.name)
            served = Deployment(spec, settings, spawner, self._spawners.workers, shared)
            await served.open()
        except ServingError as error:
            self.note_failure(spec.id, str(error))
            raise
        finally:
            self._loading.discard(spec.id)
            await self._pools.give_up()
        log.info(
            "model loaded",
            extra={
                "model": spec.name,
                "version": spec.version,
                "seconds": round(time.monotonic() - began_s, 4),
                **served.last_load,
            },
        )
        return served

    async def redeploy(self, spec: ModelSpec) -> None:
        """Reload a version from changed files; its old deployment drains.

        Raises:
            UnknownModel: no such name or version.
            ServingError: loading failed.
        """
        async with self._changing:
            self._check_serving()
            entry = self._catalogue.entry(spec.name)
            old = entry.versions[entry.resolve_version(spec.version)]
            new = await self._open_deployment(spec)
            entry.versions[spec.version] = new
            self.resolve_cache.clear()
            self._end(old, RETIRE_S)

    async def withdraw(
        self, name: str, version: str, *, within_s: float
    ) -> asyncio.Task[None] | None:
        """Unregister a version, which is drained for `within_s` at most.

        Other changes do not wait. None if the version was only listed as failed.

        Raises:
            UnknownModel: no such name or version.
            InvalidRequest: requests without a version go to it, and others exist.
        """
        async with self._changing:
            try:
                served = self._catalogue.remove(name, version)
            except UnknownModel:
                if self._failed.pop(ModelId(name, version), None) is None:
                    raise
                return None
            self._failed.pop(served.id, None)
            self.resolve_cache.clear()
            return self._end(served, within_s)

    async def retire_model(self, name: str, *, within_s: float) -> None:
        """Withdraw all versions of a model; return when drained.

        Raises:
            UnknownModel: no such name.
        """
        async with self._changing:
            all_served = self._catalogue.remove_all(name)
            for served in all_served:
                self._failed.pop(served.id, None)
            self.resolve_cache.clear()
            endings = [self._end(served, within_s) for served in all_served]
        await asyncio.gather(*map(asyncio.shield, endings))

    def _end(self, served: Deployment, within_s: float) -> asyncio.Task[None]:
        ending = asyncio.create_task(
            self._drain_and_close(served, within_s), name=f"end {served.id}"
        )
        self._endings[ending] = served
        ending.add_done_callback(self._endings.pop)
        return ending

    async def _drain_and_close(self, served: Deployment, within_s: float) -> None:
        name, version = served.id
        try:
            if not await served.drain(within_s):
                log.warning("not drained in time", extra={"model": name, "version": version})
        finally:
            try:
                await served.close()
                async with self._changing:
                    await self._pools.give_up()
            except Exception:  # perhaps nobody awaits this task
                log.exception("a version has not ended", extra={"model": name, "version": version})

    def set_version(self, name: str, version: str) -> None:
        """Set the current version.

        Raises:
            UnknownModel: no such name, version or label.
        """
        self._catalogue.set_current(name, version)
        self.resolve_cache.clear()

    def roll_back(self, name: str) -> str:
        """Make the previous version current, and return it.

        Raises:
            UnknownModel: no such name.
            InvalidRequest: no previous version is loaded.
        """
        entry = self._catalogue.entry(name)
        if entry.previous is None:
            raise InvalidRequest(f"model {name!r} has no loaded version to go back to")
        self.set_version(name, entry.previous)
        return entry.current

    def restore(self, name: str, past: Mapping[str, Any]) -> None:
        """Restore saved decisions; raises as `VersionRegistry.restore`."""
        self._catalogue.restore(name, past)
        self.resolve_cache.clear()

    def set_label(self, name: str, label: str, version: str | None) -> None:
        """Point a label to a version, or remove it; raises as `VersionRegistry.set_label`."""
        self._catalogue.set_label(name, label, version)
        self.resolve_cache.clear()

    def set_shares(self, name: str, shares: Mapping[str, float]) -> None:
        """Split the traffic; raises as `VersionRegistry.set_shares`."""
        self._catalogue.set_shares(name, shares)
        self.resolve_cache.clear()

    def set_shadow(self, name: str, version: str | None) -> None:
        """Set the current version's shadow; raises as `VersionRegistry.set_shadow`."""
        self._catalogue.set_shadow(name, version)
        self.resolve_cache.clear()

    # Settings

    async def apply(
        self, settings: ServingSettings, *, fresh: bool = False, keep_learned: bool = False
    ) -> ApplyResult:
        """Apply settings while serving; no request fails.

        Returns when limits have been read back and replicas are ready. What was learned (cache,
        back-off, the scheduler's estimates) is reset, as by a new start; `keep_learned` keeps it.
        `fresh` restarts every replica. Listener settings must be unchanged.

        Raises:
            ServingError: the settings cannot be applied.
        """
        async with self._changing:
            began_s = time.monotonic()
            self._check_serving()
            changed: list[Deployment] = []
            changed_pools: list[SharedPool] = []
            try:
                await self._hold_clock(settings)  # first: what starts now is measured under it
                for shared in self._pools:
                    changed_pools.append(shared)
                    await shared.apply(settings.of(""), fresh=fresh, keep_learned=keep_learned)
                for served in self._catalogue.all():
                    wanted = settings.of(served.id.name)
                    await served.apply(wanted, fresh=fresh, keep_learned=keep_learned)
                    changed.append(served)
            except BaseException:
                await self._put_back(changed, changed_pools)
                raise
            self.settings = settings
            self._out_of_sync.clear()
            self.generation += 1
            seconds = time.monotonic() - began_s
            log.info(
                "settings applied",
                extra={"generation": self.generation, "seconds": round(seconds, 4)},
            )
            return ApplyResult(generation=self.generation, settings=settings, seconds=seconds)

    async def _hold_clock(self, settings: ServingSettings) -> None:
        clock_mhz = settings.accelerator.clock_mhz
        if clock_mhz is None and self._clock.clock_mhz is None:
            return
        try:
            await asyncio.to_thread(self._clock.hold, clock_mhz)
        except AcceleratorUnavailable as error:
            raise AcceleratorUnavailable(f"accelerator.clock_mhz = {clock_mhz}: {error}") from error

    async def _put_back(
        self, changed: Sequence[Deployment], changed_pools: Sequence[SharedPool]
    ) -> None:
        self._out_of_sync |= {*changed, *changed_pools}  # each until it is restored
        try:
            await self._hold_clock(self.settings)
        except ServingError as error:
            log.error("the GPU's clock cannot be restored", extra={"error": str(error)})
        for shared in changed_pools:
            try:
                await shared.apply(self.settings.of(""), fresh=False, keep_learned=True)
            except ServingError as error:
                log.error(
                    "settings of shared replicas cannot be restored", extra={"error": str(error)}
                )
            else:
                self._out_of_sync.discard(shared)
        for served in changed:
            settings = self.settings.of(served.id.name)
            try:
                await served.apply(settings, fresh=False, keep_learned=True)
            except ServingError as error:
                log.error(
                    "settings cannot be restored",
                    extra={"model": served.id.name, "error": str(error)},
                )
            else:
                self._out_of_sync.discard(served)

    def out_of_sync(self) -> list[dict[str, Any]]:
        """What could not be restored to the settings in force."""
        models = [
            {"name": served.id.name, "version": served.id.version}
            for served in self._catalogue.all()
            if served in self._out_of_sync
        ]
        pools = [{"pool": shared.kind} for shared in self._pools if shared in self._out_of_sync]
        return [*models, *pools]

    def _check_serving(self) -> None:
        if self._draining:
            raise NotReady("the server is stopping; models and settings can no longer change")

    # Life

    async def open(self) -> None:
        """Load the first models.

        Raises:
            ServingError: one cannot be served; nothing is left running.
        """
        try:
            await self._hold_clock(self.settings)
            for spec in self._specs:
                await self.deploy(spec)
        except BaseException:
            await self.close()
            raise

    def drain(self) -> None:
        """Stop being ready; in-flight requests still run."""
        self._draining = True

    @property
    def inflight_count(self) -> int:
        """In-flight requests."""
        served = [*self._catalogue.all(), *self._endings.values()]
        return sum(one.inflight_count for one in served)

    async def close(self) -> None:
        """End replicas and spawners; waiting requests are rejected."""
        self._draining = True
        endings = dict(self._endings)
        for ending in endings:
            ending.cancel()
        await asyncio.gather(*endings, return_exceptions=True)
        # A task cancelled before it began has ended nothing.
        served = [*self._catalogue.all(), *endings.values()]
        async with contextlib.AsyncExitStack() as last:
            last.push_async_callback(asyncio.to_thread, self._clock.close)
            last.push_async_callback(self._spawners.close)
            for shared in self._pools:
                last.push_async_callback(shared.close)
            await asyncio.gather(*(one.close() for one in served))

    # Facts

    @property
    def limits(self) -> str:
        """Resource limits: `enforced`, or `not enforced: why`."""
        return self._spawners.limits_text

    def notes(self) -> list[str]:
        """Warning for every setting without full effect."""
        return settings_warnings(self.settings, self._catalogue.all())

    def deployments(self) -> tuple[Deployment, ...]:
        """All deployments."""
        return self._catalogue.all()

    def replicas(self) -> dict[str, Any]:
        """Replicas, and deaths since the last change of settings."""
        replicas: list[dict[str, Any]] = []
        deaths: list[dict[str, Any]] = []
        for served in self._catalogue.all():
            of_model = {"model": served.id.name, "version": served.id.version}
            pool = served.placement.pool
            if pool is not None:
                replicas += [{**of_model, **member} for member in pool.members()]
                deaths += [{**of_model, **dataclasses.asdict(death)} for death in pool.deaths]
        for shared in self._pools:
            kind = shared.kind
            replicas += [{"pool": kind, **member} for member in shared.members()]
            deaths += [{"pool": kind, **dataclasses.asdict(d)} for d in shared.pool.deaths]
        return {"replicas": replicas, "deaths": deaths}

    def metrics(self, connections: int, *, state_misses: Mapping[str, int]) -> Snapshot:
        """Snapshot for the metrics."""
        return Snapshot(
            generation=self.generation,
            out_of_sync=len(self.out_of_sync()),
            connections=connections,
            state_misses=state_misses,
            unresolved=dict(self.unknown_model_responses),
            models=tuple(
                ModelMetrics(id=served.id, counters=served.counters, gauges=_gauges(served))
                for served in self._catalogue.all()
            ),
            pools=tuple(shared.metrics() for shared in self._pools),
        )


def _gauges(served: Deployment) -> Gauges:
    cache, placement = served.cache.cache, served.placement
    return Gauges(
        queue_items=served.dispatcher.waiting_of(placement.model),
        unfinished_requests=served.inflight_count,
        replicas={} if placement.pool is None else placement.pool.states(),
        cache_hits=cache.hits,
        cache_misses=cache.misses - served.cache.shared,
        cache_shared=served.cache.shared,
        cache_bytes=cache.bytes,
        refusals=served.dispatcher.refusals_of(placement.model),
    )
