"""What the adaptive scheduler promises: an idle server serves what can be served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.sizing import POLICIES
from serving.scheduling.seam import Warmed
from tests.serving.scheduling.schedules import schedules
from tests.serving.scheduling.worlds import Ask, World


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
        batching__objective_ms=1000.0,
        routing__policy=routing,
    )
    sizes = range(1, 17)
    if seeded:
        world.scheduler.on(Warmed({size: world.took_s(size) for size in sizes}), 0.0)
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
    world.scheduler.on(Warmed({1: 0.001, 8: 0.0017}), 0.0)
    world.run([Ask(at_s=1.0 + number, within_s=1e-3 * within_ms) for number in range(4)])
    assert all(world.in_time(id_) for id_ in range(4))


def test_a_turn_with_a_busy_worker_does_not_make_a_request_late_that_an_idle_one_could_answer() -> (
    None
):
    """Turns go round, and the worker whose turn it is runs a long batch."""
    world = World(
        base_s=0.0, item_s=0.01, workers=2, routing__policy="round-robin", batching__max_size=8
    )
    world.scheduler.on(Warmed({1: 0.01, 8: 0.08}), 0.0)
    world.run(
        [
            Ask(at_s=0.0, within_s=30.0, items=8),
            Ask(at_s=0.0, within_s=30.0, items=1),
            Ask(at_s=0.02, within_s=0.015, items=1),
        ]
    )
    assert world.in_time(2)
