"""A scenario in virtual time: the real scheduler, emulated workers, and what became of every request.

In: a scenario, a scheduler. Out: `Result`. The clock jumps from event to event, so that thousands of models
and hours of traffic take as long as the scheduler needs to plan them; how long that is, is measured.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from serving.errors import InvalidSettings
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.seam import Event, Kind, Plan, Scheduler
from serving.settings import ServingSettings
from serving.values import ModelId
from tuner.errors import WrongUse
from tuner.scenarios import arrivals
from tuner.scenarios.values import MOST_ARRIVALS, Scenario
from tuner.simulation.pool import EmulatedModel, EmulatedPool, EmulatedWorker, Outcome, Request

QUANTILES = (0.5, 0.99, 0.999, 1.0)
ROUNDING_S = 1e-9
CHECKED_EVERY = 1024
"""Requests."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of some requests; every one is counted once."""

    requests: int
    in_time: int
    late: int
    """Answered after their deadline."""
    refused_at_once: Mapping[str, int]
    """Reason -> requests that were refused when they came."""
    dropped: Mapping[str, int]
    """Reason -> requests that were admitted and refused later."""
    round_trips_ms: tuple[float, ...]
    """Of those that were answered: at `QUANTILES`; empty where none was."""

    @property
    def admitted(self) -> int:
        """Requests that were not refused at once."""
        return self.requests - sum(self.refused_at_once.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the workers did, all together."""

    loads: int
    load_share: float
    """Of the workers' time."""
    exec_share: float
    batches: Mapping[int, int]
    """Items -> batches."""
    missed_windows: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of a scenario."""

    scenario: str
    seconds: float
    """Until the last request had its end: somewhat longer than requests come."""
    streams: Mapping[str, Counts]
    by_deadline: Mapping[str, Mapping[float, Counts]]
    """Stream -> deadline in ms -> requests, where deadlines grow."""
    work: Work
    planning_s: float
    """What the scheduler took, on one core."""

    @property
    def requests(self) -> int:
        """Of all streams."""
        return sum(one.requests for one in self.streams.values())

    @property
    def goodput_per_s(self) -> float:
        """Requests in time."""
        return sum(one.in_time for one in self.streams.values()) / self.seconds

    @property
    def planned_per_s(self) -> float:
        """Requests that one core can plan."""
        return self.requests / self.planning_s if self.planning_s else float("inf")


class Timed:
    """A scheduler, and how long it takes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.took_s = 0.0

    @property
    def waiting_items(self) -> int:
        """Items in the queue."""
        return self._scheduler.waiting_items

    def waiting_of(self, model: ModelId) -> int:
        """Those of a model."""
        return self._scheduler.waiting_of(model)

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        began_s = time.perf_counter()
        self._scheduler.on(event, now_s)
        self.took_s += time.perf_counter() - began_s

    def plan(self, now_s: float) -> Plan:
        """What is to be done now."""
        began_s = time.perf_counter()
        plan = self._scheduler.plan(now_s)
        self.took_s += time.perf_counter() - began_s
        return plan


@dataclasses.dataclass(frozen=True, slots=True)
class _Checked:
    """Traffic, and a look at whether to go on."""

    traffic: arrivals.Traffic
    check: Callable[[], None]
    count: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def __iter__(self) -> Iterator[Request]:
        for request in self.traffic:
            self._counted()
            yield request

    def answered(self, request: Request, now_s: float) -> Request | None:
        """What a client sends next."""
        self._counted()
        return self.traffic.answered(request, now_s)

    def _counted(self) -> None:
        number = next(self.count)
        if not number % CHECKED_EVERY:
            self.check()
        if number > MOST_ARRIVALS:
            raise WrongUse(
                f"scenario {self.traffic.scenario.name}: more than {MOST_ARRIVALS:,} requests; give it less time "
                "(seconds), or fewer clients"
            )


def settings_of(scenario: Scenario) -> ServingSettings:
    """Of the serving core.

    Raises:
        WrongUse: a setting is not known, or out of its range.
    """
    try:
        policy = ServingSettings().changed({"scheduling.policy": "clockwork"})
        return policy.changed(scenario.settings, source=f"scenario {scenario.name}")
    except InvalidSettings as error:
        raise WrongUse(str(error)) from error


def clockwork(scenario: Scenario) -> Scheduler:
    """The scheduler that a pool has."""
    return ClockworkScheduler.of(settings_of(scenario))


def run(
    scenario: Scenario,
    make: Callable[[Scenario], Scheduler] = clockwork,
    *,
    check: Callable[[], None] = lambda: None,
) -> tuple[Result, list[Outcome]]:
    """One run, and what became of each request, in the order in which they came.

    Args:
        scenario: what is emulated.
        make: gives a new scheduler.
        check: is called now and then; may raise.
    """
    timed = Timed(make(scenario))
    models = [
        EmulatedModel(
            id=ModelId(f"{group.name}-{copy}", "1"),
            pages=group.profile.pages,
            load_s=group.profile.load_s,
            batch_s=group.profile.batch_s,
        )
        for group in scenario.groups
        for copy in range(group.copies)
    ]
    workers = [
        EmulatedWorker(number, pages=scenario.pages, loads_apart=scenario.loads_apart)
        for number in range(scenario.workers)
    ]
    rng = random.Random(scenario.seed)  # noqa: S311 - an emulation's luck
    half_s = 0.5 * scenario.emulated.lag_s
    pool = EmulatedPool(
        timed,
        models,
        workers,
        jitter=lambda: rng.choice(scenario.emulated.jitter),
        lag_s=lambda: half_s + (rng.expovariate(1.0 / half_s) if half_s else 0.0),
    )
    timed.took_s = 0.0
    outcomes = pool.run(_Checked(arrivals.traffic(scenario), check))
    return _result(scenario, outcomes, workers, timed), outcomes


def _result(
    scenario: Scenario, outcomes: Sequence[Outcome], workers: Sequence[EmulatedWorker], timed: Timed
) -> Result:
    by_stream: dict[int, list[Outcome]] = {place: [] for place in range(len(scenario.streams))}
    for outcome in outcomes:
        by_stream[outcome.request.stream].append(outcome)
    by_deadline = {}
    for place, stream in enumerate(scenario.streams):
        if stream.deadline.factor == 1.0:
            continue
        by_size: dict[float, list[Outcome]] = {}
        for outcome in by_stream[place]:
            by_size.setdefault(outcome.request.objective_s, []).append(outcome)
        by_deadline[stream.name] = {1e3 * size: counts(some) for size, some in by_size.items()}
    ends_s = [outcome.done_s for outcome in outcomes if outcome.done_s > scenario.seconds]
    span_s = max(ends_s, default=scenario.seconds)
    time_s = span_s * len(workers)
    return Result(
        scenario=scenario.name,
        seconds=span_s,
        streams={
            stream.name: counts(by_stream[place]) for place, stream in enumerate(scenario.streams)
        },
        by_deadline=by_deadline,
        work=Work(
            loads=sum(worker.counts[Kind.LOAD] for worker in workers),
            load_share=sum(worker.busy_s[Kind.LOAD] for worker in workers) / time_s,
            exec_share=sum(worker.busy_s[Kind.INFER] for worker in workers) / time_s,
            batches=dict(
                sorted(sum((worker.batches for worker in workers), collections.Counter()).items())
            ),
            missed_windows=sum(worker.too_late for worker in workers),
        ),
        planning_s=timed.took_s,
    )


def counts(outcomes: Sequence[Outcome]) -> Counts:
    """What became of some requests."""
    at_once: collections.Counter[str] = collections.Counter()
    dropped: collections.Counter[str] = collections.Counter()
    took_ms = []
    in_time = 0
    for outcome in outcomes:
        if outcome.refused is None:
            took_ms.append(1e3 * (outcome.done_s - outcome.request.at_s))
            in_time += outcome.in_time
        elif outcome.done_s <= outcome.request.at_s + ROUNDING_S:
            at_once[outcome.refused.value] += 1
        else:
            dropped[outcome.refused.value] += 1
    quantiles = np.quantile(took_ms, QUANTILES, method="higher").tolist() if took_ms else []
    return Counts(
        requests=len(outcomes),
        in_time=in_time,
        late=len(took_ms) - in_time,
        refused_at_once=dict(at_once),
        dropped=dict(dropped),
        round_trips_ms=tuple(quantiles),
    )
