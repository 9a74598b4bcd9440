"""What the adaptive scheduler promises: an idle server serves what can be served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.sizing import POLICIES
from serving.scheduling.interface import WarmupMeasured
from tests.serving.scheduling.schedules import schedules
from tests.serving.scheduling.worlds import Ask, Disturbance, World


@schedules
@given(
    base_s=st.sampled_from([0.0, 0.001, 0.005]),
    item_s=st.sampled_from([0.0001, 0.001, 0.004]),
    policy=st.sampled_from(sorted(POLICIES)),
    timeout_us=st.sampled_from([0, 1000, 10_000, 30_000, 1_000_000]),
    max_size=st.sampled_from([1, 4, 16]),
    workers=st.integers(1, 3),
    routing=st.sampled_from(["least-loaded", "round-robin"]),
    seeded=st.booleans(),
    lone=st.lists(
        st.tuples(
            st.integers(1, 16),
            st.one_of(st.just(1e-6), st.floats(1e-6, 0.05), st.floats(1e-6, 5.0)),
            st.one_of(st.none(), st.floats(0.0, 0.03)),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_a_free_worker_and_enough_time_for_the_work_alone_is_an_answer_in_time(
    base_s: float,
    item_s: float,
    policy: str,
    timeout_us: int,
    max_size: int,
    workers: int,
    routing: str,
    seeded: bool,
    lone: list[tuple[int, float, float | None]],
) -> None:
    """However long others might be waited for: a request to an idle server, and one with time that comes beside it."""
    world = World(
        base_s=base_s,
        item_s=item_s,
        workers=workers,
        batching__policy=policy,
        batching__timeout_us=timeout_us,
        batching__max_size=max_size,
        batching__slo_ms=1000.0,
        routing__policy=routing,
    )
    sizes = range(1, 17)
    if seeded:
        world.scheduler.on(WarmupMeasured({size: world.took_s(size) for size in sizes}), 0.0)
    asks = [Ask(at_s=10.0 * place, within_s=60.0, items=items) for place, items in enumerate(sizes)]
    measured = len(asks)
    at_s = 10.0 * measured
    for items, spare_s, beside_s in lone:
        batches = -(-items // max_size)  # as many as there are, one after another at worst
        alone_s = batches * base_s + items * item_s
        asks.append(Ask(at_s=at_s, within_s=alone_s + spare_s, items=items))
        if beside_s is not None:
            asks.append(Ask(at_s=at_s + beside_s, within_s=60.0))
        at_s += 100.0
    world.run(asks)
    if policy in {"aimd", "quantile"}:  # they may run single items until they have learnt
        kept = [id_ for id_, ask in enumerate(asks) if ask.items == 1]
    else:
        kept = list(range(len(asks)))
    late = [world.asks[id_] for id_ in kept if not world.in_time(id_)]
    assert not late


@pytest.mark.parametrize("within_ms", [2.0, 5.0, 8.0, 9.0, 10.0, 15.0])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_deadline_before_the_timeout_is_kept(within_ms: float, policy: str) -> None:
    """The case of the review: 8 ms to live, 1 ms of work, `batching.timeout_us` of 10,000."""
    world = World(
        base_s=0.0009,
        item_s=0.0001,
        batching__timeout_us=10_000,
        batching__max_size=8,
        batching__policy=policy,
    )
    world.scheduler.on(WarmupMeasured({1: 0.001, 8: 0.0017}), 0.0)
    world.run([Ask(at_s=1.0 + number, within_s=1e-3 * within_ms) for number in range(4)])
    assert all(world.in_time(id_) for id_ in range(4))


def test_a_turn_with_a_busy_worker_does_not_make_a_request_late_that_an_idle_one_could_answer() -> (
    None
):
    """Turns go round, and the worker whose turn it is runs a long batch."""
    world = World(
        base_s=0.0, item_s=0.01, workers=2, routing__policy="round-robin", batching__max_size=8
    )
    world.scheduler.on(WarmupMeasured({1: 0.01, 8: 0.08}), 0.0)
    world.run(
        [
            Ask(at_s=0.0, within_s=30.0, items=8),
            Ask(at_s=0.0, within_s=30.0, items=1),
            Ask(at_s=0.02, within_s=0.015, items=1),
        ]
    )
    assert world.in_time(2)


HUNG = Disturbance(from_s=0.0, until_s=0.001, more_s=30.0, times=1)
"""The first batch."""


def world_of(workers: int = 1, *, hung: bool = False, **knobs: object) -> World:
    """Batches of one item take 9 ms, of eight 16 ms; which the scheduler knows."""
    knobs = {"batching__max_size": 8, **knobs}
    disturbances = [HUNG] if hung else []
    world = World(base_s=0.008, item_s=0.001, workers=workers, disturbances=disturbances, **knobs)
    world.scheduler.on(WarmupMeasured({size: world.took_s(size) for size in range(1, 9)}), 0.0)
    return world


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin"])
def test_nothing_is_refused_for_a_hung_worker_that_has_room(routing: str) -> None:
    """Others serve what waits: as much as if it were gone."""
    asks = [Ask(at_s=0.2, within_s=0.1)] * 100
    beside = world_of(2, hung=True, routing__policy=routing)
    beside.run([Ask(at_s=0.0, within_s=0.1), *asks])
    alone = world_of(1)
    alone.run(asks)
    assert beside.goodput(0.2, 0.4) >= alone.goodput(0.2, 0.4) >= 48


def test_a_lone_worker_that_is_late_is_waited_for() -> None:
    """That it may hang refuses nothing: nobody else could do it."""
    stall = Disturbance(from_s=0.0, until_s=0.001, more_s=0.2, times=1)
    world = World(base_s=0.008, item_s=0.001, disturbances=[stall], batching__max_size=8)
    world.scheduler.on(WarmupMeasured({1: 0.009, 8: 0.016}), 0.0)
    world.run([Ask(at_s=0.0, within_s=1.0), Ask(at_s=0.2, within_s=0.1)])
    assert [world.in_time(id_) for id_ in (0, 1)] == [True, True]


def test_a_request_of_many_batches_that_cannot_be_in_time_costs_others_nothing() -> None:
    """Eight batches in the time of six: it is refused when that is known, and not when the time is over."""
    world = world_of()
    small = [Ask(at_s=0.001, within_s=0.1)] * 8
    world.run([Ask(at_s=0.0, within_s=0.1, items=64), *small])
    assert 0 in world.refused
    assert all(world.in_time(id_) for id_ in range(1, 9))


@pytest.mark.parametrize("items", [2, 3, 7])  # of which 32 is a multiple or not
def test_requests_of_several_items_are_joined_by_policies_that_learn(items: int) -> None:
    """The next one that does not fit makes a batch full."""
    asks = [Ask(at_s=0.001 * place, within_s=0.2, items=items) for place in range(3000)]
    done = {}
    for name in ("fixed", "aimd", "quantile"):
        knobs = {"batching__policy": name, "batching__slo_ms": 90.0}
        world = World(base_s=0.008, item_s=0.0005, batching__max_size=32, **knobs)
        world.run(asks)
        done[name] = world.goodput(2.0, 3.0)
    assert done["aimd"] >= 0.8 * done["fixed"]
    assert done["quantile"] >= 0.8 * done["fixed"]


def test_a_size_that_hangs_when_it_is_first_tried_does_not_shorten_the_batches_of_others() -> None:
    """Such as a shape that is compiled: another worker tries it as well."""
    hung = Disturbance(from_s=0.5, until_s=0.6, more_s=20.0, from_items=2, times=1)
    world = World(base_s=0.008, item_s=0.001, workers=2, disturbances=[hung], batching__max_size=8)
    single = [Ask(at_s=0.05 * place, within_s=1.0) for place in range(9)]
    burst = [Ask(at_s=0.5 + 0.0025 * place, within_s=0.2) for place in range(1200)]
    world.run([*single, *burst])
    assert world.goodput(1.0, 3.0) > 2 * 300
