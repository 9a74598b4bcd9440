"""What the clockwork scheduler promises, whatever comes: emulated workers in virtual time."""

from __future__ import annotations

import dataclasses
import inspect
import math
import random
import sys
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.clockwork.instances import InstanceState, PoolModel
from serving.scheduling.clockwork.model_queue import Reservations
from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import (
    ActionType,
    Cancelled,
    Event,
    ModelDown,
    Plan,
    RejectionReason,
    Scheduler,
    Submitted,
)
from serving.values import ModelId
from tests.serving.scheduling.clockwork.emulated import broken
from tuner.evaluation.simulation.pool import (
    EmulatedModel,
    EmulatedOutcome,
    EmulatedPool,
    EmulatedRequest,
    EmulatedWorker,
    Fault,
)

pytestmark = pytest.mark.slow

RESNET = {1: 0.00273, 2: 0.00405, 4: 0.00588, 8: 0.00993, 16: 0.01733}
LAG_S = 0.0002


@dataclasses.dataclass(frozen=True)
class Given:
    """Traffic as a list."""

    requests: Sequence[EmulatedRequest]

    def __iter__(self) -> Iterator[EmulatedRequest]:
        return iter(self.requests)

    def next_request(self, request: EmulatedRequest, now_s: float) -> EmulatedRequest | None:
        """A client thinks for four milliseconds, until all faults have come."""
        if now_s > 0.7:
            return None
        return dataclasses.replace(request, at_s=now_s + 0.004)


ENTRIES_PER_PLAN = 64
"""So many requests and models are looked at for each plan, in the mean: all of them after every plan while they are
few, else after each of so many plans (a promise that is not kept in the books stays there until it ends)."""


def check_promises(model: PoolModel) -> int:
    """Each of its requests that is promised stands in its bundle, and what a worker owes is what waits.

    Returns how many of its requests were looked at.
    """
    promised: dict[Reservations, int] = {}
    for entry in dict.fromkeys(model.waiting.entries):
        bundle = entry.bundle
        if bundle is not None:
            assert entry in bundle.entries
            promised[bundle.by] = promised.get(bundle.by, 0) + entry.waits
    for holding in model.holdings:
        promises = holding.promises
        assert promises.reserved_items == promised.get(promises, 0), "what it owes, waits"
        assert promises.reserved_items == sum([one.count for one in promises.bundles])
    return len(model.waiting.entries)


class Watched:
    """A scheduler whose every plan is held against the rules of the seam."""

    def __init__(self, scheduler: ClockworkScheduler, *, cancel_every: int = 0) -> None:
        self.scheduler = scheduler
        self.cancel_every = cancel_every
        self.cancelled: set[int] = set()
        self.deadlines_s: dict[int, float] = {}
        self.infers = 0
        self._unchecked_plans = 0

    def on(self, event: Event, now_s: float) -> None:
        if isinstance(event, Submitted):
            self.deadlines_s[event.id] = event.deadline_s
            gone = event.id - 3
            if self.cancel_every and gone >= 0 and gone % self.cancel_every == 0:
                self.cancelled.add(gone)
                self.scheduler.on(Cancelled(gone), now_s)
        self.scheduler.on(event, now_s)

    def plan(self, now_s: float) -> Plan:
        plan = self.scheduler.plan(now_s)
        for action in plan.actions:
            if action.kind is not ActionType.INFER:
                continue
            self.infers += 1
            first_s = min(self.deadlines_s[id_] for id_, _, _ in action.parts)
            assert action.latest_s + action.expected_s <= first_s + 1e-9, (
                "nothing starts that cannot finish"
            )
            assert action.latest_s >= now_s
        if self._unchecked_plans:
            self._unchecked_plans -= 1
        else:
            self._unchecked_plans = self._check_pool() // ENTRIES_PER_PLAN
        return plan

    def _check_pool(self) -> int:
        """Memory, work and promises of all workers; returns how many requests and models were looked at."""
        for worker in self.scheduler._pool.workers.values():
            assert worker.backlog.total_s >= -1e-9, "nobody promises less than nothing"
            assert worker.free_pages + worker.evictable_pages >= worker.planned_pages, (
                "there is memory for what is planned"
            )
        models = self.scheduler._pool.models.values()
        entries = 0
        for model in models:
            if model.waiting.entries:
                entries += check_promises(model)
                continue
            for holding in model.holdings:
                promises = holding.promises
                if promises.reserved_items or promises.bundles:
                    check_promises(model)
        return entries + len(models)


def pool(
    scheduler: Scheduler,
    *,
    models: int = 6,
    workers: int = 2,
    room: int = 3,
    sizes: Sequence[int] = (7,),
    concurrent_loads: bool = True,
    load_s: float = 0.00831,
    jitter: float = 0.0,
    seed: int = 0,
) -> EmulatedPool:
    """Some models, of which a worker holds `room` of seven pages."""
    rng = random.Random(seed)
    kinds = [
        EmulatedModel(
            id=ModelId(f"m{number}", "1"),
            pages=sizes[number % len(sizes)],
            load_s=load_s,
            batch_s=RESNET,
        )
        for number in range(models)
    ]
    homes = [
        EmulatedWorker(number, pages=7 * room, concurrent_loads=concurrent_loads)
        for number in range(workers)
    ]
    return EmulatedPool(
        scheduler,
        kinds,
        homes,
        jitter=lambda: 1.0 + jitter * rng.random(),
        message_latency_s=lambda: LAG_S * (1.0 + jitter * rng.random()),
    )


def finished(scheduler: Watched, found: EmulatedPool, outcomes: Sequence[EmulatedOutcome]) -> None:
    """Everything is answered once and in time to be of use, and nothing is left behind."""
    for number, outcome in enumerate(outcomes):
        if number in scheduler.cancelled:
            continue
        assert not math.isnan(outcome.done_s), "every request is answered"
        assert (outcome.refused is None) == (outcome.left == 0), "answered or refused, never both"
        deadline_s = outcome.request.at_s + outcome.request.objective_s
        assert outcome.done_s <= deadline_s + 1e-6, "nobody waits past the deadline"
    for home in found.workers:
        assert home.pages is not None
        assert home.max_pages <= home.pages, "memory is never exceeded"
    inside = scheduler.scheduler
    assert inside._queue.items == 0
    assert inside.plan(1e6).wake_at_s is None, "nothing is waited for"
    for model in inside._pool.models.values():
        assert not model.waiting.entries
        assert not any(one.promises.bundles for one in model.holdings)
    for worker in inside._pool.workers.values():
        assert not worker.issued
        assert not worker.planned
        assert (worker.planned_pages, worker.planned_s) == (0, 0.0)
        assert not any(one.planned_eviction or one.swap for one in worker.instances.values())
        assert worker.backlog.total_s == pytest.approx(0.0, abs=1e-9)
        loaded = [one for one in worker.instances.values() if one.state is InstanceState.LOADED]
        assert worker.evictable_pages == sum(one.model.pages for one in loaded)
        assert len(loaded) == len(worker.instances)
        held = {one.model.id for one in worker.instances.values()}
        assert held == set(found.workers[worker.id].held), "both know the same of its memory"


requests = st.builds(
    EmulatedRequest,
    at_s=st.floats(0.0, 0.5),
    model=st.integers(0, 5),
    objective_s=st.sampled_from([0.003, 0.012, 0.05, 0.1, 0.4]),
    items=st.sampled_from([1, 1, 1, 2, 5, 20]),
    client=st.sampled_from([-1, -1, -1, 0]),
)
faults = st.builds(
    Fault,
    at_s=st.floats(0.0, 0.6),
    worker=st.integers(0, 1),
    kind=st.sampled_from(["dies", "drains", "returns", "slows"]),
    factor=st.sampled_from([1.0, 3.0, 1000.0]),
)


@given(
    traffic=st.lists(requests, max_size=120),
    befalls=st.lists(faults, max_size=4),
    concurrent_loads=st.booleans(),
    jitter=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 1000),
)
def test_every_request_ends_once_and_in_time_whatever_comes(
    traffic: list[EmulatedRequest],
    befalls: list[Fault],
    concurrent_loads: bool,
    jitter: float,
    seed: int,
) -> None:
    """Workers that die, come back, slow down or hang; loads that share the core; requests of many items."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, concurrent_loads=concurrent_loads, jitter=jitter, seed=seed)
    given_ = Given(sorted(traffic, key=lambda one: one.at_s))
    outcomes = found.run(given_, sorted(befalls, key=lambda one: one.at_s))
    finished(scheduler, found, outcomes)


in_use = st.builds(
    EmulatedRequest,
    at_s=st.floats(0.0, 0.5),
    model=st.integers(0, 5),
    objective_s=st.sampled_from([0.05, 0.2, 0.4, 2.0, 30.0]),
    items=st.sampled_from([1, 1, 2, 20]),
    client=st.sampled_from([-1, -1, 0]),
)


@given(
    traffic=st.lists(in_use, min_size=20, max_size=200),
    befalls=st.lists(faults, max_size=3),
    room=st.integers(1, 3),
    sizes=st.sampled_from([(7,), (2, 7, 3, 5), (1, 6)]),
    concurrent_loads=st.booleans(),
    jitter=st.sampled_from([0.0, 0.05, 0.5]),
    cancel_every=st.sampled_from([0, 2, 7]),
    seed=st.integers(0, 1000),
)
def test_models_in_use_change_places_and_nothing_else_changes(
    traffic: list[EmulatedRequest],
    befalls: list[Fault],
    room: int,
    sizes: Sequence[int],
    concurrent_loads: bool,
    jitter: float,
    cancel_every: int,
    seed: int,
) -> None:
    """More models than fit, asked for with time to wait: memory, ends and promises are kept as ever."""
    scheduler = Watched(ClockworkScheduler(Parameters()), cancel_every=cancel_every)
    found = pool(
        scheduler,
        room=room,
        sizes=sizes,
        concurrent_loads=concurrent_loads,
        jitter=jitter,
        seed=seed,
    )
    given_ = Given(sorted(traffic, key=lambda one: one.at_s))
    outcomes = found.run(given_, sorted(befalls, key=lambda one: one.at_s))
    finished(scheduler, found, outcomes)


@given(traffic=st.lists(requests, max_size=80), seed=st.integers(0, 1000))
def test_the_same_events_give_the_same_plans(traffic: list[EmulatedRequest], seed: int) -> None:
    def run() -> list[tuple[float, RejectionReason | None, int]]:
        found = pool(ClockworkScheduler(Parameters()), jitter=0.1, seed=seed)
        outcomes = found.run(Given(sorted(traffic, key=lambda one: one.at_s)))
        return [(one.done_s, one.refused, one.batch) for one in outcomes]

    assert run() == run()


def poisson(rate: float, seconds: float, models: Sequence[int], objective_s: float, seed: int):
    """Requests for the models, drawn evenly."""
    rng = random.Random(seed)
    at_s = rng.expovariate(rate)
    while at_s < seconds:
        yield EmulatedRequest(at_s=at_s, model=rng.choice(models), objective_s=objective_s)
        at_s += rng.expovariate(rate)


def test_what_is_admitted_is_in_time_where_models_do_not_fit_into_memory() -> None:
    """Ten times as many models as fit, more than the loads can follow: refused at once, hardly one later."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=200, workers=1, room=20, jitter=0.01)
    outcomes = found.run(Given(list(poisson(600, 5.0, range(200), 0.1, seed=1))))
    finished(scheduler, found, outcomes)
    at_once = [one for one in outcomes if one.refused and one.done_s == one.request.at_s]
    admitted = [one for one in outcomes if not (one.refused and one.done_s == one.request.at_s)]
    in_time = [one for one in admitted if one.in_time]
    assert len(at_once) > 500
    assert len(in_time) >= 0.99 * len(admitted)
    assert found.workers[0].busy_s[ActionType.LOAD] > 4.5, "it loads all the time"


def test_under_twice_the_load_as_much_is_done_as_under_once() -> None:
    """Five models in memory: what they are refused for is made up by larger batches."""

    def done(rate: float) -> int:
        scheduler = Watched(ClockworkScheduler(Parameters()))
        found = pool(scheduler, models=5, workers=1, room=5, jitter=0.01)
        outcomes = found.run(Given(list(poisson(rate, 1.5, range(5), 0.1, seed=2))))
        finished(scheduler, found, outcomes)
        return sum(one.in_time for one in outcomes)

    least = min(done(1500), done(3000))
    assert least >= 0.95 * done(900)


def test_a_worker_that_dies_is_replaced_by_the_other() -> None:
    """Its batches are given to the other worker, and none waits past its deadline."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=3, workers=2, room=3)
    deaths = [Fault(at_s=1.0, worker=0, kind="dies"), Fault(at_s=2.0, worker=0, kind="returns")]
    outcomes = found.run(Given(list(poisson(200, 3.0, range(3), 0.1, seed=3))), deaths)
    finished(scheduler, found, outcomes)
    assert sum(one.in_time for one in outcomes) >= 0.98 * len(outcomes)


def test_a_worker_that_hangs_holds_up_nobody_past_the_deadline() -> None:
    """What it was given is refused at its deadline; what comes later goes to the other one."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=3, workers=2, room=3)
    hang = [Fault(at_s=1.0, worker=0, kind="slows", factor=1e4)]
    outcomes = found.run(Given(list(poisson(100, 3.0, range(3), 0.1, seed=4))), hang)
    late = [one for one in outcomes if one.refused is RejectionReason.DEADLINE_IN_REPLICA]
    assert 1 <= len(late) <= 40
    after = [one for one in outcomes if one.request.at_s > 1.2]
    assert sum(one.in_time for one in after) >= 0.95 * len(after)


def short(model: int, *, at_s: float) -> EmulatedRequest:
    """A request without the time for a load."""
    return EmulatedRequest(at_s=at_s, model=model, objective_s=0.006)


@pytest.mark.parametrize("concurrent_loads", [True, False])
def test_who_asks_next_finds_the_model_loaded(concurrent_loads: bool) -> None:
    """No request has the time to wait for a load; the first is refused, and those behind it are in time.

    Where a load takes the time of batches, the second model waits until the first one's load is a twentieth
    of the time.
    """
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=2, workers=1, concurrent_loads=concurrent_loads)
    traffic = [short(number % 2, at_s=0.05 * number) for number in range(20)]
    outcomes = found.run(Given(traffic))
    finished(scheduler, found, outcomes)
    refused = [number for number, one in enumerate(outcomes) if not one.in_time]
    assert refused == ([0, 1] if concurrent_loads else [0, 1, 3, 5])
    assert found.workers[0].counts[ActionType.LOAD] == 2, "each once"


@pytest.mark.parametrize("cold_per_s", [2.0, 8.0])
def test_loads_for_those_who_ask_next_leave_a_busy_model_its_time(cold_per_s: float) -> None:
    """Loads of a second that block the only executor: the model that is asked for always loses little by them."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    kinds = [
        EmulatedModel(
            id=ModelId(f"m{number}", "1"), pages=1, load_s=1.0 if number else 0.01, batch_s=RESNET
        )
        for number in range(5)
    ]
    homes = [EmulatedWorker(0, pages=2, concurrent_loads=False)]
    found = EmulatedPool(
        scheduler, kinds, homes, jitter=lambda: 1.0, message_latency_s=lambda: LAG_S
    )
    traffic = [
        *poisson(50, 60.0, [0], 0.1, seed=6),
        *poisson(cold_per_s, 60.0, [1, 2, 3, 4], 0.1, seed=7),
    ]
    outcomes = found.run(Given(sorted(traffic, key=lambda one: one.at_s)))
    finished(scheduler, found, outcomes)
    hot = [one for one in outcomes if one.request.model == 0]
    assert sum(one.in_time for one in hot) >= 0.92 * len(hot)


def test_a_model_that_goes_is_not_loaded_for_those_who_ask_next() -> None:
    """Its load was planned, and nobody was told yet."""
    scheduler = ClockworkScheduler(Parameters())
    watched = Watched(scheduler)
    pool(watched, models=2, workers=1)
    watched.on(Submitted(0, ModelId("m0", "1"), 1, 0.006), 0.0)
    watched.on(Submitted(1, ModelId("m1", "1"), 1, 0.006), 0.0)
    watched.on(ModelDown(ModelId("m0", "1")), 0.0)
    assert scheduler.plan(0.0).actions == []
    watched.on(Submitted(2, ModelId("m1", "1"), 1, 0.056), 0.05)
    loads = [(action.kind, action.model.name) for action in scheduler.plan(0.05).actions]
    assert loads == [(ActionType.LOAD, "m1")], "it is forgotten, and in nobody's way"


def test_room_is_made_by_as_many_as_it_takes() -> None:
    """A model of two pages, asked for again and again, beside two of one page that nobody asks for."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    kinds = [
        EmulatedModel(id=ModelId(f"m{n}", "1"), pages=pages, load_s=0.00831, batch_s=RESNET)
        for n, pages in enumerate((1, 1, 2))
    ]
    homes = [EmulatedWorker(0, pages=2, concurrent_loads=True)]
    found = EmulatedPool(
        scheduler, kinds, homes, jitter=lambda: 1.0, message_latency_s=lambda: LAG_S
    )
    traffic = [short(0, at_s=0.0), short(1, at_s=0.05)]
    traffic += [short(2, at_s=0.1 + 0.05 * number) for number in range(6)]
    outcomes = found.run(Given(traffic))
    finished(scheduler, found, outcomes)
    assert [one.in_time for one in outcomes[2:]] == [False, False, True, True, True, True]


def test_what_is_asked_for_more_often_is_kept() -> None:
    """Memory for one: a model that is asked for now and then does not drive out the one that is asked for always."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=2, workers=1, room=1)
    traffic = [short(0, at_s=0.02 * number) for number in range(200)]
    traffic += [short(1, at_s=0.5 * number + 0.31) for number in range(7)]
    outcomes = found.run(Given(sorted(traffic, key=lambda one: one.at_s)))
    finished(scheduler, found, outcomes)
    assert sum(one.in_time for one in outcomes if one.request.model == 0) == 199
    assert not any(one.in_time for one in outcomes if one.request.model == 1)
    assert found.workers[0].counts[ActionType.LOAD] == 1


def test_a_model_that_became_the_busier_one_takes_the_memory() -> None:
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=2, workers=1, room=1)
    traffic = [short(0, at_s=0.02 * number) for number in range(50)]
    traffic += [short(1, at_s=1.0 + 0.02 * number) for number in range(50)]
    outcomes = found.run(Given(traffic))
    finished(scheduler, found, outcomes)
    assert sum(one.in_time for one in outcomes) == 100 - 1 - 2, (
        "two are refused before it gives way"
    )


def test_a_model_without_enough_workers_is_loaded_by_another() -> None:
    """One worker does 366 batches of one a second; the deadline leaves no time to batch more, or to load."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=1, workers=3)
    outcomes = found.run(Given(list(poisson(500, 2.0, [0], 0.008, seed=5))))
    finished(scheduler, found, outcomes)
    assert [worker.counts[ActionType.LOAD] for worker in found.workers] == [1, 1, 1]
    later = [one for one in outcomes if one.request.at_s > 0.5]
    assert sum(one.in_time for one in later) >= 0.95 * len(later)


@pytest.mark.parametrize(("models", "room"), [(2, 1), (3, 2), (12, 10)])
@pytest.mark.parametrize("concurrent_loads", [True, False])
def test_nobody_starves_who_can_wait(models: int, room: int, concurrent_loads: bool) -> None:
    """More models in use than there is memory for, and less to do than can be done: all are answered."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=models, workers=1, room=room, concurrent_loads=concurrent_loads)
    outcomes = found.run(Given(list(poisson(300, 3.0, range(models), 30.0, seed=8))))
    finished(scheduler, found, outcomes)
    assert all(one.in_time for one in outcomes)


@pytest.mark.parametrize("concurrent_loads", [True, False])
@pytest.mark.parametrize("rate", [250.0, 500.0, 900.0])
def test_what_was_admitted_is_in_time_where_models_change_places(
    concurrent_loads: bool, rate: float
) -> None:
    """Twelve models in use, memory for ten, a second to wait; up to more than can be done."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(
        scheduler, models=12, workers=1, room=10, concurrent_loads=concurrent_loads, jitter=0.01
    )
    outcomes = found.run(Given(list(poisson(rate, 3.0, range(12), 1.0, seed=9))))
    finished(scheduler, found, outcomes)
    admitted = [one for one in outcomes if not (one.refused and one.done_s == one.request.at_s)]
    assert all(one.in_time for one in admitted)
    for model in range(12):
        mine = [one for one in outcomes if one.request.model == model]
        assert sum(one.in_time for one in mine) >= 0.5 * len(mine)


@pytest.mark.parametrize("concurrent_loads", [True, False])
@pytest.mark.parametrize("seed", [5, 19, 44, 46, 56])
def test_a_return_that_nobody_waits_for_takes_no_other_load_with_it(
    seed: int, concurrent_loads: bool
) -> None:
    """A model was to give way for another one and come back, and all that waits for it is done before.

    The load of the other one is planned still, and all that were admitted are in time: beside many requests, some of
    hundreds of items.
    """
    rng = random.Random(seed)
    models = rng.choice([2, 3, 4])
    room = rng.choice([1, 2]) if models > 2 else 1
    traffic: list[EmulatedRequest] = []
    for model in range(models):
        rate, objective_s = rng.choice([20, 60, 150]), rng.choice([0.5, 1.0, 3.0, 10.0])
        traffic += poisson(rate, 5.0, [model], objective_s, seed=10 * seed + model)
    for _ in range(rng.randint(2, 10)):
        at_s, model = rng.uniform(0.3, 4.5), rng.randrange(models)
        objective_s, items = rng.choice([0.6, 1.0, 2.0, 3.0, 8.0]), rng.choice([100, 200, 400])
        traffic.append(
            EmulatedRequest(at_s=at_s, model=model, objective_s=objective_s, items=items)
        )
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=models, workers=1, room=room, concurrent_loads=concurrent_loads)
    outcomes = found.run(Given(sorted(traffic, key=lambda one: one.at_s)))
    finished(scheduler, found, outcomes)
    assert not broken(outcomes)


def test_who_cannot_wait_does_not_give_way() -> None:
    """A busy model whose clients have 40 ms, one whose clients have seconds, and memory for one of them."""

    def in_time(traffic: Sequence[EmulatedRequest]) -> int:
        scheduler = Watched(ClockworkScheduler(Parameters()))
        found = pool(scheduler, models=2, workers=1, room=1, concurrent_loads=False)
        outcomes = found.run(Given(sorted(traffic, key=lambda one: one.at_s)))
        finished(scheduler, found, outcomes)
        return sum(one.in_time for one in outcomes if one.request.model == 0)

    busy = list(poisson(700, 3.0, [0], 0.04, seed=10))
    patient = list(poisson(20, 3.0, [1], 5.0, seed=11))
    assert in_time([*busy, *patient]) >= 0.97 * in_time(busy)


@pytest.mark.parametrize("concurrent_loads", [True, False])
@pytest.mark.parametrize(
    ("load_s", "objective_s", "hot", "cold"), [(0.03, 0.5, 1000, 20), (0.1, 2.0, 1400, 5)]
)
def test_swaps_cost_a_hot_model_little(
    load_s: float, objective_s: float, hot: float, cold: float, concurrent_loads: bool
) -> None:
    """One model has more requests than can be done, eleven have a few, and there is memory for one."""

    def in_time(traffic: Sequence[EmulatedRequest]) -> int:
        scheduler = Watched(ClockworkScheduler(Parameters()))
        found = pool(
            scheduler,
            models=12,
            workers=1,
            room=1,
            concurrent_loads=concurrent_loads,
            load_s=load_s,
        )
        outcomes = found.run(Given(sorted(traffic, key=lambda one: one.at_s)))
        finished(scheduler, found, outcomes)
        return sum(one.in_time for one in outcomes)

    busy = list(poisson(hot, 6.0, [0], objective_s, seed=5))
    others = list(poisson(cold, 6.0, range(1, 12), objective_s, seed=6))
    assert in_time([*busy, *others]) >= 0.94 * in_time(busy)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_tight_model_that_is_idle_for_a_moment_is_not_thrown_out(seed: int) -> None:
    """It could not be loaded again in time, and is asked for more often than those who would take its place."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=3, workers=1, room=2, concurrent_loads=False, load_s=0.06)
    traffic = [*poisson(300, 6.0, [0], 0.05, seed), *poisson(100, 6.0, [1, 2], 3.0, seed + 10)]
    outcomes = found.run(Given(sorted(traffic, key=lambda one: one.at_s)))
    finished(scheduler, found, outcomes)
    tight = [one for one in outcomes if one.request.model == 0 and one.request.at_s > 1.0]
    assert sum(one.in_time for one in tight) >= 0.5 * len(tight)


def test_hundreds_of_models_may_leave_at_once() -> None:
    """However many turns are those of models that leave, a few are looked at for a batch."""
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=800, workers=1, room=400, concurrent_loads=False, load_s=0.001)
    traffic = Given(list(poisson(1500, 1.0, range(800), 30.0, seed=5)))
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 60)
    try:
        outcomes = found.run(traffic)
    finally:
        sys.setrecursionlimit(depth)
    assert all(one.in_time for one in outcomes if one.refused is None)
    assert sum(one.in_time for one in outcomes) > 0.5 * len(outcomes)


def test_a_cancelled_request_is_not_run() -> None:
    scheduler = ClockworkScheduler(Parameters())
    watched = Watched(scheduler)
    pool(watched, models=1, workers=1)
    watched.on(Submitted(1, ModelId("m0", "1"), 1, 1.0), 0.0)
    watched.on(Cancelled(1), 0.0)
    plan = watched.plan(0.0)
    assert [action.kind for action in plan.actions] == []
    assert scheduler._queue.items == 0


def test_a_model_that_goes_is_unloaded_and_its_requests_are_refused() -> None:
    scheduler = Watched(ClockworkScheduler(Parameters()))
    found = pool(scheduler, models=2, workers=1)
    found.run(Given([EmulatedRequest(at_s=0.0, model=0, objective_s=0.1)]))
    assert ModelId("m0", "1") in found.workers[0].held
    scheduler.on(ModelDown(ModelId("m0", "1")), 1.0)
    actions = scheduler.plan(1.0).actions
    assert [(action.kind, action.model.name) for action in actions] == [(ActionType.UNLOAD, "m0")]
