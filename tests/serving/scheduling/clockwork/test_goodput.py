"""Refusing is no way out: what is answered in time, beside a schedule by earliest deadline that refuses nothing."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.serving.scheduling.clockwork.emulated import (
    LAG_S,
    RESNET,
    answered,
    broken,
    in_time,
)
from tuner.evaluation.simulation.pool import EmulatedRequest

pytestmark = pytest.mark.slow

MOST_PER_S = 16 / RESNET[16]
"""Requests that one worker can do in a second, in the largest batches."""


def by_earliest_deadline(requests: Sequence[EmulatedRequest], batch_s: Mapping[int, float]) -> int:
    """How many requests a plain online schedule of one worker answers in time, which refuses nothing when it comes.

    Earliest deadline first, in batches, without interruption. Whenever the worker is free it takes of what has
    arrived the first by deadline, with as many of the next ones as leave that in time, and drops what cannot be in
    time even alone. It knows nothing of what is to come, and is no upper bound.
    """
    coming = sorted(requests, key=lambda one: one.at_s)
    took_s = [0.0] * (max(batch_s) + 1)
    for count in range(1, len(took_s)):
        took_s[count] = batch_s[min(size for size in batch_s if size >= count)]
    waiting: list[float] = []
    now_s, place, done = 0.0, 0, 0
    while place < len(coming) or waiting:
        if not waiting:
            now_s = max(now_s, coming[place].at_s)
        while place < len(coming) and coming[place].at_s <= now_s:
            one = coming[place]
            heapq.heappush(waiting, one.at_s + one.objective_s - 2.0 * LAG_S)
            place += 1
        while waiting and now_s + took_s[1] > waiting[0]:
            heapq.heappop(waiting)
        if not waiting:
            continue
        count = min(len(waiting), len(took_s) - 1)
        while now_s + took_s[count] > waiting[0]:
            count -= 1
        for _ in range(count):
            heapq.heappop(waiting)
        now_s += took_s[count]
        done += count
    return done


def mixture(
    deadlines_s: Sequence[float], per_s: float, seconds: float
) -> Iterator[EmulatedRequest]:
    """Requests at random times. Two deadlines or more are as frequent each; a tuple is a range, by its logarithm."""
    rng = random.Random(1)
    at_s = rng.expovariate(per_s)
    while at_s < seconds:
        if isinstance(deadlines_s, tuple):
            least_s, most_s = deadlines_s
            within_s = least_s * (most_s / least_s) ** rng.random()
        else:
            within_s = rng.choice(deadlines_s)
        yield EmulatedRequest(at_s=at_s, model=0, objective_s=within_s)
        at_s += rng.expovariate(per_s)


@pytest.mark.parametrize("load", [0.8, 1.5, 3.0])
@pytest.mark.parametrize(
    "deadlines_s",
    [
        pytest.param([0.02, 0.2], id="20 or 200 ms"),
        pytest.param([0.05, 1.0], id="50 ms or 1 s"),
        pytest.param([0.01, 0.1], id="10 or 100 ms"),
        pytest.param([0.02, 0.05], id="20 or 50 ms"),
        pytest.param([0.02], id="20 ms"),
        pytest.param([0.03], id="30 ms"),
        pytest.param([0.05], id="50 ms"),
        pytest.param([0.1], id="100 ms"),
        pytest.param((0.001, 1.0), id="1 ms to 1 s"),
        pytest.param((0.01, 1.0), id="10 ms to 1 s"),
        pytest.param((0.001, 100.0), id="1 ms to 100 s"),
    ],
)
def test_as_much_is_in_time_as_by_earliest_deadline(
    deadlines_s: Sequence[float], load: float
) -> None:
    """At 0.9 of it and more, whatever the mixture.

    But where some can wait for a hundred seconds and there is too much to do, it is 0.85: a part of that time is kept
    free, in which the other schedule does what is left when nobody asks any more.
    """
    most_s = max(deadlines_s)
    seconds = max(4.0 / load, min(2.0 * most_s, 2.0))  # about as many requests under each load
    requests = list(mixture(deadlines_s, load * MOST_PER_S, seconds))
    outcomes = answered(requests)
    assert not broken(outcomes)
    share = 0.85 if most_s > 10.0 else 0.9
    assert in_time(outcomes) >= share * by_earliest_deadline(requests, RESNET)
