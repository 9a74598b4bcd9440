"""What is true of a recorded surface, as far as launches that no replay draws can tell.

In: a surface and an objective. Out: which launches a replay may draw, and a `Truth`: for every feasible
cell an estimate with its standard error, from the other launches alone. Pure.

The machine is faster in one minute than in another. What all launches of a time have in common against
the means of their cells is taken out first (`drift`), over all launches: it tells of times, not of cells.

The lowest of many noisy means is too low. So a cell's mean is drawn towards what the cells around it
say, as far as its own standard error lets it: the posterior of a Gaussian process over the held-out
means, whose noise is what `estimates` found (the same smoothing by which the truth of a simulated
surface would be known exactly).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.histogram import Histogram
from tuner.objective import Objective
from tuner.replay.estimates import estimates
from tuner.replay.surface import RecordedLaunch, Surface
from tuner.sampling import gaussian_process
from tuner.sampling.candidates import Candidates
from tuner.sampling.gaussian_process import NoisePrior
from tuner.values import Configuration

Array = NDArray[np.float64]

WINDOW_S = 45.0
"""Before and after a launch: some 35 launches, of as many cells."""
LEAST_KNOWN = 8
"""Launches of a cell from which on those after the passes tell of drift."""
SWEEPS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halves:
    """The launches of each cell, in two: those that a replay draws, and those that it never does."""

    drawn: Mapping[Configuration, tuple[RecordedLaunch, ...]]
    held_out: Mapping[Configuration, tuple[RecordedLaunch, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """Feasible cells (m,) and what is known of them; logarithms of the objective, minimised."""

    cells: tuple[Configuration, ...]
    log_mean: Array  # (m,)
    se: Array  # (m,)
    lost: frozenset[Configuration]
    """Cells that do not work."""

    @property
    def best(self) -> int:
        """Position of the optimum."""
        return int(np.argmin(self.log_mean))

    @property
    def optimum(self) -> float:
        """The best value, in the unit that is minimised."""
        return math.exp(float(self.log_mean[self.best]))

    @property
    def optimum_se(self) -> float:
        """Its standard error, as a share."""
        return float(self.se[self.best])

    def tolerance(self, share: float) -> float:
        """How far above the optimum still counts as within `share` of it: never less than its error lets one tell."""
        return max(share, 2 * self.optimum_se)

    def good(self, share: float) -> frozenset[Configuration]:
        """Cells within a share of the optimum."""
        limit = float(self.log_mean[self.best]) + math.log1p(self.tolerance(share))
        return frozenset(
            cell for cell, mean in zip(self.cells, self.log_mean, strict=True) if mean <= limit
        )

    def regret(self, cell: Configuration) -> float:
        """How far a cell lies above the optimum: 0.02 is 2 %; infinite for one that does not work."""
        place = self._places.get(cell)
        if place is None:
            return math.inf
        return math.expm1(float(self.log_mean[place] - self.log_mean[self.best]))

    def ratio(self, one: Configuration, other: Configuration) -> float | None:
        """Of what is minimised, one cell's over another's; None where one does not work."""
        first, second = self._places.get(one), self._places.get(other)
        if first is None or second is None:
            return None
        return math.exp(float(self.log_mean[first] - self.log_mean[second]))

    @functools.cached_property
    def _places(self) -> Mapping[Configuration, int]:
        return {cell: place for place, cell in enumerate(self.cells)}


def halves(surface: Surface) -> Halves:
    """Every second launch of a cell, from its first on, may be drawn; the others are held out.

    Alternating, because the machine may have changed between a recording's first hour and its last.
    """
    every = surface.by_cell
    return Halves(
        drawn={cell: tuple(launches[0::2]) for cell, launches in every.items()},
        held_out={cell: tuple(launches[1::2]) for cell, launches in every.items()},
    )


def truth(
    surface: Surface,
    held_out: Mapping[Configuration, Sequence[RecordedLaunch]],
    objective: Objective,
    candidates: Candidates,
) -> Truth:
    """The truth of the cells, by their held-out launches.

    Args:
        surface: for its load.
        held_out: launches by cell.
        objective: what is minimised.
        candidates: give every cell its vector.
    """
    values: dict[Configuration, list[float]] = {}
    lost: set[Configuration] = set()
    slower = drift(surface, objective)
    for cell, launches in surface.by_cell.items():
        failed = sum(_value(surface, launch, objective) is None for launch in launches)
        if 2 * failed >= len(launches):
            lost.add(cell)
            continue
        values[cell] = [
            value * math.exp(-slower[launch.number])
            for launch in held_out[cell]
            if (value := _value(surface, launch, objective)) is not None
        ]
    known = estimates(values)
    cells = tuple(known)
    if not cells:
        nothing = np.empty(0)
        return Truth(cells=(), log_mean=nothing, se=nothing, lost=frozenset(surface.by_cell))
    vectors = np.array([candidates.vector_of(cell) for cell in cells], dtype=float)
    means = np.array([known[cell].log_mean for cell in cells])
    if objective.name == "p99":  # of all requests together: never a mean of p99s
        together = (_pooled(held_out[cell], slower) for cell in cells)
        means = np.log([one.quantile_ms(0.99) for one in together if one is not None])
    errors = np.array([known[cell].se for cell in cells])
    common = float(np.sqrt(np.mean(errors**2)))
    process = gaussian_process.fit(
        vectors,
        means,
        noise=NoisePrior(sd=common, spread=0.1),
        weights=(errors / common) ** 2,
    )
    smooth, sd = process.predict(vectors)
    return Truth(cells=cells, log_mean=smooth, se=sd, lost=frozenset(lost))


def _value(surface: Surface, launch: RecordedLaunch, objective: Objective) -> float | None:
    """What a launch tells of the objective, minimised; None where it tells nothing."""
    measured = surface.measured(launch)
    value = math.nan if measured is None else objective.to_minimise(measured)
    return value if math.isfinite(value) else None


def _pooled(launches: Sequence[RecordedLaunch], slower: Mapping[int, float]) -> Histogram | None:
    """The round trips of launches together, each without the drift of its time; None without any."""
    counted = [
        one.histogram.scaled(math.exp(-slower[one.number]))
        for one in launches
        if one.histogram is not None and one.number in slower
    ]
    return Histogram.merged(counted) if counted else None


def drift(surface: Surface, objective: Objective) -> Mapping[int, float]:
    """How much slower than at other times each launch that worked was, with those around it in time.

    After the passes the cells are chosen for what their launches were, and where they had few, the next
    ones are slower for that alone: such launches tell nothing of the time.

    Returns:
        By number of the launch: the logarithm of a factor; the median over all launches is 0.
    """
    every = ((one, _value(surface, one, objective)) for one in surface.launches)
    told = [(launch, value) for launch, value in every if value is not None]
    if not told:
        return {}
    launches = [launch for launch, _ in told]
    at_s = np.array([launch.started_at for launch in launches])
    logs = np.log([value for _, value in told])
    numbers = {cell: number for number, cell in enumerate({one.cell: None for one in launches})}
    cells = np.array([numbers[one.cell] for one in launches])
    counts = np.bincount(cells)
    tells = np.array([one.sweep < surface.head.passes for one in launches])
    tells |= counts[cells] >= LEAST_KNOWN
    near = [np.abs(at_s - one) <= WINDOW_S for one in at_s]
    near = [each & tells if np.any(each & tells) else each for each in near]
    slower = np.zeros(len(logs))
    for _ in range(SWEEPS):
        means = np.bincount(cells, weights=logs - slower) / counts
        left = logs - means[cells]
        slower = np.array([np.median(left[each]) for each in near])
        slower -= np.median(slower)
    return dict(zip((one.number for one in launches), slower.tolist(), strict=True))
