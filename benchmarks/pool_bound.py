"""What no schedule can exceed on given arrivals: so many models in memory, one load at a time, one executor.

In: when requests of each model came. Out: the most of them that can be in time. Pure.

`clairvoyant` knows all arrivals beforehand. It is the Lagrangian bound of a relaxed problem. Memory costs a
price for each model and second, a load another, an executor's second a third; at these prices every model
decides for itself which requests to serve and when to be in memory (a dynamic program over its requests), and
what there is of memory, loads and executors is paid for at the end. For any prices that is an upper bound;
the lowest is taken. A request is taken to cost no more of the executor than its share of the largest batch
that there could be of it: of those of its model that come so near to it that one batch can serve them.

`online` is for schedules that do not know the future, where requests come at random and independently (Poisson),
as often for one model as for the other. In expectation: the models in memory, whichever they are, serve those
that come for them; a load serves one request that waits, and at most those others that came for a model
while another request for it could still wait.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

Array = NDArray[np.float64]

FEW = 8
"""Models with so many requests as these are taken one after another."""
FIRST_PRICES = (0.05, 0.3, 50.0)
"""Where the search for the lowest bound begins, in requests: a second of memory, a load, a second of execution."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is."""

    slots: int
    """Models in memory."""
    load_s: float
    """Between two loads."""
    batch_s: Mapping[int, float]
    window_s: float
    """After its arrival, by when a request's model must be in memory."""


def clairvoyant(arrivals: Sequence[Array], machine: Machine, seconds: float) -> float:
    """Requests that could be in time.

    Args:
        arrivals: for each model the seconds of its requests, ascending.
        machine: what there is.
        seconds: in which requests come; what came last may be done somewhat later.
    """
    groups = [_Group.of(some, machine) for some in _by_length(arrivals)]
    span_s = seconds + machine.window_s + max(machine.batch_s.values())

    def dual(logs: Array) -> float:
        memory, load, execution = np.exp(logs)
        worth = sum(group.worth(memory, load, execution) for group in groups)
        there = memory * machine.slots + load / machine.load_s + execution
        return float(worth + there * span_s)

    found = optimize.minimize(
        dual,
        np.log(FIRST_PRICES),
        method="Nelder-Mead",
        options={"xatol": 1e-2, "fatol": 1e-4 * seconds},
    )
    return min(float(found.fun), float(sum(map(len, arrivals))))


def online(rate_per_s: float, models: int, machine: Machine) -> float:
    """Requests a second that could be in time, of `models` that share the rate evenly; the executor is free.

    Args:
        rate_per_s: of all models together.
        models: how many.
        machine: what there is; its slots are those of these models.
    """
    each = rate_per_s / models
    if machine.slots >= models:
        return rate_per_s
    joining = rate_per_s * (1.0 - math.exp(-each * machine.window_s))
    return min(rate_per_s, each * machine.slots + 1.0 / machine.load_s + joining)


def _by_length(arrivals: Sequence[Array]) -> list[list[Array]]:
    """Models with about as many requests together."""
    found: dict[int, list[Array]] = {}
    for one in arrivals:
        if len(one):
            found.setdefault(len(one).bit_length(), []).append(one)
    return list(found.values())


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """Models with about as many requests; a row for each request, a column for each model."""

    gaps: Array
    """Seconds from the last moment at which one request can be served to the next one; infinite before the first."""
    costs: Array
    """Seconds of the executor; infinite where there is no request."""

    @classmethod
    def of(cls, arrivals: Sequence[Array], machine: Machine) -> _Group:
        shape = (max(map(len, arrivals)), len(arrivals))
        gaps, costs = np.full(shape, np.inf), np.full(shape, np.inf)
        for place, at_s in enumerate(arrivals):
            gaps[1 : len(at_s), place] = np.maximum(np.diff(at_s) - machine.window_s, 0.0)
            costs[: len(at_s), place] = _costs(at_s, machine)
        return cls(gaps, costs)

    def worth(self, memory: float, load: float, execution: float) -> float:
        """The most that the models get for their requests, less what they pay, at these prices."""
        gains = 1.0 - execution * self.costs  # minus infinity where there is no request
        stays = memory * self.gaps
        if self.gaps.shape[1] <= FEW:
            return sum(
                _alone(gain, stay, load) for gain, stay in zip(gains.T, stays.T, strict=True)
            )
        best = np.zeros(self.gaps.shape[1])
        inside = np.full(self.gaps.shape[1], -np.inf)
        for gain, stay in zip(gains, stays, strict=True):
            kept = np.where(np.isfinite(stay), inside - stay, -np.inf)
            # In memory without serving it is better still where a request costs more than it brings.
            inside = np.maximum(gain, 0.0) + np.maximum(best - load, kept)
            inside = np.where(np.isfinite(gain), inside, -np.inf)
            best = np.maximum(best, inside)
        return float(best.sum())


def _alone(gains: Array, stays: Array, load: float) -> float:
    best, inside = 0.0, -np.inf
    for gain, stay in zip(gains.tolist(), stays.tolist(), strict=True):
        if gain == -np.inf:
            break
        inside = max(gain, 0.0) + max(best - load, inside - stay)
        best = max(best, inside)
    return best


def _costs(at_s: Array, machine: Machine) -> Array:
    """Least seconds (n,) of the executor for each of a model's requests."""
    near = np.searchsorted(at_s, at_s + machine.window_s, side="right") - np.searchsorted(
        at_s, at_s - machine.window_s, side="left"
    )
    sizes = np.array(sorted(machine.batch_s))
    each_s = np.array([machine.batch_s[size] / size for size in sizes])
    # A batch of fewer items than its size is padded: the share is of the items that are there.
    counts = np.arange(1, sizes[-1] + 1)
    took_s = np.array([machine.batch_s[sizes[np.searchsorted(sizes, count)]] for count in counts])
    share_s = np.minimum.accumulate(took_s / counts)
    assert share_s[-1] <= each_s.min() + 1e-12, "the largest batch is the cheapest for each"
    return share_s[np.minimum(near, len(counts)) - 1]
