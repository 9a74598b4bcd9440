"""Spawners by model kind; each is opened for the first model of its kind and stays open.

Not thread-safe.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator

from serving.deployment.pool import Spawner
from serving.errors import ReplicaStartFailed
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.spawners.docker.spawner import DockerSpawner
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.ray_cluster import RayCluster
from serving.spawners.node.spawner import Machines, NodeSpawner
from serving.spawners.process.spawner import ProcessSpawner


def spawner_factory(settings: ServingSettings) -> Callable[[], Spawner]:
    """Return the factory for the configured type of spawner.

    Raises:
        InvalidSettings: other machines need a package that is missing.
    """
    replica, cluster = settings.replica, settings.cluster
    if replica.spawner == "docker":
        return functools.partial(DockerSpawner, replica.image)
    if replica.spawner == "ray":
        credentials = Credentials.make(tls=cluster.tls == "mutual")
        engine = RayCluster(cluster, credentials, replica.image)
        machines = Machines(engine, credentials, timeout_s=cluster.node_timeout_s)
        return functools.partial(NodeSpawner, machines)
    return functools.partial(ProcessSpawner, has_own_limits=replica.limits == "each")


class SpawnerRegistry:
    """One gateway's spawners."""

    def __init__(self, make: Callable[[], Spawner] = ProcessSpawner) -> None:
        self._make = make
        self._spawners: dict[str, Spawner] = {}
        self._opening = asyncio.Lock()
        self.workers: Iterator[int] = itertools.count(1)

    async def of(self, spec: ModelSpec) -> Spawner:
        """Return the spawner for a model, opened if necessary.

        Raises:
            ReplicaStartFailed: the spawner cannot be opened.
        """
        async with self._opening:
            if spec.kind not in self._spawners:
                spawner = self._make()
                try:
                    await spawner.open(spec.kind)
                except BaseException as error:
                    await spawner.close()
                    if isinstance(error, OSError):  # no descriptor left, or no space
                        text = f"a spawner of replicas cannot be created: {error}"
                        raise ReplicaStartFailed("crash", text) from error
                    raise
                self._spawners[spec.kind] = spawner
            return self._spawners[spec.kind]

    @property
    def limits_text(self) -> str:
        """Whether limits hold, for all kinds: "enforced", or "not enforced: " and the reason."""
        for spawner in self._spawners.values():
            return spawner.limits_text
        return "not enforced: no model has been served"

    async def close(self) -> None:
        """End all replicas and clean up."""
        async with self._opening:
            await asyncio.gather(*(spawner.close() for spawner in self._spawners.values()))
            self._spawners.clear()
