"""The counters of `serving.metrics.counters` in Prometheus' text format, through
`prometheus_client`.

In: the counters and a snapshot of gauges; out: the bytes of `GET /metrics`. Names follow
Prometheus' conventions: seconds, `_total`, base units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from serving.metrics.counters import Counters, Histogram


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What is true at the moment of asking."""

    queue_items: int
    unfinished_requests: int
    replicas: Mapping[str, int]
    """Replicas by state."""
    cache_hits: int
    cache_misses: int
    cache_shared: int
    cache_bytes: int
    generation: int
    connections: int


class _Collector(Collector):
    def __init__(self, model: str, counters: Counters, gauges: Callable[[], Gauges]) -> None:
        self._model = model
        self._counters = counters
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        counters, now, model = self._counters, self._gauges(), self._model
        yield _counter(
            "luthier_requests",
            "Inference responses by HTTP status (499: the client went away).",
            model,
            "status",
            {str(status): count for status, count in counters.responses.items()},
        )
        yield _histogram(
            "luthier_request_seconds",
            "Seconds from a request's last byte to its answer.",
            model,
            counters.latency_s,
        )
        yield _histogram("luthier_batch_items", "Items per batch.", model, counters.batch_items)
        yield _histogram(
            "luthier_batch_exec_seconds",
            "Seconds of model execution per batch.",
            model,
            counters.exec_s,
        )
        yield _counter(
            "luthier_replica_deaths",
            "Replicas that ended unasked, by reason.",
            model,
            "reason",
            counters.replica_deaths,
        )
        yield _gauge("luthier_queue_items", "Items that wait for a batch.", model, now.queue_items)
        yield _gauge(
            "luthier_unfinished_requests",
            "Requests without an answer.",
            model,
            now.unfinished_requests,
        )
        replicas = GaugeMetricFamily(
            "luthier_replicas", "Replicas by state.", labels=("model", "state")
        )
        for state, count in now.replicas.items():
            replicas.add_metric((model, state), count)
        yield replicas
        yield _counter(
            "luthier_cache_lookups",
            "Prediction cache look-ups: hit, miss, shared (waited for an equal request in flight).",
            model,
            "result",
            {"hit": now.cache_hits, "miss": now.cache_misses, "shared": now.cache_shared},
        )
        yield _gauge(
            "luthier_cache_bytes", "Bytes in the prediction cache.", model, now.cache_bytes
        )
        yield _gauge(
            "luthier_settings_generation", "Generation of the settings.", model, now.generation
        )
        yield _gauge("luthier_connections", "Open client connections.", model, now.connections)


def _counter(name: str, text: str, model: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("model", label))
    for value, count in counts.items():
        family.add_metric((model, value), count)
    return family


def _gauge(name: str, text: str, model: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("model",))
    family.add_metric((model,), value)
    return family


def _histogram(name: str, text: str, model: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("model",))
    family.add_metric((model,), buckets=histogram.cumulative(), sum_value=histogram.sum)
    return family


class Exposition:
    """The metrics of one server."""

    def __init__(self, model: str, counters: Counters, gauges: Callable[[], Gauges]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(model, counters, gauges))

    def text(self) -> bytes:
        """The body of `GET /metrics`."""
        return generate_latest(self._registry)
