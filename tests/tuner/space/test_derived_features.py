"""Features of configurations: in the unit interval, and where something stops binding they stop changing."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import benches
from tuner.space.derived_features import features
from tuner.space.environment import Environment, Machine
from tuner.space.footprint import differences, footprint

NAMES = ("capacity", "crowd", "pace", "fill", "patience")
ENVIRONMENT = Environment(concurrency=20, machine=Machine(cores=2, memory_mb=8192))

configurations = st.fixed_dictionaries(
    {
        "replica.count": st.integers(1, 16),
        "replica.cpu": st.floats(0.05, 16),
        "replica.threads": st.integers(1, 8),
        "batching.max_size": st.integers(1, 512),
        "batching.timeout_us": st.integers(0, 1_000_000),
    }
)


@given(configurations)
def test_features_lie_in_the_unit_interval(configuration: dict[str, float]) -> None:
    found = features(configuration, ENVIRONMENT)
    assert found.shape == (len(NAMES),)
    assert (found >= 0).all()
    assert (found <= 1).all()


def test_quotas_beyond_the_machine_are_one_capacity() -> None:
    one = features({"replica.count": 2, "replica.cpu": 1.0}, ENVIRONMENT)
    other = features({"replica.count": 4, "replica.cpu": 1.0}, ENVIRONMENT)
    assert one[NAMES.index("capacity")] == other[NAMES.index("capacity")] == 1.0


def test_a_batch_that_fills_needs_no_patience() -> None:
    patience = NAMES.index("patience")
    filling = {"batching.max_size": 4, "batching.timeout_us": 5000}
    never = {"batching.max_size": 64, "batching.timeout_us": 5000}
    assert features(filling, ENVIRONMENT)[patience] == 0
    assert features(never, ENVIRONMENT)[patience] > 0


OPEN = dataclasses.replace(ENVIRONMENT, concurrency=500, rate_per_s=1000.0)


@given(configurations, st.floats(0.1, 1e6))
def test_features_of_an_open_loop_lie_in_the_unit_interval(
    configuration: dict[str, float], rate_per_s: float
) -> None:
    found = features(configuration, dataclasses.replace(OPEN, rate_per_s=rate_per_s))
    assert (found >= 0).all()
    assert (found <= 1).all()


def test_a_batch_of_an_open_loop_waits_until_it_is_full_or_for_its_timeout() -> None:
    """A thousand requests a second bring eight in 8 ms: by then it is full, or the timeout was shorter."""
    fill, patience = NAMES.index("fill"), NAMES.index("patience")
    found = {
        timeout_us: features({"batching.max_size": 8, "batching.timeout_us": timeout_us}, OPEN)
        for timeout_us in (0, 2_000, 4_000, 8_000, 16_000)
    }
    assert found[0][patience] == 0
    assert found[2_000][patience] < found[4_000][patience] < found[8_000][patience]
    assert found[16_000][patience] == found[8_000][patience]
    assert found[2_000][fill] < found[8_000][fill] < found[16_000][fill]


def test_other_engines_have_features_all_the_same() -> None:
    assert np.isfinite(features({"workers": 3, "mode": "fast"}, ENVIRONMENT)).all()


def test_candidates_carry_features_behind_the_knobs() -> None:
    """They are no axis of a design: the nearest cell is found by the knobs alone."""
    candidates = benches.arena().candidates
    assert candidates.extra > 0
    assert candidates.width == candidates.design_width + candidates.extra
    every = np.arange(len(candidates.configurations))
    for place in (0, 17, len(candidates.configurations) - 1):
        point = candidates.vectors[place][: candidates.design_width]
        assert candidates.nearest(point, every) == place


def test_footprints_order_by_cores_then_memory_then_processes() -> None:
    small = footprint({"replica.count": 1, "replica.cpu": 0.5, "replica.memory_mb": 64}, cores=2)
    large = footprint({"replica.count": 2, "replica.cpu": 0.5, "replica.memory_mb": 64}, cores=2)
    roomy = footprint({"replica.count": 1, "replica.cpu": 0.5, "replica.memory_mb": 512}, cores=2)
    assert small < roomy < large
    unlimited = footprint({"replica.count": 4}, cores=2)
    assert unlimited[0] == 2
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3}) == 1
