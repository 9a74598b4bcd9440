"""What was admitted is in time, whatever the mixture of deadlines: emulated workers that take exactly their time."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import Action, ActionResult, ActionType
from serving.values import ModelId
from tests.serving.scheduling.clockwork.emulated import (
    LAG_S,
    RESNET,
    Given,
    answered,
    broken,
    in_time,
    poisson,
    was_admitted,
)
from tests.serving.scheduling.schedules import schedules
from tuner.evaluation.simulation.pool import (
    EmulatedModel,
    EmulatedPool,
    EmulatedRequest,
    EmulatedWorker,
)

PROFILES: Sequence[Mapping[int, float]] = (
    RESNET,
    {1: 0.001},
    {1: 0.0005, 2: 0.0006, 4: 0.0008, 8: 0.0012, 16: 0.002},
    {1: 0.02, 2: 0.022},
    {1: 0.004, 3: 0.005, 5: 0.0125},
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """Requests of one kind: as a Poisson process, or all at once."""

    model: int
    from_s: float
    per_s: float
    count: int
    least_s: float
    most_s: float
    """Deadlines lie between these, as often in each doubling."""
    items: int = 1
    flow: str = ""

    def requests(self, rng: random.Random) -> Iterator[EmulatedRequest]:
        at_s = self.from_s
        for _ in range(self.count):
            within_s = self.least_s * (self.most_s / self.least_s) ** rng.random()
            yield EmulatedRequest(
                at_s=at_s,
                model=self.model,
                objective_s=within_s,
                items=self.items,
                flow=self.flow,
            )
            at_s += rng.expovariate(self.per_s) if self.per_s else 1e-5


exponents = st.floats(-3.0, 2.0)
whose = st.sampled_from(["", "a", "b", "c"])
streams = st.builds(
    lambda model, from_s, rate, count, ends, items, flow: Stream(
        model=model,
        from_s=from_s,
        per_s=rate,
        count=count,
        least_s=10.0 ** min(ends),
        most_s=10.0 ** max(ends),
        items=items,
        flow=flow,
    ),
    model=st.integers(0, 4),
    from_s=st.floats(0.0, 1.0),
    rate=st.sampled_from([0.0, 20.0, 300.0, 1000.0, 5000.0]),
    count=st.integers(1, 120),
    ends=st.one_of(st.tuples(exponents, exponents), st.builds(lambda one: (one, one), exponents)),
    items=st.sampled_from([1, 1, 1, 1, 2, 5, 20]),
    flow=whose,
)
single = st.builds(
    EmulatedRequest,
    at_s=st.floats(0.0, 0.5),
    model=st.integers(0, 4),
    objective_s=exponents.map(lambda one: 10.0**one),
    items=st.sampled_from([1, 1, 1, 2, 5, 20]),
    flow=whose,
)


@schedules
@given(
    kinds=st.lists(streams, min_size=1, max_size=5),
    singles=st.lists(single, max_size=40),
    profiles=st.lists(st.sampled_from(PROFILES), min_size=5, max_size=5),
    workers=st.integers(1, 3),
    lag_s=st.sampled_from([0.0, LAG_S, 0.0005]),
    seed=st.integers(0, 1000),
)
def test_what_was_admitted_is_in_time_whatever_comes(
    kinds: Sequence[Stream],
    singles: Sequence[EmulatedRequest],
    profiles: Sequence[Mapping[int, float]],
    workers: int,
    lag_s: float,
    seed: int,
) -> None:
    """Deadlines of a millisecond to a hundred seconds, any arrivals and flows; models in memory, times as expected."""
    rng = random.Random(seed)
    requests = [one for kind in kinds for one in kind.requests(rng)]
    outcomes = answered([*requests, *singles], profiles=profiles, workers=workers, lag_s=lag_s)
    assert not broken(outcomes)


def burst(near_per_s: float, model: int, far_s: float = 1.0) -> list[EmulatedRequest]:
    """500 requests at once that can wait, then a stream of others with 100 ms."""
    rng = random.Random(1)
    found = [EmulatedRequest(at_s=0.1 + 1e-5 * n, model=0, objective_s=far_s) for n in range(500)]
    at_s = 0.12
    while near_per_s and at_s < 1.32:
        found.append(EmulatedRequest(at_s=at_s, model=model, objective_s=0.1))
        at_s += rng.expovariate(near_per_s)
    return found


@pytest.mark.parametrize("near_per_s", [0.0, 600.0, 900.0])
@pytest.mark.parametrize("model", [0, 1])
@pytest.mark.parametrize("far_s", [0.18, 1.0, 30.0])
def test_who_can_wait_does_not_lose_its_place_to_those_who_come_later_and_cannot(
    near_per_s: float, model: int, far_s: float
) -> None:
    """The case of the review: far deadlines lay beyond a horizon, and four of five of these were dropped."""
    outcomes = answered(burst(near_per_s, model, far_s), profiles=(RESNET, RESNET))
    far, near = outcomes[:500], outcomes[500:]
    assert not broken(outcomes)
    assert sum(was_admitted(one) for one in far) >= (100 if far_s < 1.0 else 500)
    if near_per_s and far_s == 30.0:
        assert in_time(near) >= 0.9 * len(near)


class Messages(EmulatedPool):
    """Two requests of the second stream are too large for a message, which the sender tells at once."""

    def _take(self, action: Action, now_s: float) -> None:
        large = sum(self.outcomes[id_].request.stream for id_, _, _ in action.parts)
        if action.kind is not ActionType.INFER or large < 2:
            super()._take(action, now_s)
            return
        life = self.workers[action.worker].life
        result = ActionResult(action.id, action.worker, False, None, too_large=True)
        self._later(now_s, functools.partial(self._result, result, action, life))


@pytest.mark.parametrize(("load", "small"), [(0.8, 0.0), (1.5, 0.0), (3.0, 0.0), (0.3, 2.0)])
def test_promises_hold_where_requests_are_too_large_together(load: float, small: float) -> None:
    """Once it is known, they are admitted as what they are: batches of their own.

    From time to time it is tried whether they still are; that costs some.
    """
    rng = random.Random(1)
    first = EmulatedRequest(at_s=0.0, model=0, objective_s=0.1, stream=1)
    requests = list(poisson(rng, load / RESNET[1], 5.0, first))
    if small:
        requests += poisson(rng, small / RESNET[1], 5.0, dataclasses.replace(first, stream=0))
    model = EmulatedModel(id=ModelId("m", "1"), pages=1, load_s=0.008, batch_s=RESNET)
    home = EmulatedWorker(0, pages=None, concurrent_loads=False)
    home.held[model.id] = 1
    scheduler = ClockworkScheduler(Parameters())
    pool = Messages(scheduler, [model], [home], jitter=lambda: 1.0, message_latency_s=lambda: LAG_S)
    outcomes = pool.run(Given(sorted(requests, key=lambda one: one.at_s)))
    assert len(broken(outcomes)) <= 0.03 * sum(was_admitted(one) for one in outcomes)
    assert in_time(outcomes) >= 0.95 * min(load / RESNET[1], 1.0 / RESNET[1]) * 5.0
