"""Counters and gauges in Prometheus' text format, by `prometheus_client`.

Names follow Prometheus' conventions: seconds, `_total`, base units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from serving.metrics.counters import BucketHistogram, Counters, PoolCounters
from serving.values import ModelId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Current state of one deployment."""

    queue_items: int
    unfinished_requests: int
    replicas: Mapping[str, int]
    """Replicas by state."""
    cache_hits: int
    cache_misses: int
    """Excludes requests that joined another."""
    cache_shared: int
    cache_bytes: int
    refusals: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Rejections by reason."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """Metrics of one deployment."""

    id: ModelId
    counters: Counters
    gauges: Gauges


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """Metrics of a shared pool."""

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Current state of the server."""

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


class _Collector(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield from _of_models(now.models)
        yield from _of_pools(now.pools)
        yield from _of_server(now)


def _of_models(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    yield from _of_requests(models)
    yield from _of_batches(models)


def _of_requests(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Responses, refusals and latencies by deployment."""
    yield _counter(
        "luthier_requests",
        "Inference responses by HTTP status (499: the client went away).",
        "status",
        {
            one.id: {str(status): count for status, count in one.counters.responses.items()}
            for one in models
        },
    )
    yield _counter(
        "luthier_rejected_requests",
        "Requests rejected by the scheduler, by reason: on arrival, or when their "
        "deadline became unreachable.",
        "reason",
        {one.id: one.gauges.refusals for one in models},
    )
    late = CounterMetricFamily(
        "luthier_late_responses", "Responses sent after their deadline.", labels=_LABELS
    )
    for one in models:
        late.add_metric(one.id, one.counters.late)
    yield late
    yield _histogram(
        "luthier_request_seconds",
        "Seconds from a request's last byte to its response.",
        {one.id: one.counters.latency_s for one in models},
    )


def _of_batches(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Batches, queues, replicas and caches by deployment."""
    yield _histogram(
        "luthier_batch_items",
        "Items per batch.",
        {one.id: one.counters.batch_items for one in models},
    )
    yield _histogram(
        "luthier_batch_exec_seconds",
        "Seconds of model execution per batch.",
        {one.id: one.counters.exec_s for one in models},
    )
    yield _counter(
        "luthier_replica_deaths",
        "Replicas that ended unexpectedly, by reason.",
        "reason",
        {one.id: one.counters.replica_deaths for one in models},
    )
    yield _gauge(
        "luthier_queue_items",
        "Items waiting for a batch.",
        {one.id: one.gauges.queue_items for one in models},
    )
    yield _gauge(
        "luthier_inflight_requests",
        "Requests without a response yet.",
        {one.id: one.gauges.unfinished_requests for one in models},
    )
    replicas = GaugeMetricFamily(
        "luthier_replicas", "Replicas by state.", labels=(*_LABELS, "state")
    )
    for one in models:
        for state, count in one.gauges.replicas.items():
            replicas.add_metric((*one.id, state), count)
    yield replicas
    yield _counter(
        "luthier_cache_lookups",
        "Response cache look-ups: hit, miss, shared (waited for an equal request in flight).",
        "result",
        {
            one.id: {
                "hit": one.gauges.cache_hits,
                "miss": one.gauges.cache_misses,
                "shared": one.gauges.cache_shared,
            }
            for one in models
        },
    )
    yield _gauge(
        "luthier_cache_bytes",
        "Bytes in the response cache.",
        {one.id: one.gauges.cache_bytes for one in models},
    )


def _of_pools(pools: Sequence[PoolMetrics]) -> Iterator[Metric]:
    actions = CounterMetricFamily(
        "luthier_pool_actions",
        "Actions given to shared replicas, by outcome (too_late: not started in its window).",
        labels=("pool", "action", "outcome"),
    )
    replicas = GaugeMetricFamily(
        "luthier_pool_replicas", "Shared replicas by state.", labels=("pool", "state")
    )
    deaths = CounterMetricFamily(
        "luthier_pool_replica_deaths",
        "Shared replicas that ended unexpectedly, by reason.",
        labels=("pool", "reason"),
    )
    load_s = HistogramMetricFamily(
        "luthier_pool_load_seconds", "Seconds of loads.", labels=("pool",)
    )
    over_s = HistogramMetricFamily(
        "luthier_pool_overestimate_seconds",
        "Seconds by which an action took less than was predicted.",
        labels=("pool", "action"),
    )
    under_s = HistogramMetricFamily(
        "luthier_pool_underestimate_seconds",
        "Seconds by which an action took more than was predicted.",
        labels=("pool", "action"),
    )
    models = GaugeMetricFamily(
        "luthier_pool_models", "Models that can be requested.", labels=("pool",)
    )
    budget = GaugeMetricFamily(
        "luthier_pool_budget_pages", "Pages for models in each replica.", labels=("pool",)
    )
    held = GaugeMetricFamily(
        "luthier_pool_loaded_models", "Models in a replica's memory.", labels=("pool", "replica")
    )
    pages = GaugeMetricFamily(
        "luthier_pool_loaded_pages", "Pages that loaded models take.", labels=("pool", "replica")
    )
    for pool in pools:
        counters = pool.counters
        for action, by_outcome in counters.actions.items():
            for outcome, count in by_outcome.items():
                actions.add_metric((pool.kind, action, outcome), count)
        for state, count in pool.replicas.items():
            replicas.add_metric((pool.kind, state), count)
        for reason, count in counters.replica_deaths.items():
            deaths.add_metric((pool.kind, reason), count)
        _add(load_s, (pool.kind,), counters.load_s)
        for family, by_action in ((over_s, counters.over_s), (under_s, counters.under_s)):
            for action, histogram in by_action.items():
                _add(family, (pool.kind, action), histogram)
        models.add_metric((pool.kind,), pool.models)
        if pool.budget is not None:
            budget.add_metric((pool.kind,), pool.budget)
        for replica, (count, taken) in pool.held.items():
            held.add_metric((pool.kind, str(replica)), count)
            pages.add_metric((pool.kind, str(replica)), taken)
    yield from (actions, replicas, deaths, load_s, over_s, under_s, models, budget, held, pages)


def _of_server(now: Snapshot) -> Iterator[Metric]:
    yield _plain_counter(
        "luthier_unknown_model_requests",
        "Responses by HTTP status to requests that named no known model.",
        "status",
        {str(status): count for status, count in now.unresolved.items()},
    )
    yield _plain_counter(
        "luthier_policy_state_misses",
        "Queries decided without the policy's learnt state, because it could not be read.",
        "application",
        now.state_misses,
    )
    yield GaugeMetricFamily(
        "luthier_settings_generation", "Generation of the settings.", value=now.generation
    )
    yield GaugeMetricFamily(
        "luthier_settings_out_of_sync",
        "Models and pools with other settings than wanted: a change failed and could not "
        "be undone.",
        value=now.out_of_sync,
    )
    yield GaugeMetricFamily(
        "luthier_connections", "Open client connections.", value=now.connections
    )
    yield _plain_counter(
        "luthier_closed_connections",
        "Connections closed by the server: refused or stalled connections, late requests "
        "(docs/serving.md).",
        "reason",
        now.cut,
    )


_LABELS = ("model", "version")


def _plain_counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _counter(
    name: str, text: str, label: str, counts: Mapping[ModelId, Mapping[str, int]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=(*_LABELS, label))
    for model, by_value in counts.items():
        for value, count in by_value.items():
            family.add_metric((*model, value), count)
    return family


def _gauge(name: str, text: str, values: Mapping[ModelId, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_LABELS)
    for model, value in values.items():
        family.add_metric(model, value)
    return family


def _histogram(name: str, text: str, histograms: Mapping[ModelId, BucketHistogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=_LABELS)
    for model, histogram in histograms.items():
        _add(family, model, histogram)
    return family


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: BucketHistogram) -> None:
    family.add_metric(labels, buckets=histogram.cumulative(), sum_value=histogram.sum)


class _Family(Collector):
    """Collector of one metric family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class Exposition:
    """The metrics of one server."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._collector = _Collector(snapshot)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body of `GET /metrics` by family: all at once takes milliseconds."""
        for metric in self._collector.collect():
            yield generate_latest(_Family(metric))
