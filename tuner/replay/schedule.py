"""Which cell a recording launches next: whole passes over the grid first, then the best cells again.

In: the cells, and the launches so far. Out: the launches that are still due, as sweep and cell. A pure
function of what was recorded, so that a recording that was killed goes on as if it had not been.

    pass 0, 1, 2        every cell once, in a new order each
    (again)             what the host disturbed, at the end of its sweep
    sweep 3, 4, ...     the best share of the cells, until their standard error is small or they have
                        had their most launches; chosen anew before each sweep
    then                their rivals: cells that by their error could be among the best, until they could
                        not or have had enough launches; as many cells that are well known beside them, by
                        which a sweep's moment can be told from its cells

Without the last part a cell whose two or three launches met good moments would win every search that
replays them, and launching it again would show the same.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tuner.replay.estimates import Estimate, estimates
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
    """Launches of one cell, but for those beside its rivals."""
    enough: int = 8
    """Launches of a rival, after which it is known well enough."""
    rival_within: float = 0.1
    """A cell is a rival where two standard errors below its mean it would lose no more than this."""


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
        wanted = cells
        if sweep >= thoroughness.passes:
            known = _known(recorded, sweep)
            wanted = best(known, thoroughness) or rivals(
                known, thoroughness, np.random.default_rng([seed, sweep, 1])
            )
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


def _known(recorded: Collection[Recorded], sweep: int) -> dict[Configuration, Estimate]:
    """What the launches before a sweep say of the cells that work, the best first."""
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
    return {cell: known[cell] for cell in sorted(known, key=lambda cell: known[cell].log_mean)}


def best(
    known: Mapping[Configuration, Estimate], thoroughness: Thoroughness
) -> list[Configuration]:
    """The best cells that are not well known yet.

    Args:
        known: every cell that works, the best first.
        thoroughness: how well they are to be known.
    """
    chosen = list(known)[: math.ceil(thoroughness.best_share * len(known))]
    return [
        cell
        for cell in chosen
        if known[cell].se > thoroughness.best_se and known[cell].launches < thoroughness.most
    ]


def rivals(
    known: Mapping[Configuration, Estimate],
    thoroughness: Thoroughness,
    rng: np.random.Generator,
) -> list[Configuration]:
    """Cells that could be among the best, and as many well known ones; none where nothing is open.

    Args:
        known: every cell that works, the best first.
        thoroughness: what a rival is, and how many launches it gets.
        rng: which of the well known cells are launched with them.
    """
    settled = [
        cell
        for cell, one in known.items()
        if one.launches >= thoroughness.enough or one.se <= thoroughness.best_se
    ]
    if not settled:
        return []
    limit = known[settled[0]].log_mean + thoroughness.rival_within
    found = [
        cell
        for cell, one in known.items()
        if cell not in settled and one.log_mean - 2 * one.se < limit
    ]
    beside = rng.permutation(len(settled))[: len(found)]
    return found + [settled[place] for place in sorted(beside)]


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
