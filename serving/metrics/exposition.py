"""Counters and gauges in the Prometheus text format, written with `prometheus_client`.

Each field is a metric: a number, a histogram, or one of these for each value of its labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from serving.metrics.counters import BucketHistogram
from serving.values import ModelId


def _metric(kind: str, text: str, *labels: str) -> Any:
    return dataclasses.field(metadata={"kind": kind, "text": text, "labels": labels})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """One deployment's metrics, named `luthier_*`."""

    id: ModelId
    requests: Mapping[int, int] = _metric(
        "counter", "Inference responses by HTTP status (499: the client went away).", "status"
    )
    rejected_requests: Mapping[str, int] = _metric(
        "counter",
        "Requests rejected by the scheduler, by reason: on arrival, or when their deadline became unreachable.",
        "reason",
    )
    late_responses: int = _metric("counter", "Responses sent after their deadline.")
    request_seconds: BucketHistogram = _metric(  # noqa: RUF009
        "histogram", "Seconds from a request's last byte to its response."
    )
    batch_items: BucketHistogram = _metric("histogram", "Items per batch.")  # noqa: RUF009
    batch_exec_seconds: BucketHistogram = _metric(  # noqa: RUF009
        "histogram", "Seconds of model execution per batch."
    )
    replica_deaths: Mapping[str, int] = _metric(
        "counter", "Replicas that ended unexpectedly, by reason.", "reason"
    )
    queue_items: int = _metric("gauge", "Items waiting for a batch.")
    inflight_requests: int = _metric("gauge", "Requests without a response yet.")
    replicas: Mapping[str, int] = _metric("gauge", "Replicas by state.", "state")
    node_replicas: Mapping[str, int] = _metric(
        "gauge", "Ready replicas on other machines, by machine.", "node"
    )
    cache_lookups: Mapping[str, int] = _metric(
        "counter",
        "Response cache look-ups: hit, miss, shared (waited for an equal request in flight).",
        "result",
    )
    cache_bytes: int = _metric("gauge", "Bytes in the response cache.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """A shared pool's metrics, named `luthier_pool_*`."""

    kind: str
    actions: Mapping[str, Mapping[str, int]] = _metric(
        "counter",
        "Actions given to shared replicas, by outcome (too_late: not started in its window).",
        "action",
        "outcome",
    )
    replicas: Mapping[str, int] = _metric("gauge", "Shared replicas by state.", "state")
    node_replicas: Mapping[str, int] = _metric(
        "gauge", "Ready shared replicas on other machines, by machine.", "node"
    )
    replica_deaths: Mapping[str, int] = _metric(
        "counter", "Shared replicas that ended unexpectedly, by reason.", "reason"
    )
    load_seconds: BucketHistogram = _metric("histogram", "Seconds of model loads.")  # noqa: RUF009
    overestimate_seconds: Mapping[str, BucketHistogram] = _metric(
        "histogram", "Seconds by which an action took less than was predicted.", "action"
    )
    underestimate_seconds: Mapping[str, BucketHistogram] = _metric(
        "histogram", "Seconds by which an action took more than was predicted.", "action"
    )
    models: int = _metric("gauge", "Models that can be requested.")
    budget_pages: int | None = _metric("gauge", "Pages for models in each replica.")
    """Number of pages, or None if unlimited."""
    loaded_models: Mapping[int, int] = _metric("gauge", "Models in a replica's memory.", "replica")
    loaded_pages: Mapping[int, int] = _metric("gauge", "Pages that loaded models take.", "replica")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The server's metrics, named `luthier_*`, and those of its models and pools."""

    models: tuple[ModelMetrics, ...]
    pools: tuple[PoolMetrics, ...]
    unknown_model_requests: Mapping[int, int] = _metric(
        "counter", "Responses by HTTP status to requests that named no known model.", "status"
    )
    policy_state_misses: Mapping[str, int] = _metric(
        "counter",
        "Queries decided without the policy's learned state, because it could not be read.",
        "application",
    )
    settings_generation: int = _metric("gauge", "Generation of the settings.")
    settings_out_of_sync: int = _metric(
        "gauge",
        "Models and pools with other settings than wanted: a change failed and could not be undone.",
    )
    connections: int = _metric("gauge", "Open client connections.")
    closed_connections: Mapping[str, int] = _metric(
        "counter",
        "Connections closed by the server: refused or stalled connections, late requests (docs/serving.md).",
        "reason",
    )


class _Family(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def pieces(now: Snapshot) -> Iterator[bytes]:
    """Yield the body of `GET /metrics` metric by metric, since all of it takes milliseconds."""
    of_models = [({"model": one.id.name, "version": one.id.version}, one) for one in now.models]
    yield from _pieces("luthier_", ModelMetrics, of_models)
    yield from _pieces(
        "luthier_pool_", PoolMetrics, [({"pool": one.kind}, one) for one in now.pools]
    )
    yield from _pieces("luthier_", Snapshot, [({}, now)])


def _pieces(
    prefix: str, kind: type[Any], subjects: Sequence[tuple[dict[str, str], Any]]
) -> Iterator[bytes]:
    for field in dataclasses.fields(kind):
        if field.metadata:
            metric = Metric(prefix + field.name, field.metadata["text"], field.metadata["kind"])
            for labels, subject in subjects:
                _add(metric, labels, getattr(subject, field.name), field.metadata["labels"])
            yield generate_latest(_Family(metric))


def _add(metric: Metric, labels: dict[str, str], value: Any, names: Sequence[str]) -> None:
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
