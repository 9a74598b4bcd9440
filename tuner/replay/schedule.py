"""Which cell a recording launches next: whole passes over the grid first, then the best cells again.

In: the cells, and the launches so far. Out: the launches that are still due, as sweep and cell. A pure
function of what was recorded, so that a recording that was killed goes on as if it had not been.

    pass 0, 1, 2        every cell once, in a new order each
    (again)             what the host disturbed, at the end of its sweep
    sweep 3, 4, ...     the best share of the cells, until their standard error is small or they have
                        had their most launches; chosen anew before each sweep
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tuner.replay.estimates import estimates
from tuner.values import Configuration

MOST_TRIES = 3
"""Launches of a cell in one sweep, where the host disturbs them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Thoroughness:
    """How often cells are launched."""

    passes: int = 3
    """Over the whole grid; fewer than three leave nothing to hold out."""
    best_share: float = 0.05
    """Of the cells that are launched until they are well known."""
    best_se: float = 0.01
    """Standard error at which one is, as a share of its mean."""
    most: int = 16
    """Launches of one cell."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """What a schedule needs of a launch."""

    sweep: int
    cell: Configuration
    value: float | None
    """The objective; None where the launch failed."""
    is_disturbed: bool = False
    """Whether it tells of the host, and so is made again."""


def due(
    cells: Sequence[Configuration],
    recorded: Collection[Recorded],
    thoroughness: Thoroughness,
    *,
    seed: int,
) -> tuple[int, list[Configuration]]:
    """The sweep under way and its cells that were not launched in it, in their order; none at the end."""
    done = _done(recorded)
    sweep = 0
    while True:
        wanted = cells if sweep < thoroughness.passes else best(recorded, thoroughness, sweep)
        left = [
            wanted[place]
            for place in np.random.default_rng([seed, sweep]).permutation(len(wanted))
            if (sweep, wanted[place]) not in done
        ]
        if left or not wanted:
            return sweep, left
        sweep += 1


def _done(recorded: Collection[Recorded]) -> set[tuple[int, Configuration]]:
    """Launches that need not be made again, by sweep and cell: sound ones, and those of which most tries were not."""
    tries = collections.Counter((one.sweep, one.cell) for one in recorded)
    sound = {(one.sweep, one.cell) for one in recorded if not one.is_disturbed}
    return sound | {key for key, count in tries.items() if count >= MOST_TRIES}


def best(
    recorded: Collection[Recorded], thoroughness: Thoroughness, sweep: int
) -> list[Configuration]:
    """The best cells that are not well known yet, by the launches before a sweep."""
    values: dict[Configuration, list[float]] = {}
    lost: dict[Configuration, int] = {}
    for one in recorded:
        if one.sweep >= sweep or one.is_disturbed:
            continue
        if one.value is None:
            lost[one.cell] = lost.get(one.cell, 0) + 1
        else:
            values.setdefault(one.cell, []).append(one.value)
    known = estimates(
        {cell: each for cell, each in values.items() if is_feasible(cell, values, lost)}
    )
    ordered = sorted(known, key=lambda cell: known[cell].log_mean)
    chosen = ordered[: math.ceil(thoroughness.best_share * len(ordered))]
    return [
        cell
        for cell in chosen
        if known[cell].se > thoroughness.best_se and known[cell].launches < thoroughness.most
    ]


def is_feasible(
    cell: Configuration,
    values: Mapping[Configuration, Sequence[float]],
    lost: Mapping[Configuration, int],
) -> bool:
    """Whether more of a cell's launches worked than failed."""
    return len(values.get(cell, ())) > lost.get(cell, 0)


def expected_launches(cells: int, thoroughness: Thoroughness) -> int:
    """About as many as a recording takes: the best cells are launched half of what they may be."""
    more = max(0, (thoroughness.most - thoroughness.passes) // 2)
    return cells * thoroughness.passes + math.ceil(thoroughness.best_share * cells) * more
