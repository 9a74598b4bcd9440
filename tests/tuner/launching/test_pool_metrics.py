"""What the server counts of shared replicas, read from its metrics' text."""

from __future__ import annotations

from serving.metrics.counters import Counters, PoolCounters
from serving.metrics.exposition import ModelMetrics, PoolMetrics, Snapshot, pieces
from serving.values import ModelId
from tuner.launching import pool_metrics
from tuner.launching.pool_metrics import PoolCounts

TEXT = """
# HELP luthier_rejected_requests_total Requests.
# TYPE luthier_rejected_requests_total counter
luthier_rejected_requests_total{model="a \\"b\\"",reason="queue full",version="1"} 2.0
luthier_rejected_requests_total{model="c",reason="queue full",version="1"} 3.0
luthier_rejected_requests_total{model="c",reason="too late",version="1"} 1.0
luthier_pool_actions_total{action="load",outcome="ok",pool="onnx"} 7.0
luthier_pool_actions_total{action="load",outcome="failed",pool="onnx"} 1.0
luthier_pool_actions_total{action="load",outcome="too_late",pool="onnx"} 4.0
luthier_pool_actions_total{action="infer",outcome="too_late",pool="onnx"} 5.0
luthier_pool_actions_total{action="infer",outcome="ok",pool="onnx"} 1.0e+06
luthier_connections 3.0
"""


def test_models_and_pools_are_added_up() -> None:
    found = pool_metrics.parse(TEXT)
    assert found == PoolCounts(refusals={"queue full": 5, "too late": 1}, loads=7, too_late=9)


def test_what_came_between_two_readings() -> None:
    found = pool_metrics.parse(TEXT)
    before = PoolCounts(refusals={"queue full": 5}, loads=3, too_late=9)
    assert found.since(before) == PoolCounts(refusals={"too late": 1}, loads=4, too_late=0)


def test_what_the_server_writes_is_read() -> None:
    """The names and labels are those of the serving core's own page."""
    pool = PoolCounters()
    for outcome, count in (("ok", 3), ("too_late", 2), ("failed", 1)):
        for _ in range(count):
            pool.record_action("load", outcome, 0.1, 0.2 if outcome == "ok" else None)
    counters = Counters()
    model = ModelMetrics(
        id=ModelId("m", "1"),
        requests={},
        rejected_requests={"queue full": 4},
        late_responses=0,
        request_seconds=counters.latency_s,
        batch_items=counters.batch_items,
        batch_exec_seconds=counters.exec_s,
        replica_deaths={},
        queue_items=0,
        inflight_requests=0,
        replicas={},
        node_replicas={},
        cache_lookups={},
        cache_bytes=0,
    )
    shared = PoolMetrics(
        kind="onnx",
        actions=pool.actions,
        replicas={"ready": 1},
        node_replicas={},
        replica_deaths={},
        load_seconds=pool.load_s,
        overestimate_seconds=pool.over_s,
        underestimate_seconds=pool.under_s,
        models=1,
        budget_pages=None,
        loaded_models={},
        loaded_pages={},
    )
    page = Snapshot(
        models=(model,),
        pools=(shared,),
        unknown_model_requests={},
        policy_state_misses={},
        settings_generation=1,
        settings_out_of_sync=0,
        connections=0,
        closed_connections={},
    )
    found = pool_metrics.parse(b"".join(pieces(page)).decode())
    assert found == PoolCounts(refusals={"queue full": 4}, loads=3, too_late=2)
