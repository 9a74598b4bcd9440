"""What a whole server needs: sums of gateway and replicas, as exports ask for and studies limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.metrics import server_resources as resources
from tuner.metrics.server_resources import needed_by

configurations = st.fixed_dictionaries(
    {"replica.count": st.integers(1, 64)},
    optional={
        "replica.cpu": st.floats(0.1, 16),
        "replica.threads": st.integers(1, 16),
        "replica.memory_mb": st.integers(8, 65_536),
        "cache.capacity_mb": st.integers(0, 1024),
    },
)
kinds = st.sampled_from([*resources.RUNTIME_MB, "onnx", "sklearn"])


@given(configurations, kinds, st.none() | st.integers(1, 128))
def test_a_server_needs_all_its_parts_and_no_more_cores_than_there_are(configuration, kind, cores):
    """The gateway is in the sum; a study without a limit of memory gets none."""
    found = needed_by(configuration, kind, cores=cores)
    each = configuration.get("replica.cpu", configuration.get("replica.threads", 1))
    wanted = resources.GATEWAY_CPU + configuration["replica.count"] * each
    assert found.cpu == pytest.approx(wanted if cores is None else min(cores, wanted))
    limit_mb = configuration.get("replica.memory_mb")
    assert (found.memory_mb is None) == (limit_mb is None)
    if limit_mb is not None:
        assert found.memory_mb >= configuration["replica.count"] * limit_mb + resources.GATEWAY_MB
        assert f"= {found.memory_mb} MiB." in found.lines[-1]


@given(configurations, kinds)
def test_one_more_replica_needs_its_limits_more(configuration, kind):
    """Nothing is shared that one replica more would use."""
    more = {**configuration, "replica.count": configuration["replica.count"] + 1}
    before, after = (needed_by(one, kind, cores=None) for one in (configuration, more))
    each = configuration.get("replica.cpu", configuration.get("replica.threads", 1))
    assert after.cpu - before.cpu == pytest.approx(each)
    if before.memory_mb is not None:
        assert after.memory_mb - before.memory_mb == configuration["replica.memory_mb"]


def test_a_server_without_a_cache_needs_none():
    """What another server lacks is no part of its sum."""
    configuration = {"replica.memory_mb": 100, "cache.capacity_mb": 50}
    has, lacks = (
        needed_by(configuration, "onnx", cores=4, has_cache=has_cache)
        for has_cache in (True, False)
    )
    assert has.memory_mb - lacks.memory_mb == 50
