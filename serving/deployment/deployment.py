"""Deployment: one served model version with its placement, cache and counters.

    submit: cache (response, or equal request in flight) -> dispatch (queue -> batch -> replica)

Not thread-safe; calls to `apply` must not overlap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Protocol

from serving.cache.response_cache import CacheKey
from serving.cache.single_flight import SingleFlight
from serving.deployment.dispatch.inflight import RequestFrame
from serving.deployment.dispatch.request_table import BatchDone
from serving.deployment.placement import DedicatedPlacement, SharedPlacement
from serving.deployment.pool import Spawner
from serving.deployment.shared_pool import SharedPool
from serving.metrics.counters import Counters
from serving.metrics.statistics import ModelStatistics, StatisticsCollector
from serving.model_spec import ModelSpec
from serving.response_handler import RequestHandle, ResponseHandler
from serving.settings import ServingSettings
from serving.values import Signature

_RETRY_S = 0.005
_OK = 200


class InferRequest(RequestFrame, Protocol):
    """Inference request from a protocol's codec."""

    @property
    def timeout_s(self) -> float | None:
        """Request's time limit in seconds, if any."""
        ...

    @property
    def priority(self) -> int:
        """Priority: 1 is the most urgent, 0 means the default."""
        ...


class Deployment:
    """One version of a model that is being served."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ServingSettings,
        spawner: Spawner,
        workers: Iterator[int],
        shared: SharedPool | None = None,
    ) -> None:
        """Start nothing yet; `spawner` must be open, and `workers` must yield ids new to it."""
        self.spec = spec
        self.id = spec.id
        self.settings = settings
        self.counters = Counters()
        self._statistics = StatisticsCollector(spec.id)
        self.codecs: dict[str, Any] = {}
        """Codecs that protocols derived from the signature; emptied when it changes."""
        on_batch, on_signature = self._batch_done, self.codecs.clear
        self.placement: DedicatedPlacement | SharedPlacement
        if shared is None:
            self.placement = DedicatedPlacement(
                spec, settings, spawner, workers, self.counters, on_batch, on_signature
            )
        else:
            self.placement = SharedPlacement(spec, settings, shared, on_batch, on_signature)
        self.dispatcher = self.placement.dispatcher
        self.cache = SingleFlight(settings.cache.capacity_mb * 2**20)
        self._caching = settings.cache.capacity_mb > 0
        self._limit_deadlines(settings)

    def _limit_deadlines(self, settings: ServingSettings) -> None:
        scheduling = settings.scheduling
        self._default_deadline_s = scheduling.default_deadline_s
        self._max_deadline_s = scheduling.max_deadline_s

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""
        signature = self.placement.signature
        assert signature is not None, "a model is asked only after it was opened"
        return signature

    @property
    def last_load(self) -> dict[str, Any]:
        """Facts about the last model load: load_s, device and warmup."""
        loaded = self.placement.load_report
        if loaded is None:
            return {}
        facts = {"load_s": loaded.load_s, "device": loaded.device, "warmup": loaded.warmup or None}
        return {name: fact for name, fact in facts.items() if fact is not None}

    @property
    def inflight_count(self) -> int:
        """Number of requests still without a response."""
        return self.dispatcher.inflight_count_of(self.placement.model)

    @property
    def ready(self) -> bool:
        """Whether any replica accepts batches."""
        return self.placement.ready_count > 0

    # Requests

    def submit(
        self, query: InferRequest, handler: ResponseHandler, flow: str = ""
    ) -> RequestHandle:
        """Submit a request; its handler is called once, later. Flows share the replicas evenly."""
        now_s = time.monotonic()
        limit_s = query.timeout_s
        if not limit_s:
            limit_s = self._default_deadline_s
        elif limit_s > self._max_deadline_s:
            limit_s = self._max_deadline_s
        deadline_s = now_s + limit_s
        if self._caching:
            return self._looked_up(query, handler, flow, deadline_s, now_s)
        return self.dispatcher.submit(
            query, handler, self.placement.model, deadline_s, now_s, query.priority, flow
        )

    def _looked_up(
        self,
        query: InferRequest,
        handler: ResponseHandler,
        application: str,
        deadline_s: float,
        now_s: float,
    ) -> RequestHandle:
        key = CacheKey(self.id, query.encoding, b"".join(query.frame))

        def send(inner: ResponseHandler, inner_deadline_s: float) -> RequestHandle:
            return self.dispatcher.submit(
                query,
                inner,
                self.placement.model,
                inner_deadline_s,
                time.monotonic(),
                query.priority,
                application,
            )

        hits = self.cache.cache.hits
        ticket = self.cache.submit(key, handler, deadline_s, send, (application, query.priority))
        is_hit = self.cache.cache.hits != hits
        self._statistics.looked_up(time.monotonic() - now_s, is_hit=is_hit)
        return ticket

    def count_response(self, status: int, seconds: float) -> None:
        """Count a response by HTTP status; `seconds` is the time since the request's last byte."""
        counters = self.counters
        responses = counters.responses
        responses[status] = responses.get(status, 0) + 1
        counters.latency_s.observe(seconds)
        if status != _OK:
            self._statistics.record_failure(seconds)

    def statistics(self) -> ModelStatistics:
        """Return counts and durations since the model was loaded."""
        counters = self.counters
        return self._statistics.snapshot(
            successes=counters.responses.get(_OK, 0), answered_s=counters.latency_s.sum
        )

    def _batch_done(self, done: BatchDone) -> None:
        self.counters.batch_items.observe(done.items)
        self.counters.exec_s.observe(done.times.exec_s)
        self.counters.late += done.late
        self._statistics.batch(
            done.times,
            items=done.items,
            parts=done.parts,
            waited_s=done.waited_s,
            wall_s=time.time(),
        )

    # Life

    async def open(self) -> None:
        """Make the deployment ready for requests.

        Raises:
            ServingError: the model cannot be served under its settings.
        """
        try:
            self.spec.weights(self.settings.model.variant)
            await self.placement.open()
        except BaseException:
            await self.close()
            raise

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        """Apply new settings while serving; see `Engine.apply`.

        Raises:
            ServingError: the settings cannot be applied; the old ones stay in force.
        """
        self.spec.weights(settings.model.variant)  # raises if there is no such variant
        if settings.model.variant != self.settings.model.variant:
            keep_learned = False  # other weights have other outputs and durations
        await self.placement.apply(settings, fresh=fresh, keep_learned=keep_learned)
        self.settings = settings
        capacity_bytes = settings.cache.capacity_mb * 2**20
        if keep_learned:
            self.cache.cache.resize(capacity_bytes)
        else:
            self.cache.reset(capacity_bytes)
        self._caching = capacity_bytes > 0
        self._limit_deadlines(settings)

    async def drain(self, within_s: float) -> bool:
        """Wait until all requests are answered; return False on timeout."""
        until_s = time.monotonic() + within_s
        while self.inflight_count:
            if time.monotonic() > until_s:
                return False
            await asyncio.sleep(_RETRY_S)
        return True

    async def close(self) -> None:
        """Close the placement and reject waiting requests."""
        await self.placement.close()
