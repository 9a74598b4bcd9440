"""The metrics as Prometheus reads them: names that the pages have, and counts that add up."""

import pathlib
import re

from hypothesis import given
from hypothesis import strategies as st

from serving.metrics.counters import Counters, PoolCounters
from serving.metrics.exposition import ModelMetrics, PoolMetrics, Snapshot, pieces
from serving.values import ModelId

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "serving.md"


def text_of(counters, pool):
    """The page of a server with one model and one pool."""
    model = ModelMetrics(
        id=ModelId("m", "1"),
        requests=counters.responses,
        rejected_requests={"cannot finish before its deadline": 3},
        late_responses=counters.late,
        request_seconds=counters.latency_s,
        batch_items=counters.batch_items,
        batch_exec_seconds=counters.exec_s,
        replica_deaths=counters.replica_deaths,
        queue_items=1,
        inflight_requests=2,
        replicas={"ready": 1},
        node_replicas={"10.0.0.1": 3},
        cache_lookups={"hit": 0, "miss": 0, "shared": 0},
        cache_bytes=0,
    )
    shared = PoolMetrics(
        kind="onnx",
        actions=pool.actions,
        replicas={"ready": 1},
        node_replicas={"10.0.0.1": 3},
        replica_deaths=pool.replica_deaths,
        load_seconds=pool.load_s,
        overestimate_seconds=pool.over_s,
        underestimate_seconds=pool.under_s,
        models=5,
        budget_pages=4,
        loaded_models={7: 2},
        loaded_pages={7: 3},
    )
    snapshot = Snapshot(
        models=(model,),
        pools=(shared,),
        unknown_model_requests={404: 1},
        policy_state_misses={"app": 1},
        settings_generation=1,
        settings_out_of_sync=0,
        connections=0,
        closed_connections={},
    )
    return b"".join(pieces(snapshot)).decode()


def test_the_page_names_every_metric():
    """And none that does not exist."""
    text = text_of(Counters(), PoolCounters())
    exposed = set(re.findall(r"^# TYPE (luthier_\w+)", text, flags=re.MULTILINE))
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `luthier_")]
    listed = {name for line in table for name in re.findall(r"`(luthier_\w+)`", line)}
    assert listed == exposed


def test_what_a_pool_holds_is_shown():
    """By replica, beside the budget; refusals and late answers by model."""
    counters = Counters()
    counters.late = 9
    pool = PoolCounters()
    pool.on_replica_death("oom")
    pool.record_action("load", "ok", 0.125, 0.25)
    lines = text_of(counters, pool).splitlines()
    for line in (
        'luthier_pool_replicas{pool="onnx",state="ready"} 1.0',
        'luthier_pool_node_replicas{node="10.0.0.1",pool="onnx"} 3.0',
        'luthier_pool_actions_total{action="load",outcome="ok",pool="onnx"} 1.0',
        'luthier_pool_load_seconds_bucket{le="0.1",pool="onnx"} 0.0',
        'luthier_pool_load_seconds_bucket{le="+Inf",pool="onnx"} 1.0',
        'luthier_pool_load_seconds_count{pool="onnx"} 1.0',
        'luthier_pool_load_seconds_sum{pool="onnx"} 0.25',
        'luthier_pool_underestimate_seconds_count{action="load",pool="onnx"} 1.0',
        'luthier_unknown_model_requests_total{status="404"} 1.0',
        "luthier_settings_generation 1.0",
        'luthier_pool_replica_deaths_total{pool="onnx",reason="oom"} 1.0',
        'luthier_pool_models{pool="onnx"} 5.0',
        'luthier_pool_budget_pages{pool="onnx"} 4.0',
        'luthier_pool_loaded_models{pool="onnx",replica="7"} 2.0',
        'luthier_pool_loaded_pages{pool="onnx",replica="7"} 3.0',
        'luthier_late_responses_total{model="m",version="1"} 9.0',
        'luthier_rejected_requests_total{model="m",reason="cannot finish before its deadline",version="1"} 3.0',
    ):
        assert line in lines


SECONDS = st.floats(0, 1)
ENDED = st.one_of(
    st.tuples(st.sampled_from(["load", "infer"]), st.just("ok"), SECONDS, SECONDS),
    st.tuples(
        st.sampled_from(["load", "infer", "unload"]),
        st.sampled_from(["ok", "failed", "lost", "too_late"]),
        SECONDS,
        st.none(),
    ),
)


@given(st.lists(ENDED, max_size=30))
def test_every_action_that_was_measured_is_in_one_histogram(ended):
    """It took less than was predicted, or more; what was not measured is counted alone."""
    pool = PoolCounters()
    for one in ended:
        pool.record_action(*one)
    total = sum(sum(by_outcome.values()) for by_outcome in pool.actions.values())
    assert total == len(ended)
    for kind in ("load", "infer"):
        measured = [
            (expected, took)
            for what, _, expected, took in ended
            if what == kind and took is not None
        ]
        counts = [sum(histogram.counts) for histogram in (pool.over_s[kind], pool.under_s[kind])]
        assert sum(counts) == len(measured)
        assert counts[1] == sum(took > expected for expected, took in measured)
