"""Flows share the workers of the clockwork scheduler: what each gets under overload, and what that costs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.shares import (
    FORGOTTEN_S,
    MAX_FLOWS,
    REMEMBERS_S,
    Shares,
)
from tests.serving.scheduling.clockwork.emulated import (
    RESNET,
    answered,
    broken,
    in_time,
    poisson,
)
from tuner.evaluation.simulation.pool import EmulatedOutcome, EmulatedRequest

pytestmark = pytest.mark.slow

SMALL: Mapping[int, float] = {1: 0.001, 2: 0.0014, 4: 0.0022}
SINGLE: Mapping[int, float] = {1: 0.001}
LARGE: Mapping[int, float] = {1: 0.01, 2: 0.0115}
WITHIN_S = 0.1
FROM_S = 0.5
"""What came before is not counted: the flood is the first to come, and what was admitted is kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking:
    """One flow, and how many times its share it asks for."""

    name: str
    times: float
    profile: Mapping[int, float] = dataclasses.field(default_factory=lambda: RESNET)
    within_s: float = WITHIN_S
    items: int = 1


@functools.cache
def capacity_per_s(profile: tuple[tuple[int, float], ...], within_s: float, items: int) -> float:
    """Requests that one worker answers in a second, where one flow asks for twice as many as it could do."""
    batch_s = dict(profile)
    most_per_s = max(size / took_s for size, took_s in batch_s.items()) / items
    seconds = max(2.0, 3.0 * within_s)
    first = EmulatedRequest(at_s=0.0, model=0, objective_s=within_s, items=items)
    found = answered(
        list(poisson(random.Random(3), 2.0 * most_per_s, seconds, first)), profiles=[batch_s]
    )
    from_s = seconds / 3.0
    return sum(one.in_time and from_s < one.done_s < seconds for one in found) / (seconds - from_s)


class Run:
    """What became of flows that compete, and of the same requests were they one flow's."""

    def __init__(
        self, *flows: Asking, seconds: float = 0.0, workers: int = 1, from_s: float = FROM_S
    ) -> None:
        if not seconds:  # a large model answers few requests in a second
            seconds = 3.0 if any(flow.profile is LARGE for flow in flows) else 1.5
        rng = random.Random(1)
        profiles: list[Mapping[int, float]] = []
        requests: list[EmulatedRequest] = []
        for flow in flows:
            if flow.profile not in profiles:
                profiles.append(flow.profile)
            first = EmulatedRequest(
                at_s=0.0,
                model=profiles.index(flow.profile),
                objective_s=flow.within_s,
                items=flow.items,
                flow=flow.name,
            )
            alone_per_s = capacity_per_s(tuple(flow.profile.items()), flow.within_s, flow.items)
            per_s = flow.times * workers * alone_per_s / len(flows)
            requests += poisson(rng, per_s, seconds, first)
        requests.sort(key=lambda one: one.at_s)
        self.requests = requests
        self.profiles = profiles
        self.workers = workers
        self.from_s = from_s
        self.found = answered(requests, profiles=profiles, workers=workers)

    @functools.cached_property
    def as_one(self) -> Sequence[EmulatedOutcome]:
        """What became of them as one flow's."""
        one = [dataclasses.replace(request, flow="") for request in self.requests]
        return answered(one, profiles=self.profiles, workers=self.workers)

    def of(self, name: str) -> list[EmulatedOutcome]:
        """What became of a flow's requests, once it had begun."""
        return [
            one
            for one in self.found
            if one.request.flow == name and one.request.at_s >= self.from_s
        ]

    def got(self, name: str) -> float:
        """Share of a flow's requests that were answered in time."""
        mine = self.of(name)
        return in_time(mine) / len(mine)

    def work_s(self, outcomes: Sequence[EmulatedOutcome]) -> float:
        """Seconds of workers that went into what was in time."""
        total_s = 0.0
        for one in outcomes:
            if one.in_time:
                batch_s = self.profiles[one.request.model]
                size = min(size for size in batch_s if size >= one.batch)
                total_s += batch_s[size] / one.batch * one.request.items
        return total_s


MODELS = [
    pytest.param(RESNET, RESNET, id="one model"),
    pytest.param(RESNET, SMALL, id="a small model"),
    pytest.param(RESNET, SINGLE, id="one that is not batched"),
    pytest.param(RESNET, LARGE, id="a large model"),
    pytest.param(LARGE, SMALL, id="large and small"),
]


@pytest.mark.parametrize(("flood", "modest"), MODELS)
def test_who_asks_for_less_than_its_share_gets_it_beside_a_flood(
    flood: Mapping[int, float], modest: Mapping[int, float]
) -> None:
    run = Run(
        Asking(name="flood", times=5.0, profile=flood),
        Asking(name="modest", times=0.9, profile=modest),
    )
    assert not broken(run.found)
    assert run.got("modest") >= 0.9
    assert run.work_s(run.found) >= 0.98 * run.work_s(run.as_one)


@pytest.mark.parametrize(("flood", "modest"), MODELS)
def test_three_flows_that_ask_for_much_for_nearly_a_share_and_for_half(
    flood: Mapping[int, float], modest: Mapping[int, float]
) -> None:
    run = Run(
        Asking(name="flood", times=5.0, profile=flood),
        Asking(name="nearly", times=0.9, profile=modest),
        Asking(name="half", times=0.5),
    )
    assert not broken(run.found)
    assert run.got("nearly") >= 0.9
    assert run.got("half") >= 0.9
    assert run.work_s(run.found) >= 0.98 * run.work_s(run.as_one)


@pytest.mark.parametrize("also", [0.5, 5.0])
@pytest.mark.parametrize(("first", "second"), MODELS)
def test_flows_that_ask_for_more_than_their_share_get_equal_work(
    first: Mapping[int, float],
    second: Mapping[int, float],
    also: float,
) -> None:
    """Seconds, not requests: beside one that asks for half of its share, or a third one that asks for more."""
    flows = [
        Asking(name="a", times=5.0, profile=first),
        Asking(name="b", times=3.0, profile=second),
    ]
    flows.append(Asking(name="c", times=also))
    run = Run(*flows)
    assert not broken(run.found)
    works_s = [run.work_s(run.of(one.name)) for one in flows if one.times > 1.0]
    assert max(works_s) <= 1.15 * min(works_s)
    if also == 0.5:
        assert run.got("c") >= 0.9
    assert run.work_s(run.found) >= 0.98 * run.work_s(run.as_one)


@pytest.mark.parametrize(
    ("flood_s", "modest_s", "times", "seconds", "least"),
    [(3.0, 0.05, 10.0, 8.0, 0.9), (0.1, 3.0, 5.0, 6.0, 0.97), (3.0, 3.0, 5.0, 6.0, 0.9)],
)
def test_shares_are_kept_whatever_the_deadlines(
    flood_s: float, modest_s: float, times: float, seconds: float, least: float
) -> None:
    """Who floods with time to wait leaves time for others, who have none.

    What of it waits at the end is run all the same, so that less is done than if it had filled the worker.
    """
    run = Run(
        Asking(name="flood", times=times, within_s=flood_s),
        Asking(name="modest", times=0.9, within_s=modest_s),
        seconds=seconds,
        from_s=3.5,
    )
    assert not broken(run.found)
    assert run.got("modest") >= 0.9
    assert in_time(run.found) >= least * in_time(run.as_one)


@pytest.mark.parametrize(("flood", "modest"), [(5, 1), (1, 5)])
def test_shares_are_of_work_whatever_the_items_of_a_request(flood: int, modest: int) -> None:
    run = Run(
        Asking(name="flood", times=5.0, items=flood),
        Asking(name="modest", times=0.9, items=modest),
        seconds=3.0,
    )
    assert run.got("modest") >= 0.9


def test_shares_are_kept_by_all_workers_together() -> None:
    run = Run(
        Asking(name="flood", times=5.0),
        Asking(name="nearly", times=0.9),
        Asking(name="half", times=0.5),
        workers=2,
    )
    assert not broken(run.found)
    assert min(run.got("nearly"), run.got("half")) >= 0.9
    assert in_time(run.found) >= 0.95 * in_time(run.as_one)


@pytest.mark.parametrize("within_s", [0.05, 1.0])
@pytest.mark.parametrize(("first", "second"), MODELS[:3])
@pytest.mark.parametrize("times", [(0.8, 0.8), (1.2, 0.4)])
def test_nothing_is_refused_for_a_share_where_there_is_enough(
    first: Mapping[int, float],
    second: Mapping[int, float],
    times: tuple[float, float],
    within_s: float,
) -> None:
    """At 0.8 of what the worker can do every decision is that of one flow, whoever asks for how much."""
    run = Run(
        Asking(name="a", times=times[0], profile=first, within_s=within_s),
        Asking(name="b", times=times[1], profile=second, within_s=within_s),
        seconds=1.0,
    )
    assert [(one.done_s, one.refused) for one in run.found] == [
        (one.done_s, one.refused) for one in run.as_one
    ]


@pytest.mark.parametrize("within_s", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("others", [(0.9,), (3.0,), (0.9, 0.5)])
def test_shares_of_one_model_cost_no_requests(within_s: float, others: tuple[float, ...]) -> None:
    """As many requests are answered in time as if all were one flow's, also with short deadlines."""
    flows = [Asking(name=str(n), times=times, within_s=within_s) for n, times in enumerate(others)]
    run = Run(Asking(name="flood", times=5.0, within_s=within_s), *flows)
    modest = [one.name for one in flows if one.times < 1.0]
    assert all(run.got(name) >= 0.9 for name in modest)
    assert in_time(run.found) >= 0.95 * in_time(run.as_one)


def test_who_cannot_be_helped_costs_others_nothing() -> None:
    """Deadlines that a batch which runs lets pass: nothing is kept free for these."""
    run = Run(Asking(name="flood", times=10.0), Asking(name="hasty", times=3.0, within_s=0.006))
    assert in_time(run.found) >= 0.98 * in_time(run.as_one)


def test_who_fills_the_queue_is_refused_before_others() -> None:
    """Deadlines that bind nobody: the queue has room for half a second of work."""
    rng = random.Random(2)
    first = EmulatedRequest(at_s=0.0, model=0, objective_s=30.0, flow="flood")
    requests = [
        *poisson(rng, 4600.0, 2.0, first),
        *poisson(rng, 415.0, 2.0, dataclasses.replace(first, flow="modest")),
    ]
    requests.sort(key=lambda one: one.at_s)
    found = answered(requests, parameters=Parameters(max_waiting=500))
    modest = [one for one in found if one.request.flow == "modest" and one.request.at_s > FROM_S]
    assert in_time(modest) >= 0.9 * len(modest)


@given(
    asked=st.lists(
        st.tuples(st.floats(0.0, 0.02), st.sampled_from([0.01, 0.05, 0.3, 5.0])), max_size=150
    ),
    name=st.text(max_size=3),
)
def test_one_flow_has_all_there_is(asked: Sequence[tuple[float, float]], name: str) -> None:
    """Whatever its name, the decisions are the same."""
    times_s = itertools.accumulate(after_s for after_s, _ in asked)
    requests = [
        EmulatedRequest(at_s=at_s, model=0, objective_s=within_s)
        for at_s, (_, within_s) in zip(times_s, asked, strict=True)
    ]
    named = [dataclasses.replace(one, flow=name) for one in requests]
    assert [(one.done_s, one.refused) for one in answered(named)] == [
        (one.done_s, one.refused) for one in answered(requests)
    ]


def asked_of(asked: Mapping[str, float], capacity: float, seconds: float) -> Shares:
    """Shares after flows have asked for so much work in a second, of which so much was admitted, evenly."""
    shares, step_s = Shares(), 0.01
    part = min(1.0, capacity / sum(asked.values()))
    for number in range(int(seconds / step_s)):
        for name, per_s in asked.items():
            flow = shares.flow(name, step_s * number, 1)
            shares.record_admitted(flow, part * per_s * step_s, 0.001)
            shares.record_rejected(flow, (1.0 - part) * per_s * step_s, 0.001)
    return shares


@pytest.mark.parametrize(
    ("asked", "level", "why"),
    [
        ({"a": 10.0, "b": 0.2}, 0.8, "what the other one leaves"),
        ({"a": 10.0, "b": 3.0}, 0.5, "half of it"),
        ({"a": 10.0, "b": 3.0, "c": 0.2}, 0.4, "half of what is left"),
        ({"a": 0.4, "b": 0.5}, math.inf, "there is enough"),
        ({"a": 10.0}, math.inf, "there is nobody else"),
    ],
)
def test_the_share_is_what_each_can_get_of_what_there_is(
    asked: Mapping[str, float], level: float, why: str
) -> None:
    shares = asked_of(asked, 1.0, 10.0)
    expected = 0.98 * level * REMEMBERS_S
    assert shares.level_s == (level if level == math.inf else pytest.approx(expected, rel=0.05)), (
        why
    )


def test_names_of_flows_cost_no_memory() -> None:
    """Those beyond the most share one, and those that ask for nothing any more are forgotten."""
    shares = Shares()
    for number in range(10 * MAX_FLOWS):
        shares.flow(str(number), 0.001 * number, 1)
    assert len(shares._flows) <= MAX_FLOWS + 1
    unnamed = shares.flow("", 3.0, 1)
    assert shares.flow("another", 3.0, 1) is unnamed
    for number in range(2):
        shares.flow("", 4.0 + FORGOTTEN_S + number, 1)
    assert len(shares._flows) == 1
    assert shares.flow("another", 6.0 + FORGOTTEN_S, 1) is not unnamed
