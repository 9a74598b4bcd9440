"""The engine, which resolves requests to deployments and changes models and settings live.

    deploy:  start replicas -> load and warm up -> register -> take traffic
    retire:  unregister -> drain -> end replicas

Requests are resolved and submitted in one step, so a version switch loses none. Changes run one at
a time, but need not wait for draining. Call methods only from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import Sequence
from typing import Any

from serving.accelerator.clocks import ClockLock
from serving.deployment.deployment import Deployment
from serving.deployment.profile_store import ProfileStore
from serving.deployment.settings_warnings import settings_warnings
from serving.deployment.shadow import ShadowedDeployment
from serving.deployment.shared_pools import SharedPools
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.engine.draining import RETIRE_S, DrainingDeployments
from serving.engine.gateway_share import GatewayShare
from serving.engine.live_settings import LiveSettings
from serving.engine.versions import STABLE, VersionRegistry
from serving.errors import InvalidRequest, NotReady, ServingError, UnknownModel
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.values import ModelId

log = logging.getLogger(__name__)

_VERSION = re.compile(r"[A-Za-z0-9._+:~-]{1,128}")

DeploymentHandle = Deployment | ShadowedDeployment
"""Target of requests: a deployment, perhaps with a shadow."""


class Engine:
    """Serves models; if a live change fails, the old state stays in force."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        settings: ServingSettings,
        spawners: SpawnerRegistry,
        clock: ClockLock | None = None,
        profiles: ProfileStore | None = None,
        share: GatewayShare | None = None,
    ) -> None:
        """Start nothing yet; `clock` locks the GPU's clock from `open` to `close`.

        `share` is this gateway's part of the replicas; default: all of them.
        """
        self._specs = tuple(specs)
        self._spawners = spawners
        self._clock = clock or ClockLock()
        self.catalogue: VersionRegistry[Deployment] = VersionRegistry()
        """Versions, labels, traffic splits and shadows, which may change at any time."""
        self._loading: set[ModelId] = set()
        self.failed: dict[ModelId, str] = {}
        self.resolve_cache: dict[tuple[str, str | None], DeploymentHandle]
        self.resolve_cache = self.catalogue.resolved
        """Cache of `resolve` that routes read first; always the same object."""
        self._changing = asyncio.Lock()
        self.pools = SharedPools(spawners, ProfileStore() if profiles is None else profiles)
        self._share = GatewayShare() if share is None else share
        self._live = LiveSettings(settings, self.catalogue, self.pools, self._clock, self._share)
        self._draining_deployments = DrainingDeployments(self._give_up_pools)
        self.editing = asyncio.Lock()
        """Lock held while settings are read, changed and applied."""
        self._draining = False
        self.unknown_model_responses: dict[int, int] = {}

    @property
    def settings(self) -> ServingSettings:
        """Settings in force."""
        return self._live.settings

    @property
    def generation(self) -> int:
        """Number of the settings in force, counted from 1."""
        return self._live.generation

    # Requests

    def ready(self) -> bool:
        """Return whether any models are served and all of them can respond."""
        served = self.catalogue.all()
        return not self._draining and bool(served) and all(one.ready for one in served)

    def models(self) -> tuple[ModelId, ...]:
        """Return all served model versions."""
        return tuple(served.id for served in self.catalogue.all())

    def resolve(self, name: str, version: str | None) -> DeploymentHandle:
        """Return the deployment for a name and a version or label.

        Without a version, a traffic split selects one anew at each call.

        Raises:
            UnknownModel: the name, version or label is unknown.
            NotReady: the model is still being loaded for the first time.
        """
        known = self.resolve_cache.get((name, version))
        if known is not None:
            return known
        if name not in self.catalogue.entries and any(name == one.name for one in self._loading):
            raise NotReady(f"model {name!r} is not loaded yet; query /v2/health/ready")
        entry = self.catalogue.entry(name)
        served = entry.of(version, random.random())  # noqa: S311 - it guards nothing
        if version is None and entry.shadow is not None and served.id.version == entry.current:
            return ShadowedDeployment(served, entry.versions[entry.shadow])
        if version is not None or not entry.shares:
            self.resolve_cache[name, version] = served
        return served

    def count_unknown_model(self, status: int) -> None:
        """Count a response to a request for an unknown model."""
        self.unknown_model_responses[status] = self.unknown_model_responses.get(status, 0) + 1

    def model_ready(self, name: str, version: str | None) -> bool:
        """Return whether a model can respond.

        Raises:
            UnknownModel: the name, version or label is unknown.
        """
        try:
            self.resolve(name, version)
        except NotReady:
            return False
        entry = self.catalogue.entry(name)
        wanted = entry.current if version is None else entry.resolve_version(version)
        return not self._draining and entry.versions[wanted].ready

    # Models and versions

    def versions(self, name: str) -> tuple[str, ...]:
        """Return a model's served versions.

        Raises:
            UnknownModel: the name is unknown.
        """
        return tuple(self.catalogue.entry(name).versions)

    def resolve_label(self, name: str, label: str) -> str | None:
        """Return the version that a label names, or None if the model or label is unknown."""
        entry = self.catalogue.entries.get(name)
        if entry is None:
            return None
        return entry.labels.get(label, entry.current if label == STABLE else None)

    def states(self) -> dict[ModelId, tuple[str, str]]:
        """Return every known version's state, and the reason if loading it failed.

        A served version keeps its state during a reload, even if that fails.
        """
        states = dict.fromkeys(self._loading, ("loading", ""))
        states |= {id_: ("failed", why) for id_, why in self.failed.items()}
        return states | {
            served.id: ("ready" if served.ready else "unavailable", self.failed.get(served.id, ""))
            for served in self.catalogue.all()
        }

    async def deploy(self, spec: ModelSpec, *, current: bool = True) -> None:
        """Load a version, which takes traffic once warm.

        Raises:
            InvalidRequest: the version already exists, or its name is invalid.
            ServingError: the load failed.
        """
        async with self._changing:
            self._check_serving()
            if not _VERSION.fullmatch(spec.version):
                raise InvalidRequest(
                    f"version {spec.version!r} of model {spec.name!r}: expected 1 to 128 letters, "
                    "digits and . _ + : ~ -"
                )
            self.catalogue.check_new(spec.name, spec.version)
            served = await self._open_deployment(spec)
            self.catalogue.add(spec.name, spec.version, served, current=current)

    async def _open_deployment(self, spec: ModelSpec) -> Deployment:
        began_s = time.monotonic()
        self._loading.add(spec.id)
        self.failed.pop(spec.id, None)
        try:
            spawner = await self._spawners.of(spec)
            mine = self._share.of(self.settings)
            shared = await self.pools.of(spec, spawner, mine)
            settings = mine.of(spec.name)
            served = Deployment(spec, settings, spawner, self._spawners.workers, shared)
            await served.open()
        except ServingError as error:
            self.failed[spec.id] = str(error)
            raise
        finally:
            self._loading.discard(spec.id)
            await self.pools.give_up()
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
        """Reload a version, for example from changed files, and drain its old deployment.

        Raises:
            UnknownModel: the name or version is unknown.
            ServingError: the load failed.
        """
        async with self._changing:
            self._check_serving()
            entry = self.catalogue.entry(spec.name)
            old = entry.versions[entry.resolve_version(spec.version)]
            new = await self._open_deployment(spec)
            entry.versions[spec.version] = new
            self.resolve_cache.clear()
            self._draining_deployments.begin(old, RETIRE_S)

    async def withdraw(
        self, name: str, version: str, *, within_s: float = RETIRE_S
    ) -> asyncio.Task[None] | None:
        """Unregister a version, which is then drained for at most `within_s`.

        Return the task that drains it, which other changes need not await, or None if the version
        was only listed as failed.

        Raises:
            UnknownModel: the name or version is unknown.
            InvalidRequest: it gets requests without a version, and other versions exist.
        """
        async with self._changing:
            try:
                served = self.catalogue.remove(name, version)
            except UnknownModel:
                if self.failed.pop(ModelId(name, version), None) is None:
                    raise
                return None
            self.failed.pop(served.id, None)
            return self._draining_deployments.begin(served, within_s)

    async def retire_model(self, name: str, *, within_s: float = RETIRE_S) -> None:
        """Withdraw all versions of a model, and return once they are drained.

        Raises:
            UnknownModel: the name is unknown.
        """
        async with self._changing:
            all_served = self.catalogue.remove_all(name)
            for served in all_served:
                self.failed.pop(served.id, None)
            endings = [self._draining_deployments.begin(one, within_s) for one in all_served]
        await asyncio.gather(*map(asyncio.shield, endings))

    async def _give_up_pools(self) -> None:
        async with self._changing:
            await self.pools.give_up()

    # Settings

    async def apply(
        self, settings: ServingSettings, *, fresh: bool = False, keep_learned: bool = False
    ) -> float:
        """Apply settings while serving; no request fails.

        Return the seconds until limits were read back and replicas were ready. `keep_learned` keeps
        the cache, the back-off and the scheduler's estimates; `fresh` restarts every replica.
        Listener settings must be unchanged.

        Raises:
            ServingError: the settings cannot be applied; the old ones stay in force.
        """
        async with self._changing:
            began_s = time.monotonic()
            self._check_serving()
            await self._live.apply(settings, fresh=fresh, keep_learned=keep_learned)
            seconds = time.monotonic() - began_s
        log.info(
            "settings applied",
            extra={"generation": self.generation, "seconds": round(seconds, 4)},
        )
        return seconds

    def out_of_sync(self) -> list[dict[str, Any]]:
        """Return the models and pools that a failed change left with other settings."""
        return self._live.out_of_sync()

    def _check_serving(self) -> None:
        if self._draining:
            raise NotReady("the server is stopping; models and settings can no longer change")

    # Start and end

    async def open(self) -> None:
        """Load the first models.

        Raises:
            ServingError: a model cannot be served; nothing is left running.
        """
        try:
            await self._live.hold_clock(self.settings)
            for spec in self._specs:
                await self.deploy(spec)
        except BaseException:
            await self.close()
            raise

    def drain(self) -> None:
        """Stop reporting ready; in-flight requests go on."""
        self._draining = True

    @property
    def inflight_count(self) -> int:
        """Number of in-flight requests."""
        served = (*self.catalogue.all(), *self._draining_deployments.all())
        return sum(one.inflight_count for one in served)

    async def close(self) -> None:
        """End replicas and spawners, and reject waiting requests."""
        self._draining = True
        ending = await self._draining_deployments.cancel()
        served = (*self.catalogue.all(), *ending)
        async with contextlib.AsyncExitStack() as last:
            last.push_async_callback(asyncio.to_thread, self._clock.close)
            last.push_async_callback(self._spawners.close)
            for shared in self.pools:
                last.push_async_callback(shared.close)
            await asyncio.gather(*(one.close() for one in served))

    # Facts

    @property
    def limits(self) -> str:
        """Whether resource limits hold: `enforced`, or `not enforced: ` and the reason."""
        return self._spawners.limits_text

    def notes(self) -> list[str]:
        """Return a warning for every setting that does not take full effect."""
        return settings_warnings(self.settings, self.catalogue.all())

    def deployments(self) -> tuple[Deployment, ...]:
        """Return all deployments."""
        return self.catalogue.all()
