"""Placement of a model version in its own replicas or in shared ones.

Not thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec, declared_inputs
from serving.deployment.dispatch.request_table import BatchDone
from serving.deployment.pool import Member, Pool, ReplicaContents, Spawner
from serving.deployment.shared_pool import SharedPool
from serving.errors import InvalidSettings
from serving.metrics.counters import Counters
from serving.model_spec import ModelSpec
from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.interface import WarmupMeasured
from serving.settings import ServingSettings
from serving.settings.replica import ModelSettings
from serving.values import ModelId, Signature

log = logging.getLogger(__name__)

NO_PAD = "no fill value for its inputs is set; set model.pad, for example ids=0 (docs/batching.md)"
_REAL = ("file", "model")
_OF_LOADING = ("model.", "batching.pad_to")


class DedicatedPlacement(ReplicaContents):
    """Placement in replicas that hold only this model, with their own queue and scheduler."""

    max_items = None
    """Maximum number of items per batch that the placement imposes; None means no limit."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ServingSettings,
        spawner: Spawner,
        workers: Iterator[int],
        counters: Counters,
        on_batch: Callable[[BatchDone], None],
        on_signature: Callable[[], None],
    ) -> None:
        """Start nothing yet; `spawner` must be open, and `workers` must yield ids new to it.

        `on_batch` is called with each completed batch, and `on_signature` when the signature that
        replicas report has changed.
        """
        self.spec: ModelSpec = spec
        self.model = spec.id
        self.signature: Signature | None = None
        """Inputs and outputs of the model, once it is loaded."""
        self.load_report: LoadReport | None = None
        self._on_signature = on_signature
        self._judged_for: tuple[ModelSettings, int | None] | None = None
        self._scheduler = AdaptiveScheduler(spec.id, settings)
        self.dispatcher = Dispatcher(self._scheduler, on_batch=on_batch)
        on_death = counters.on_replica_death
        self.pool = Pool(spawner, self.dispatcher, settings, on_death, workers, self)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that are not in the load report; always empty."""
        return {}

    @property
    def ready_count(self) -> int:
        """Number of replicas that accept batches for the model."""
        return self.pool.ready_count

    async def open(self) -> None:
        """Start the replicas, which load the model; see `Pool.open`."""
        await self.pool.open()

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        """Apply new settings while serving; see `Pool.apply`."""
        await self.pool.apply(settings, fresh=fresh, keep_learned=keep_learned)

    async def close(self) -> None:
        """End the replicas and reject waiting requests."""
        await self.pool.close()
        self.dispatcher.close(self.spec.label)

    # Contents of the replicas

    def make_load_spec(self, _model: ModelId, member: Member) -> LoadSpec:
        """Return how a replica must load the model."""
        limits = member.limits
        known = self.signature if self._judged_for == (member.model, member.pad_to) else None
        return LoadSpec(
            self.spec,
            limits.threads,
            member.max_items,
            limits.warmup_s,
            device=member.accelerator.device,
            weights=self.spec.weights(member.model.variant),
            inputs=declared_inputs(self.spec, member.model, pad_to=member.pad_to, known=known),
        )

    def on_loaded(self, _model: ModelId, told: LoadReport, member: Member) -> bool:
        """Handle a finished load; return whether the signature has changed."""
        self.load_report = told
        self._judged_for = (member.model, member.pad_to)
        failure, batch_s = told.warmup.get("failure"), told.batch_s
        if told.warmup.get("source") in _REAL and "failure" not in told.warmup and batch_s:
            limits = member.limits
            warmup = WarmupMeasured(batch_s, limits.cpu, limits.threads)
            self._scheduler.on(warmup, time.monotonic())
        if told.signature == self.signature:  # keep the object, and what is cached about it
            return False
        self.signature = told.signature
        if isinstance(failure, str):
            log.warning("not warmed up", extra={"model": self.spec.name, "reason": failure})
        self._on_signature()
        return True

    def achievable(self, settings: ServingSettings) -> ServingSettings:
        """Return settings that suit the model: batches of one if it is unbatched."""
        if self.signature is None:
            return settings
        changed: dict[str, int] = {}
        if not self.signature.is_batched:
            if settings.batching.max_size > 1:
                facts = {"model": self.spec.name, "reason": self.signature.unbatched}
                log.warning("requests are not batched, each runs alone", extra=facts)
            changed = {"batching.max_size": 1, "batching.timeout_us": 0}
        if (settings.batching.pad_to or 1) > 1 and self.signature.padding != "":
            reason = self.signature.padding or NO_PAD
            facts = {"model": self.spec.name, "reason": reason}
            log.warning("batching.pad_to has no effect", extra=facts)
        return settings.with_changes(changed)


class SharedPlacement:
    """Placement in a shared pool."""

    pool = None
    """None, since the model has no replicas of its own."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ServingSettings,
        shared: SharedPool,
        on_batch: Callable[[BatchDone], None],
        on_signature: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._shared = shared
        self._on_batch = on_batch
        self._on_signature = on_signature
        self.dispatcher = shared.dispatcher
        self.model = spec.id
        self.signature: Signature | None = None
        self.load_report: LoadReport | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Profile and memory of the model."""
        return {} if self.signature is None else self._shared.describe(self.model)

    @property
    def max_items(self) -> int | None:
        """Number of items in the largest measured batch."""
        return None if self.signature is None else self._shared.max_items(self.model)

    @property
    def ready_count(self) -> int:
        """Number of replicas that could load the model."""
        return self._shared.pool.ready_count if self.signature is not None else 0

    async def open(self) -> None:
        """Profile the model, then accept requests for it.

        Raises:
            ServingError: the model cannot be loaded, or cannot be run on samples.
        """
        self.model, found = await self._shared.join(self._spec, self._settings, self._on_batch)
        self.signature, self.load_report = found.signature, found.told
        self._on_signature()

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:  # noqa: ARG002
        """Apply the model's own settings; the pool already has the others.

        Raises:
            InvalidSettings: the change needs a reload of the model.
        """
        old, new = self._settings.flat(), settings.flat()
        changed = [name for name in new if name.startswith(_OF_LOADING) and new[name] != old[name]]
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
