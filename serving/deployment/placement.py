"""Placement of a model version: in its own replicas, or in shared ones.

Belongs to the event loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from serving.deployment.dispatch import BatchDone, Dispatcher, LoadReport
from serving.deployment.pool import Death, Pool, Spawner
from serving.deployment.shared_pool import SharedPool
from serving.deployment.single_model import SingleModelContents
from serving.errors import InvalidSettings
from serving.metrics.counters import Counters
from serving.model_spec import ModelSpec
from serving.scheduling import SCHEDULERS
from serving.scheduling.interface import WarmupMeasured
from serving.settings import ServingSettings
from serving.settings.replica import ReplicaSettings
from serving.values import ModelId, Signature

_REAL = ("file", "model")
OF_QUEUES = ("batching.policy", "batching.timeout_us", "routing.policy")
_OF_THE_POOL = ("replica.", "accelerator.", "clockwork.", "routing.", "scheduling.queue_capacity")
_OF_LOADING = ("model.", "batching.pad_to")


class PlacementObserver(Protocol):
    """Observer of a placement."""

    counters: Counters

    def batch_done(self, done: BatchDone) -> None:
        """Handle a finished batch."""
        ...

    def signature_changed(self) -> None:
        """Handle a changed signature."""
        ...


class Placement(Protocol):
    """Where one model version runs."""

    dispatcher: Dispatcher

    @property
    def model(self) -> ModelId:
        """The dispatcher's id of the model, once open."""
        ...

    @property
    def signature(self) -> Signature | None:
        """Inputs and outputs, once open."""
        ...

    @property
    def load_report(self) -> LoadReport | None:
        """Last load report."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """Further facts for people."""
        ...

    @property
    def ready_count(self) -> int:
        """Number of replicas that take its batches."""
        ...

    @property
    def inflight_count(self) -> int:
        """Its in-flight requests."""
        ...

    @property
    def waiting_items(self) -> int:
        """Its queued items."""
        ...

    @property
    def max_items(self) -> int | None:
        """Maximum items of its batches regardless of settings."""
        ...

    def states(self) -> dict[str, int]:
        """Its replicas by state."""
        ...

    def members(self) -> list[dict[str, Any]]:
        """Its own replicas as plain data."""
        ...

    def deaths(self) -> list[Death]:
        """Deaths of its own replicas."""
        ...

    async def open(self) -> None:
        """Make it ready."""
        ...

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        """Apply new settings while serving."""
        ...

    async def close(self) -> None:
        """Release it and reject waiting requests."""
        ...


class DedicatedPlacement:
    """Placement with its own replicas, queue and scheduler."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ServingSettings,
        spawner: Spawner,
        workers: Iterator[int],
        listener: PlacementObserver,
    ) -> None:
        """Start nothing yet; `spawner` is open and `workers` yields numbers unique in it."""
        self._spec = spec
        self.model = spec.id
        self._listener = listener
        self._scheduler = SCHEDULERS[settings.scheduling.policy](spec.id, settings)
        self.dispatcher = Dispatcher(self._scheduler, on_batch=self._batch_done)
        self._model = SingleModelContents(spec, listener.signature_changed, self._replica_loaded)
        self._pool = Pool(
            spawner, self.dispatcher, settings, listener.counters, workers, self._model
        )

    @property
    def signature(self) -> Signature | None:
        """See `Placement`."""
        return self._model.signature

    @property
    def load_report(self) -> LoadReport | None:
        """See `Placement`."""
        return self._model.load_report

    @property
    def facts(self) -> dict[str, Any]:
        """Nothing beyond the load report."""
        return {}

    @property
    def max_items(self) -> int | None:
        """No maximum."""
        return None

    @property
    def ready_count(self) -> int:
        """See `Placement`."""
        return self._pool.ready_count

    @property
    def inflight_count(self) -> int:
        """See `Placement`."""
        return self.dispatcher.inflight_count

    @property
    def waiting_items(self) -> int:
        """See `Placement`."""
        return self.dispatcher.waiting_items

    def states(self) -> dict[str, int]:
        """See `Placement`."""
        return self._pool.states()

    def members(self) -> list[dict[str, Any]]:
        """See `Placement`."""
        return self._pool.members()

    def deaths(self) -> list[Death]:
        """Deaths since the settings took effect."""
        return list(self._pool.deaths)

    async def open(self) -> None:
        """Start the replicas; each loads the model.

        Raises:
            ServingError: one does not become ready; all are ended.
        """
        await self._pool.open()

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        """Apply new settings; see `Pool.apply`."""
        await self._pool.apply(settings, fresh=fresh, keep_learned=keep_learned)

    async def close(self) -> None:
        """End the replicas."""
        await self._pool.close(grace_s=0.0)
        self.dispatcher.close(self._spec.label)

    def _replica_loaded(self, loaded: LoadReport, limits: ReplicaSettings) -> None:
        warmup = loaded.warmup
        if warmup.get("source") in _REAL and "failure" not in warmup:
            batch_s = loaded.batch_s
            if batch_s:
                self._scheduler.on(
                    WarmupMeasured(batch_s, limits.cpu, limits.threads), time.monotonic()
                )

    def _batch_done(self, done: BatchDone) -> None:
        self._pool.mark_healthy(done.worker)
        self._listener.batch_done(done)


class SharedPlacement:
    """Placement in a shared pool."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ServingSettings,
        shared: SharedPool,
        listener: PlacementObserver,
    ) -> None:
        """Accept no requests yet."""
        self._spec = spec
        self._settings = settings
        self._shared = shared
        self._listener = listener
        self.dispatcher = shared.dispatcher
        self.model = spec.id
        self.signature: Signature | None = None
        self.load_report: LoadReport | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Its profile and memory."""
        return {} if self.signature is None else self._shared.describe(self.model)

    @property
    def max_items(self) -> int | None:
        """Items of the largest measured batch; see `SharedPool.max_items`."""
        return None if self.signature is None else self._shared.max_items(self.model)

    @property
    def ready_count(self) -> int:
        """Number of replicas that could load it."""
        return self._shared.pool.ready_count if self.signature is not None else 0

    @property
    def inflight_count(self) -> int:
        """See `Placement`."""
        return self.dispatcher.inflight_count_of(self.model)

    @property
    def waiting_items(self) -> int:
        """See `Placement`."""
        return self.dispatcher.waiting_of(self.model)

    def states(self) -> dict[str, int]:
        """Return nothing: the pool reports its replicas."""
        return {}

    def members(self) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def deaths(self) -> list[Death]:
        """Return nothing."""
        return []

    async def open(self) -> None:
        """Profile it and accept requests.

        Raises:
            ServingError: it cannot be loaded or run on samples.
        """
        joined = await self._shared.join(self._spec, self._settings, self._listener.batch_done)
        self.model, found = joined
        self.signature, self.load_report = found.signature, found.told
        self._listener.signature_changed()

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:  # noqa: ARG002
        """Apply settings of the model; the pool has the others already.

        Raises:
            InvalidSettings: the model would have to be reloaded.
        """
        changed = _changed_of_loading(self._settings, settings)
        if changed:
            raise InvalidSettings(
                f"{', '.join(changed)} of {self._spec.name}: a model on shared replicas "
                "(scheduling.policy: clockwork) cannot change while it is served; retire "
                "it, change the setting, and deploy it again"
            )
        self._settings = settings
        if self.signature is not None:
            self._shared.set_most(self.model, settings.batching.max_size)

    async def close(self) -> None:
        """Leave the pool and reject waiting requests."""
        if self.signature is not None:
            self.signature = None
            await self._shared.leave(self.model)


def _changed_of_loading(before: ServingSettings, after: ServingSettings) -> list[str]:
    old, new = before.flat(), after.flat()
    return [
        name for name, value in new.items() if name.startswith(_OF_LOADING) and value != old[name]
    ]


def own_settings_of_the_pool(settings: ServingSettings, model: str) -> list[str]:
    """Settings of a model that have no effect in shared replicas."""
    own = settings.models.get(model, {})
    return [name for name in own if name.startswith(_OF_THE_POOL)]
