"""Shared pools by model kind; each exists as long as it has models.

Not thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from serving.deployment.pool import Spawner
from serving.deployment.profile_store import ProfileStore
from serving.deployment.shared_pool import SharedPool
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.errors import InvalidSettings
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings

log = logging.getLogger(__name__)


class SharedPools:
    """All shared pools of a server."""

    def __init__(self, spawners: SpawnerRegistry, profiles: ProfileStore) -> None:
        self._spawners = spawners
        self._profiles = profiles
        self._by_kind: dict[str, SharedPool] = {}

    def __iter__(self) -> Iterator[SharedPool]:
        """Iterate over a snapshot of the pools."""
        return iter(tuple(self._by_kind.values()))

    async def of(
        self, spec: ModelSpec, spawner: Spawner, settings: ServingSettings
    ) -> SharedPool | None:
        """Return the pool for a model, or None if the model has its own replicas.

        Raises:
            InvalidSettings: the model's replicas serve only one model.
            ServingError: the pool's replicas cannot be started.
        """
        if settings.of(spec.name).scheduling.policy != "clockwork":
            return None
        if spec.program is not None:
            raise InvalidSettings(
                f"scheduling.policy = 'clockwork': {spec.label} is a separate program and "
                f"serves one model; set models.{spec.name}.scheduling.policy to adaptive"
            )
        if settings.replica.spawner == "ray" and settings.cluster.spawner == "docker":
            raise InvalidSettings(
                f"scheduling.policy = 'clockwork': a container on another machine serves one model, "
                f"and cannot be shared by {spec.label}; set cluster.spawner to process, or "
                f"models.{spec.name}.scheduling.policy to adaptive"
            )
        shared = self._by_kind.get(spec.kind)
        if shared is None:
            if not self._by_kind:
                _warn_of_long_deadlines(settings)
            workers = self._spawners.workers
            shared = SharedPool(spec.kind, settings.of(""), spawner, workers, self._profiles)
            await shared.open()
            self._by_kind[spec.kind] = shared
        return shared

    async def give_up(self) -> None:
        """End pools without models."""
        for shared in self:
            if shared.is_empty:
                del self._by_kind[shared.kind]
                await shared.close()


def _warn_of_long_deadlines(settings: ServingSettings) -> None:
    deadline_s = settings.scheduling.default_deadline_s
    if deadline_s == ServingSettings().scheduling.default_deadline_s:
        log.warning(
            "scheduling.policy is clockwork, but requests without a deadline are hardly "
            "ever rejected; set scheduling.default_deadline_s to the time in which a "
            "response is useful",
            extra={"default_deadline_s": deadline_s},
        )
