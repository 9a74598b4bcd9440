"""Counters and gauges in Prometheus' text format, by `prometheus_client`.

Names follow Prometheus' conventions: seconds, `_total`, base units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from serving.metrics.counters import BucketHistogram, Counters, PoolCounters
from serving.values import ModelId

_TEXTS: Mapping[str, Mapping[str, str]] = {
    "counter": {
        "luthier_requests": "Inference responses by HTTP status (499: the client went away).",
        "luthier_rejected_requests": "Requests rejected by the scheduler, by reason: on arrival, or when their "
        "deadline became unreachable.",
        "luthier_late_responses": "Responses sent after their deadline.",
        "luthier_replica_deaths": "Replicas that ended unexpectedly, by reason.",
        "luthier_cache_lookups": "Response cache look-ups: hit, miss, shared (waited for an equal request in "
        "flight).",
        "luthier_pool_actions": "Actions given to shared replicas, by outcome (too_late: not started in its "
        "window).",
        "luthier_pool_replica_deaths": "Shared replicas that ended unexpectedly, by reason.",
        "luthier_unknown_model_requests": "Responses by HTTP status to requests that named no known model.",
        "luthier_policy_state_misses": "Queries decided without the policy's learnt state, because it could "
        "not be read.",
        "luthier_closed_connections": "Connections closed by the server: refused or stalled connections, late "
        "requests (docs/serving.md).",
    },
    "gauge": {
        "luthier_queue_items": "Items waiting for a batch.",
        "luthier_inflight_requests": "Requests without a response yet.",
        "luthier_replicas": "Replicas by state.",
        "luthier_cache_bytes": "Bytes in the response cache.",
        "luthier_pool_replicas": "Shared replicas by state.",
        "luthier_pool_models": "Models that can be requested.",
        "luthier_pool_budget_pages": "Pages for models in each replica.",
        "luthier_pool_loaded_models": "Models in a replica's memory.",
        "luthier_pool_loaded_pages": "Pages that loaded models take.",
        "luthier_settings_generation": "Generation of the settings.",
        "luthier_settings_out_of_sync": "Models and pools with other settings than wanted: a change failed and "
        "could not be undone.",
        "luthier_connections": "Open client connections.",
    },
    "histogram": {
        "luthier_request_seconds": "Seconds from a request's last byte to its response.",
        "luthier_batch_items": "Items per batch.",
        "luthier_batch_exec_seconds": "Seconds of model execution per batch.",
        "luthier_pool_load_seconds": "Seconds of loads.",
        "luthier_pool_overestimate_seconds": "Seconds by which an action took less than was predicted.",
        "luthier_pool_underestimate_seconds": "Seconds by which an action took more than was predicted.",
    },
}
"""Type -> metric -> help text."""

_Values = dict[str, tuple[Any, ...]]
"""Metric -> value, or values by the labels that follow; None: no sample."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """Counters and current state of one deployment."""

    id: ModelId
    counters: Counters
    queue_items: int
    unfinished_requests: int
    replicas: Mapping[str, int]
    """Replicas by state."""
    cache_lookups: Mapping[str, int]
    """By result; requests that joined another are `shared`, no `miss`."""
    cache_bytes: int
    refusals: Mapping[str, int]
    """Rejections by reason."""

    def values(self) -> _Values:
        """Return the metrics with the labels `model` and `version`."""
        counters = self.counters
        return {
            "luthier_requests": (counters.responses, "status"),
            "luthier_rejected_requests": (self.refusals, "reason"),
            "luthier_late_responses": (counters.late,),
            "luthier_request_seconds": (counters.latency_s,),
            "luthier_batch_items": (counters.batch_items,),
            "luthier_batch_exec_seconds": (counters.exec_s,),
            "luthier_replica_deaths": (counters.replica_deaths, "reason"),
            "luthier_queue_items": (self.queue_items,),
            "luthier_inflight_requests": (self.unfinished_requests,),
            "luthier_replicas": (self.replicas, "state"),
            "luthier_cache_lookups": (self.cache_lookups, "result"),
            "luthier_cache_bytes": (self.cache_bytes,),
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """Counters and current state of a shared pool."""

    kind: str
    counters: PoolCounters
    models: int
    """Models that can be requested."""
    replicas: Mapping[str, int]
    """Replicas by state."""
    held: Mapping[int, tuple[int, int]]
    """Models and pages in memory, by replica number."""
    budget: int | None
    """Pages per replica; None: unlimited."""

    def values(self) -> _Values:
        """Return the metrics with the label `pool`."""
        counters = self.counters
        return {
            "luthier_pool_actions": (counters.actions, "action", "outcome"),
            "luthier_pool_replicas": (self.replicas, "state"),
            "luthier_pool_replica_deaths": (counters.replica_deaths, "reason"),
            "luthier_pool_load_seconds": (counters.load_s,),
            "luthier_pool_overestimate_seconds": (counters.over_s, "action"),
            "luthier_pool_underestimate_seconds": (counters.under_s, "action"),
            "luthier_pool_models": (self.models,),
            "luthier_pool_budget_pages": (self.budget,),
            "luthier_pool_loaded_models": (
                {replica: models for replica, (models, _) in self.held.items()},
                "replica",
            ),
            "luthier_pool_loaded_pages": (
                {replica: pages for replica, (_, pages) in self.held.items()},
                "replica",
            ),
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counters and current state of the server."""

    generation: int
    out_of_sync: int = 0
    """Models and pools out of sync with the settings."""
    connections: int
    cut: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Connections closed by the server, by reason."""
    unresolved: Mapping[int, int]
    """Responses to requests for unknown models, by HTTP status."""
    models: tuple[ModelMetrics, ...]
    pools: tuple[PoolMetrics, ...] = ()
    state_misses: Mapping[str, int]
    """Queries per application decided with an initial state."""

    def values(self) -> _Values:
        """Return the metrics of the server itself."""
        return {
            "luthier_unknown_model_requests": (self.unresolved, "status"),
            "luthier_policy_state_misses": (self.state_misses, "application"),
            "luthier_settings_generation": (self.generation,),
            "luthier_settings_out_of_sync": (self.out_of_sync,),
            "luthier_connections": (self.connections,),
            "luthier_closed_connections": (self.cut, "reason"),
        }


class _Family(Collector):
    """Collector of one metric, which `generate_latest` takes."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def pieces(now: Snapshot) -> Iterator[bytes]:
    """Yield the body of `GET /metrics` by metric: all at once takes milliseconds."""
    sources: list[tuple[dict[str, str], _Values]] = [({}, now.values())]
    sources += [(model.id._asdict(), model.values()) for model in now.models]
    sources += [({"pool": pool.kind}, pool.values()) for pool in now.pools]
    for kind, texts in _TEXTS.items():
        for name, text in texts.items():
            metric = Metric(name, text, kind)
            for labels, values in sources:
                if name in values:
                    value, *names = values[name]
                    _add(metric, labels, value, names)
            yield generate_latest(_Family(metric))


def _add(metric: Metric, labels: dict[str, str], value: Any, names: list[str]) -> None:
    """Add a value, or one for each value of the first of the labels `names`."""
    if names:
        for key, inner in value.items():
            _add(metric, {**labels, names[0]: str(key)}, inner, names[1:])
    elif isinstance(value, BucketHistogram):
        count = 0.0
        for bound, count in value.cumulative():
            metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
        metric.add_sample(f"{metric.name}_count", labels, count)
        metric.add_sample(f"{metric.name}_sum", labels, value.sum)
    elif value is not None:
        suffix = "_total" if metric.type == "counter" else ""
        metric.add_sample(f"{metric.name}{suffix}", labels, value)
