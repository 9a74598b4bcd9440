"""Emulated workers that take exactly their time, with all models in memory: what becomes of requests."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence

from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.values import ModelId
from tuner.evaluation.simulation.pool import (
    EmulatedModel,
    EmulatedOutcome,
    EmulatedPool,
    EmulatedRequest,
    EmulatedWorker,
)

RESNET: Mapping[int, float] = {1: 0.00273, 2: 0.00405, 4: 0.00588, 8: 0.00993, 16: 0.01733}
LAG_S = 0.0002


@dataclasses.dataclass(frozen=True)
class Given:
    """Traffic as a list; nobody asks again."""

    requests: Sequence[EmulatedRequest]

    def __iter__(self) -> Iterator[EmulatedRequest]:
        return iter(self.requests)

    def next_request(self, request: EmulatedRequest, now_s: float) -> EmulatedRequest | None:
        return None


def answered(
    requests: Sequence[EmulatedRequest],
    *,
    profiles: Sequence[Mapping[int, float]] = (RESNET,),
    workers: int = 1,
    lag_s: float = LAG_S,
    parameters: Parameters | None = None,
) -> Sequence[EmulatedOutcome]:
    """What became of requests with all models in the memory of every worker, and without jitter."""
    models = [
        EmulatedModel(id=ModelId(f"m{number}", "1"), pages=1, load_s=0.008, batch_s=batch_s)
        for number, batch_s in enumerate(profiles)
    ]
    homes = [
        EmulatedWorker(number, pages=None, concurrent_loads=False) for number in range(workers)
    ]
    for home in homes:
        home.held.update({model.id: model.pages for model in models})
    scheduler = ClockworkScheduler(parameters or Parameters())
    pool = EmulatedPool(
        scheduler, models, homes, jitter=lambda: 1.0, message_latency_s=lambda: lag_s
    )
    return pool.run(Given(sorted(requests, key=lambda one: one.at_s)))


def was_admitted(outcome: EmulatedOutcome) -> bool:
    return not (outcome.refused and outcome.done_s == outcome.request.at_s)


def broken(outcomes: Sequence[EmulatedOutcome]) -> list[EmulatedOutcome]:
    """Those that were admitted, and refused later or answered late."""
    return [one for one in outcomes if was_admitted(one) and not one.in_time]


def in_time(outcomes: Sequence[EmulatedOutcome]) -> int:
    return sum(one.in_time for one in outcomes)


def poisson(
    rng: random.Random, per_s: float, seconds: float, first: EmulatedRequest, *, from_s: float = 0.0
) -> Iterator[EmulatedRequest]:
    """Requests like the first, at random times."""
    at_s = from_s + rng.expovariate(per_s)
    while at_s < seconds:
        yield dataclasses.replace(first, at_s=at_s)
        at_s += rng.expovariate(per_s)
