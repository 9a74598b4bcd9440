"""Facts about an engine: its replicas, and a snapshot of the metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from serving.deployment.deployment import Deployment
from serving.engine.engine import Engine
from serving.metrics.exposition import ModelMetrics, Snapshot


def replicas(engine: Engine) -> dict[str, Any]:
    """Return the replicas, and the number of replica deaths since settings last changed."""
    members: list[dict[str, Any]] = []
    deaths: list[dict[str, Any]] = []
    for served in engine.catalogue.all():
        of_model = {"model": served.id.name, "version": served.id.version}
        pool = served.placement.pool
        if pool is not None:
            members += [{**of_model, **member} for member in pool.members()]
            deaths += [{**of_model, **dataclasses.asdict(one)} for one in pool.deaths]
    for shared in engine.pools:
        kind = shared.kind
        members += [{"pool": kind, **member} for member in shared.members()]
        deaths += [{"pool": kind, **dataclasses.asdict(one)} for one in shared.pool.deaths]
    return {"replicas": members, "deaths": deaths}


def snapshot(
    engine: Engine,
    *,
    connections: int,
    cut: Mapping[str, int] | None = None,
    state_misses: Mapping[str, int] | None = None,
) -> Snapshot:
    """Return the metrics; `cut` counts by reason the connections that the server closed."""
    return Snapshot(
        models=tuple(map(_metrics, engine.catalogue.all())),
        pools=tuple(shared.metrics() for shared in engine.pools),
        unknown_model_requests=dict(engine.unknown_model_responses),
        policy_state_misses=state_misses or {},
        settings_generation=engine.generation,
        settings_out_of_sync=len(engine.out_of_sync()),
        connections=connections,
        closed_connections=cut or {},
    )


def _metrics(served: Deployment) -> ModelMetrics:
    cache, shared = served.cache.cache, served.cache.shared
    counters, placement = served.counters, served.placement
    return ModelMetrics(
        id=served.id,
        requests=counters.responses,
        rejected_requests=served.dispatcher.refusals_of(placement.model),
        late_responses=counters.late,
        request_seconds=counters.latency_s,
        batch_items=counters.batch_items,
        batch_exec_seconds=counters.exec_s,
        replica_deaths=counters.replica_deaths,
        queue_items=served.dispatcher.waiting_of(placement.model),
        inflight_requests=served.inflight_count,
        replicas={} if placement.pool is None else placement.pool.states(),
        node_replicas={} if placement.pool is None else placement.pool.on_nodes(),
        cache_lookups={"hit": cache.hits, "miss": cache.misses - shared, "shared": shared},
        cache_bytes=cache.bytes,
    )
