"""Which configurations the engine cannot tell apart; the exact rules are held against its scheduler."""

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.interface import ActionResult, ActionType, Submitted, WorkerUp
from serving.settings import ServingSettings
from serving.values import ModelId
from tuner.space.environment import Environment, Machine
from tuner.space.equivalence import RULES, TOUCHED, behaviour

MODEL = ModelId("echo", "1")
SLOTS = 2


def felt(values, *, concurrency=20, client_batch=1, cores=2, rules=RULES):
    """What the engine can feel of these values."""
    environment = Environment(
        concurrency=concurrency,
        client_batch=client_batch,
        machine=Machine(cores=cores, memory_mb=4096),
    )
    return behaviour(values, environment, rules)


def batching(size, timeout_us, **more):
    """What the engine can feel of a batch size and a timeout."""
    found = felt({"batching.max_size": size, "batching.timeout_us": timeout_us}, **more)
    return found["batching.max_size"], found["batching.timeout_us"]


@pytest.mark.parametrize(
    ("phrase", "one", "other", "concurrency", "is_same"),
    [
        ("at size 1 no timeout is waited for", (1, 0), (1, 5000), 20, True),
        ("at size 2 it is", (2, 0), (2, 5000), 20, False),
        ("timeout 0: all sizes from the concurrency on", (32, 0), (64, 0), 20, True),
        ("timeout 0: the concurrency itself is like more", (20, 0), (64, 0), 20, True),
        ("timeout 0: less than the concurrency is not", (16, 0), (32, 0), 20, False),
        ("a timeout: all sizes above the concurrency", (32, 300), (64, 300), 20, True),
        ("a timeout: the concurrency itself can fill", (20, 300), (32, 300), 20, False),
        ("where no batch fills, the timeout matters most", (32, 300), (32, 1000), 20, False),
        ("where no batch fills, a timeout is not like none", (32, 0), (32, 300), 20, False),
        ("one request: every batch is of one, at once", (1, 300), (64, 0), 1, True),
        ("one request: a timeout is always waited for", (1, 300), (64, 300), 1, False),
    ],
)
def test_batching(phrase, one, other, concurrency, is_same):
    """Sizes and timeouts behave the same exactly where the rules say so."""
    equal = batching(*one, concurrency=concurrency) == batching(*other, concurrency=concurrency)

    assert is_same is equal, phrase


@pytest.mark.parametrize(
    ("phrase", "count", "threads", "one", "other", "is_same"),
    [
        ("quotas that add up to the machine", 4, 1, 0.5, 2.0, True),
        ("quotas that do not", 4, 1, 0.3, 0.5, False),
        ("one thread cannot use 1.5 cores", 1, 1, 1.5, 2.0, True),
        ("one thread and its reading can use more than 1", 1, 1, 1.0, 1.5, False),
        ("two threads can use 2", 1, 2, 1.5, 2.0, False),
        ("a quota like the machine is none", 1, 2, 2.0, 4.0, True),
    ],
)
def test_cpu(phrase, count, threads, one, other, is_same):
    """Quotas behave the same where none of them can bind."""
    configurations = [
        {"replica.count": count, "replica.threads": threads, "replica.cpu": cpu}
        for cpu in (one, other)
    ]

    assert is_same is (felt(configurations[0]) == felt(configurations[1])), phrase


def test_a_knob_that_is_not_searched_is_unknown():
    """Only what holds for every value of the unknown knob is taken as equal."""
    sizes = [felt({"batching.max_size": size})["batching.max_size"] for size in (20, 32, 64)]
    quotas = [felt({"replica.cpu": cpu})["replica.cpu"] for cpu in (1.5, 2.0, 4.0)]

    assert sizes[0] != sizes[1] == sizes[2]
    assert quotas[0] != quotas[1] == quotas[2]
    assert felt({"batching.timeout_us": 300}) == {"batching.timeout_us": 300}


def test_another_policy_of_batching_is_not_judged():
    """Over the concurrency, sizes are only equal under the policy that the rule speaks of."""
    learnt = {"batching.policy": "learnt", "batching.max_size": 64}

    assert learnt == felt(learnt)


@settings(deadline=None)
@given(
    size=st.integers(1, 64),
    timeout_us=st.sampled_from((0, 300, 1000)),
    cpu=st.floats(0.1, 8),
    count=st.integers(1, 8),
    threads=st.integers(1, 4),
    concurrency=st.integers(1, 40),
    cores=st.integers(1, 8),
    rules=st.sets(st.sampled_from(RULES)),
)
def test_only_what_a_rule_touches_changes(
    size, timeout_us, cpu, count, threads, concurrency, cores, rules
):
    """A rule that is switched off changes nothing, and the others change their own knobs only."""
    values = {
        "batching.max_size": size,
        "batching.timeout_us": timeout_us,
        "replica.count": count,
        "replica.cpu": cpu,
        "replica.threads": threads,
    }

    found = felt(values, concurrency=concurrency, cores=cores, rules=rules)

    touched = {name for rule in rules for name in TOUCHED[rule]}
    assert {name for name in values if found[name] != values[name]} <= touched


def trace(
    size,
    timeout_us,
    *,
    concurrency,
    workers,
    service_us,
    gap_us,
    stagger_us=10,
    client_batch=1,
):
    """Batches that the engine's scheduler forms in a closed loop, in virtual time.

    A client sends its next request `gap_us` after the answer. As in the gateway, requests that arrive at the
    same time are planned together. Times are whole microseconds.

    Returns:
        (time, worker, clients with their items) of the first batches.
    """
    settings = ServingSettings().with_changes(
        {"batching.max_size": size, "batching.timeout_us": timeout_us}
    )
    scheduler = AdaptiveScheduler(MODEL, settings)
    for worker in range(workers):
        scheduler.on(WorkerUp(worker, SLOTS), 0.0)
    for action in scheduler.plan(0.0).actions:
        scheduler.on(ActionResult(action.id, action.worker, ok=True, times=None), 0.0)
    serial = itertools.count()
    events = [(stagger_us * client, next(serial), "send", client) for client in range(concurrency)]
    client_of, left, free_us, formed = {}, {}, [0] * workers, []
    ids = itertools.count(1)
    while len(formed) < 60:
        now_us = events[0][0]
        while events and events[0][0] == now_us:
            _, _, kind, what = heapq.heappop(events)
            if kind == "send":
                request = next(ids)
                client_of[request] = what
                left[request] = client_batch
                scheduler.on(Submitted(request, MODEL, client_batch, 1e9), now_us * 1e-6)
            elif kind == "done":
                scheduler.on(ActionResult(what.id, what.worker, ok=True, times=None), now_us * 1e-6)
                for id_, start, stop in what.parts:
                    left[id_] -= stop - start
                    if not left[id_]:
                        event = (now_us + gap_us, next(serial), "send", client_of[id_])
                        heapq.heappush(events, event)
        plan = scheduler.plan(now_us * 1e-6)
        for action in plan.actions:
            assert action.kind is ActionType.INFER
            held = [(client_of[id_], stop - start) for id_, start, stop in action.parts]
            formed.append((now_us, action.worker, held))
            begin_us = max(now_us, free_us[action.worker])
            items = sum(count for _, count in held)
            free_us[action.worker] = begin_us + service_us * (4 + items)
            heapq.heappush(events, (free_us[action.worker], next(serial), "done", action))
        if plan.wake_at_s is not None and plan.wake_at_s < 1e6:
            wake_us = max(now_us + 1, round(plan.wake_at_s * 1e6))
            heapq.heappush(events, (wake_us, next(serial), "wake", None))
    return formed[:60]


loads = st.fixed_dictionaries(
    {
        "concurrency": st.integers(1, 12),
        "workers": st.integers(1, 4),
        "service_us": st.integers(5, 200),
        "gap_us": st.integers(0, 300),
        "stagger_us": st.integers(0, 20),
        "client_batch": st.integers(1, 5),
    }
)


@st.composite
def twins(draw):
    """A load, and two different cells that the rules call equal under it."""
    load = draw(loads)
    most = load["concurrency"] * load["client_batch"]
    timeouts_us = st.sampled_from((0, 100, 1000))
    kind = draw(st.sampled_from(("size 1", "timeout 0", "timeout")))
    if kind == "size 1":
        one, other = [(1, draw(timeouts_us)) for _ in range(2)]
    elif kind == "timeout 0":
        one, other = [(draw(st.integers(most, most + 8)), 0) for _ in range(2)]
    else:
        timeout_us = draw(timeouts_us)
        one, other = [(draw(st.integers(most + 1, most + 8)), timeout_us) for _ in range(2)]
    return load, one, other


@settings(deadline=None)
@given(case=twins())
def test_the_scheduler_cannot_tell_equal_cells_apart(case):
    """Cells that the rules call equal form the same batches at the same times, for any load."""
    load, one, other = case

    asked = {name: load[name] for name in ("concurrency", "client_batch")}
    assert batching(*one, **asked) == batching(*other, **asked)
    assert trace(*one, **load) == trace(*other, **load)


@pytest.mark.parametrize(
    ("phrase", "one", "other"),
    [
        ("the concurrency and more, with a timeout", (6, 1000), (7, 1000)),
        ("above the concurrency, without and with a timeout", (7, 0), (7, 1000)),
        ("two timeouts where no batch fills", (7, 100), (7, 1000)),
        ("the concurrency and less, without a timeout", (2, 0), (6, 0)),
    ],
)
def test_the_scheduler_tells_other_cells_apart(phrase, one, other):
    """Cells that the rules keep apart do behave differently under some load."""
    load = {"concurrency": 6, "workers": 1, "service_us": 50, "gap_us": 20}

    assert trace(*one, **load) != trace(*other, **load), phrase


@pytest.mark.parametrize(
    ("phrase", "one", "other"),
    [
        ("twice the concurrency is less than the items in flight", (6, 0), (12, 0)),
        ("a size below a request splits it", (2, 0), (3, 0)),
        ("all items can fill a batch", (18, 1000), (19, 1000)),
    ],
)
def test_with_a_client_batch_items_are_what_counts(phrase, one, other):
    """Six requests of three items are 18 items: sizes up to there differ."""
    load = {"concurrency": 6, "client_batch": 3, "workers": 1, "service_us": 50, "gap_us": 20}

    assert trace(*one, **load) != trace(*other, **load), phrase
    asked = {"concurrency": 6, "client_batch": 3}
    assert batching(*one, **asked) != batching(*other, **asked), phrase
    assert batching(18, 0, **asked) == batching(64, 0, **asked)


def test_batches_are_larger_than_slots_alone_would_allow():
    """Requests of one turn leave together: a slot for each does not make the size irrelevant."""
    load = {"concurrency": 4, "workers": 2, "service_us": 50, "gap_us": 20, "stagger_us": 0}

    sizes = {len(held) for _, _, held in trace(4, 0, **load)}

    assert max(sizes) == 4
