"""Several clients: what is dealt out is the whole phase, and what is joined is all of it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load_generator.phase import Phase, measured_s
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan, Race
from tuner.load_generator.process import _dealt
from tuner.load_generator.shares import deal, join
from tuner.values.request_records import CpuTimeSeries, RequestRecords

CLIENTS = st.integers(2, 7)


def plan_of(**changes):
    return PhasePlan(**{"host": "h", "port": 1, "concurrency": 20, "seconds": 1.0, **changes})


@given(
    clients=CLIENTS,
    more=st.integers(0, 200),
    requests=st.integers(1, 10_000),
    answers=st.integers(0, 99),
)
def test_closed_loops_are_dealt_out_to_the_last_request(clients, more, requests, answers):
    """Connections and requests add up, answers suffice; nobody has two more, and the race is nobody's."""
    plan = plan_of(
        concurrency=clients + more,
        seconds=None,
        requests=requests,
        answers=answers,
        race=Race(look_s=0.1, limits_ms=(1.0,)),
    )
    plans = deal(plan, clients)
    for name in ("concurrency", "requests"):
        parts = [getattr(one, name) for one in plans]
        assert sum(parts) == getattr(plan, name)
        assert max(parts) - min(parts) <= 1
    assert answers <= sum(one.answers for one in plans) < answers + clients
    assert len({one.answers for one in plans}) == 1
    places = [
        one.share.first_connection + place for one in plans for place in range(one.concurrency)
    ]
    assert places == list(range(plan.concurrency))
    assert all(one.race is None for one in plans)
    assert all(PhasePlan.from_json(one.as_json()) == one for one in plans)


@given(
    clients=CLIENTS,
    spread=st.sampled_from(["poisson", "constant", "burst"]),
    rate=st.floats(1, 5_000),
    seed=st.integers(0, 99),
    end=st.floats(0, 2),
)
def test_arrivals_that_are_dealt_out_are_the_schedule(clients, spread, rate, seed, end):
    """Each once, at its time; and as many belong to all clients together as to one."""
    plan = plan_of(rate_per_s=rate, spread=spread, seed=seed)
    parts = [one.arrivals for one in deal(plan, clients)]
    whole = plan.arrivals
    dealt = sorted(part.due_s(place, 0, 0.0) for part in parts for place in range(5))
    assert dealt == [whole.due_s(place, 0, 0.0) for place in range(5 * clients)]
    assert sum(part.belonging(0, end) for part in parts) == whole.belonging(0, end)
    for requests in (1, clients, 17):
        assert sum(part.after(requests, 0, end) for part in parts) == whole.after(requests, 0, end)


def test_requests_take_turns_as_those_of_one_client():
    """The n-th of all is the same request, whoever sends it."""
    requests = [b"%d" % number for number in range(7)]
    for clients in (2, 3, 7, 9):
        shares = [one.share for one in deal(plan_of(rate_per_s=1.0), clients)]
        turns = [_dealt(share, requests) for share in shares]
        for number in range(50):
            turn = turns[number % clients]
            assert turn[number // clients % len(turn)] == requests[number % 7]


def test_a_list_of_arrivals_ends_for_every_client():
    """After it nothing is due."""
    plan = plan_of(rate_per_s=1.0, spread="listed", offsets_s=(0.1, 0.2, 0.3))
    first, second = (one.arrivals for one in deal(plan, 2))
    assert [first.due_s(place, 0, 0.0) for place in range(3)] == [0.1, 0.3, math.inf]
    assert [second.due_s(place, 0, 0.0) for place in range(2)] == [0.2, math.inf]


def test_a_share_measures_from_the_moment_that_all_are_told():
    """Not from when it is warm itself; the end follows from it."""
    (share, _) = deal(plan_of(concurrency=4), 2)
    phase = Phase(share)
    phase.advance(0.2, sent=9, finished=8, min_round_trips=4)
    assert phase.is_warm
    assert phase.warmup_end_s is None
    assert phase.next_s == math.inf
    phase.begins_s = 0.5
    phase.advance(0.4, sent=19, finished=18, min_round_trips=9)
    assert phase.warmup_end_s is None
    phase.advance(0.52, sent=29, finished=28, min_round_trips=14)
    assert phase.warmup_end_s == 0.5
    phase.advance(1.6, sent=99, finished=98, min_round_trips=49)
    assert phase.measured_end_s == 1.5


@given(
    every_s=st.lists(st.floats(0.003, 2.0), min_size=2, max_size=4),
    answers=st.integers(1, 60),
    late_s=st.floats(0.0, 0.3),
)
def test_all_clients_go_on_until_all_have_enough(every_s, answers, late_s):
    """They end together; as many answers as were asked for count, or the longest time is over."""
    plan = plan_of(seconds=0.6, answers=answers)
    phases = [Phase(one) for one in deal(plan, len(every_s))]
    enough_s, at = None, 0
    while any(phase.measured_end_s is None for phase in phases):
        at += 1
        now_s = 0.02 * at
        for phase, each_s in zip(phases, every_s, strict=True):
            phase.begins_s = 0.5
            finished = int(now_s / each_s)
            phase.advance(now_s, sent=finished + 5, finished=finished, min_round_trips=3)
        if enough_s is None and all(phase.has_enough for phase in phases):
            enough_s = now_s + late_s
            for phase in phases:
                assert phase.ends_s == math.inf
                phase.ends_s = 0.5 + measured_s(plan, enough_s - 0.5)
    (end_s,) = {phase.measured_end_s for phase in phases}
    assert end_s >= 1.1
    counted = sum(int(end_s / each_s) - int(0.5 / each_s) for each_s in every_s)
    assert counted >= answers or end_s == 0.5 + plan.most_s


def result_of(finished, *, origin_s=100.0, connection=0, **changes):
    """A result with one request for each time at which it finished, which took 10 ms."""
    finished = np.array(sorted(finished), np.float64)
    count = len(finished)
    at_s = np.array([0.0, 10.0])
    return PhaseResult(
        **{
            "records": RequestRecords(
                intended_s=finished - 0.01,
                started_s=finished - 0.01,
                finished_s=finished,
                status=np.full(count, 200, np.int16),
                connection=np.full(count, connection, np.int32),
            ),
            "origin_s": origin_s,
            "warmup_end_s": 1.0,
            "measured_end_s": 3.0,
            "client_cpu_s": 0.5,
            "client_cpu": CpuTimeSeries(at_s=at_s, used_s=0.25 * at_s),
            "wall_s": 3.0,
            "reconnects": 1,
            "last_loss": "",
            "fell_behind": 0.0,
            "first_error": "",
            **changes,
        }
    )


@given(
    times=st.lists(st.lists(st.floats(0.01, 9), max_size=30), min_size=2, max_size=4),
    late=st.floats(0, 0.5),
)
def test_every_request_is_joined_once_with_its_latency(times, late):
    """In order of completion on one clock, whenever the clients began; connections stay apart."""
    plans = deal(plan_of(), len(times))
    results = [result_of(one, origin_s=100.0 + late * number) for number, one in enumerate(times)]
    joined = join(plans, results)
    expected = sorted(time + late * number for number, one in enumerate(times) for time in one)
    assert np.allclose(joined.records.finished_s, expected)
    assert np.all(np.diff(joined.records.finished_s) >= 0)
    assert np.allclose(joined.records.finished_s - joined.records.started_s, 0.01)
    used = set(joined.records.connection.tolist())
    assert used == {
        plan.share.first_connection for plan, one in zip(plans, times, strict=True) if one
    }
    assert joined.records.connection.dtype == np.int32


def test_the_measured_part_is_that_of_all_clients():
    """The same for all, on one clock; where requests are counted, to the last response."""
    results = [
        result_of([1.5], warmup_end_s=1.0, measured_end_s=3.0),
        result_of([1.5], warmup_end_s=1.1, measured_end_s=2.9, origin_s=100.1),
    ]
    joined = join(deal(plan_of(), 2), results)
    assert (joined.warmup_end_s, joined.measured_end_s) == pytest.approx((1.2, 3.0))
    counted = join(deal(plan_of(seconds=None, requests=9), 2), results)
    assert counted.measured_end_s == pytest.approx(3.0)


def test_costs_add_up_and_the_worst_is_told():
    """CPU time of all; the share by which the worst fell behind; an error of any."""
    results = [
        result_of([1.0], fell_behind=0.2, first_error="no", hint="try"),
        result_of([1.0], fell_behind=0.3, last_loss="gone"),
    ]
    joined = join(deal(plan_of(), 2), results)
    assert (joined.client_cpu_s, joined.reconnects, joined.fell_behind) == (1.0, 2, 0.3)
    assert (joined.first_error, joined.hint, joined.last_loss) == ("no", "try", "gone")
    assert joined.client_cpu.between(np.array([2.0, 4.0])) == pytest.approx([1.0])
