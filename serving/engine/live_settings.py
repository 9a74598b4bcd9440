"""The settings in force, and how a change is applied to everything that is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from serving.accelerator.clocks import ClockLock
from serving.deployment.deployment import Deployment
from serving.deployment.shared_pool import SharedPool
from serving.deployment.shared_pools import SharedPools
from serving.engine.gateway_share import GatewayShare
from serving.engine.versions import VersionRegistry
from serving.errors import AcceleratorUnavailable, ServingError
from serving.settings import ServingSettings

log = logging.getLogger(__name__)


class LiveSettings:
    """The settings in force, and what a failed change left with other settings."""

    def __init__(
        self,
        settings: ServingSettings,
        catalogue: VersionRegistry[Deployment],
        pools: SharedPools,
        clock: ClockLock,
        share: GatewayShare,
    ) -> None:
        self.settings = settings
        self.generation = 1
        self._catalogue = catalogue
        self._pools = pools
        self._clock = clock
        self._share = share
        self._out_of_sync: set[Deployment | SharedPool] = set()

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        """Apply settings everywhere, or restore the old ones; see `Engine.apply`."""
        changed: list[tuple[Deployment | SharedPool, str]] = []
        mine = self._share.of(settings)
        try:
            await self.hold_clock(settings)  # first: replicas started below are measured under it
            for shared in self._pools:
                changed.append((shared, ""))  # before: a failure may leave half of it changed
                await shared.apply(mine.of(""), fresh=fresh, keep_learned=keep_learned)
            for served in self._catalogue.all():
                model = served.id.name
                await served.apply(mine.of(model), fresh=fresh, keep_learned=keep_learned)
                changed.append((served, model))
        except BaseException:
            await self._put_back(changed)
            raise
        self.settings = settings
        self._out_of_sync.clear()
        self.generation += 1

    async def hold_clock(self, settings: ServingSettings) -> None:
        """Lock the GPU's clock as the settings ask, or unlock it.

        Raises:
            AcceleratorUnavailable: the clock cannot be locked, or another process has locked it.
        """
        if self._share.index:  # the first gateway holds it for all
            return
        clock_mhz = settings.accelerator.clock_mhz
        if clock_mhz is None and self._clock.clock_mhz is None:
            return
        try:
            await asyncio.to_thread(self._clock.hold, clock_mhz)
        except AcceleratorUnavailable as error:
            raise AcceleratorUnavailable(f"accelerator.clock_mhz = {clock_mhz}: {error}") from error

    async def _put_back(self, changed: Sequence[tuple[Deployment | SharedPool, str]]) -> None:
        self._out_of_sync |= {one for one, _ in changed}  # each until it is restored
        mine = self._share.of(self.settings)
        try:
            await self.hold_clock(self.settings)
        except ServingError as error:
            log.error("the GPU's clock cannot be restored", extra={"error": str(error)})
        for one, model in changed:
            try:
                await one.apply(mine.of(model), fresh=False, keep_learned=True)
            except ServingError as error:
                what = f"model {model}" if model else "shared replicas"
                log.error("settings cannot be restored", extra={"of": what, "error": str(error)})
            else:
                self._out_of_sync.discard(one)

    def out_of_sync(self) -> list[dict[str, Any]]:
        """Return the models and pools that do not have the settings in force."""
        models = [
            {"name": served.id.name, "version": served.id.version}
            for served in self._catalogue.all()
            if served in self._out_of_sync
        ]
        pools = [{"pool": shared.kind} for shared in self._pools if shared in self._out_of_sync]
        return [*models, *pools]
