"""Model Analyzer's quick search, re-implemented: hill climbing from the smallest corner.

It follows "Quick Search Mode" in its documentation and `generate/neighborhood.py`, for any grid
(triton-inference-server/model_analyzer). A candidate's coordinates are the ranks of its values.

1. Home is the smallest corner.
2. Until three others within radius 3 of home are measured, measure the one with new values in the
   most knobs.
3. Step to the candidate nearest to home + 5 x the mean of the vectors to the measured ones, each
   times its gain over home; at most 2 in any knob.
4. If the step is not better than home, the best direct neighbour becomes home, if better.

Unlike the original, all knobs are searched, a failed trial counts as -2, and the best three are
repeated at the end. The climb is deterministic and ignores `initial`. Proposals are random in an
infinite space, or while home is running.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.history import History
from tuner.values.configuration import Configuration

RADIUS = 3.0
NEIGHBOURS = 3
MAGNITUDE = 5.0
MAX_STEP = 2.0
TOP = 3
LOST = -2.0


class HillClimbSampler(CandidateSampler):
    """Model Analyzer's quick search over a grid."""

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose what the climb needs next, or repeat one of the best candidates."""
        if not context.candidates.is_complete:
            return context.at_random()
        configurations = context.candidates.configurations
        seen = ClimbState.of(context.history, context.candidates)
        wanted = Climb(ranks(context.candidates), seen).next_cell()
        if wanted is not None and wanted not in seen.visited:
            return Proposal(configuration=configurations[wanted], origin="guided")
        best = sorted(seen.first, key=lambda place: seen.first[place])[:TOP]
        if wanted is not None or not best:  # it is running
            return context.at_random()
        chosen = best[context.history.trial_count % len(best)]
        return Proposal(configuration=configurations[chosen], origin="replicate")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClimbState:
    """Facts about the candidates, by position."""

    first: Mapping[int, float]
    """Target of each candidate's first success; repeats change nothing."""
    unsuccessful: frozenset[int]
    visited: frozenset[int]
    is_log: bool

    @classmethod
    def of(cls, history: History, candidates: CandidateSet) -> ClimbState:
        """Read the state from the trials so far."""
        first: dict[int, float] = {}
        for configuration, target in zip(history.configurations, history.targets, strict=True):
            if (place := candidates.index_of(configuration)) is not None:
                first.setdefault(place, float(target))
        lost = _places(history.lost_configurations, candidates) - first.keys()
        return cls(
            first=first,
            unsuccessful=frozenset(lost),
            visited=frozenset(_places(history.seen, candidates)),
            is_log=history.scale == "log",
        )

    @property
    def known(self) -> AbstractSet[int]:
        """Candidates evaluated so far."""
        return self.first.keys() | self.unsuccessful

    def gain(self, place: int, home: int) -> float:
        """Return a candidate's symmetric relative gain over home.

        It is 2 (b - a) / (a + b) for values a and b, or 2 tanh((log b - log a) / 2) on the log
        scale.
        """
        if place in self.unsuccessful:
            return 0.0 if home in self.unsuccessful else LOST
        if home in self.unsuccessful:
            return -LOST
        better = self.first[home] - self.first[place]
        if self.is_log:
            return 2 * float(np.tanh(better / 2))
        whole = abs(self.first[home]) + abs(self.first[place])
        return 2 * better / whole if whole else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Climb:
    """Path from the smallest corner, as far as it has been measured."""

    points: Array  # (m, k) ranks of all candidates
    seen: ClimbState

    def next_cell(self) -> int | None:
        """Return the candidate to measure next, or None at the end."""
        home = self._nearest(self.points.min(axis=0))
        homes = {home}
        while True:
            if home not in self.seen.known:
                return home
            wanted, step = self._step(home)
            if wanted is not None:
                return wanted
            if step is None or self.seen.gain(step, home) <= 0:
                wanted, step = self._best_beside(home)
                if wanted is not None:
                    return wanted
            if step is None or step in homes:
                return None
            homes.add(step)
            home = step

    def _step(self, home: int) -> tuple[int | None, int | None]:
        """Return (a candidate to measure first, None), or (None, the step or None)."""
        near = self._within(home, RADIUS)
        measured = [place for place in near if place in self.seen.known]
        open_ = [place for place in near if place not in self.seen.visited]
        if len(measured) < NEIGHBOURS and open_:
            return self._newest(open_, measured), None
        if not measured:
            return None, None
        step = self._vector(home, measured)
        target = self._nearest(self.points[home] + step)
        if target == home:
            return None, None
        return (None, target) if target in self.seen.known else (target, None)

    def _vector(self, home: int, measured: list[int]) -> Array:
        ways = self.points[measured] - self.points[home]
        gains = np.array([self.seen.gain(place, home) for place in measured])
        step = MAGNITUDE * (ways * gains[:, None]).mean(axis=0)
        longest = float(np.abs(step).max(initial=0.0))
        return np.asarray(np.rint(step * min(1.0, MAX_STEP / longest) if longest else step))

    def _best_beside(self, home: int) -> tuple[int | None, int | None]:
        """Return (a neighbour to measure, None), or (None, the best if better than home)."""
        beside = self._within(home, 1.0)
        for place in beside:
            if place not in self.seen.visited:
                return place, None
        gains = {place: self.seen.gain(place, home) for place in beside if place in self.seen.first}
        best = max(gains, key=lambda place: gains[place], default=None)
        return None, best if best is not None and gains[best] > 0 else None

    def _newest(self, open_: list[int], measured: list[int]) -> int:
        covered = [set(column) for column in self.points[measured].T.tolist()]
        new = [
            sum(value not in values for value, values in zip(point, covered, strict=True))
            for point in self.points[open_].tolist()
        ]
        return open_[int(np.argmax(new))]

    def _within(self, home: int, radius: float) -> list[int]:
        apart = np.linalg.norm(self.points - self.points[home], axis=1)
        return [int(place) for place in np.flatnonzero(apart <= radius + 1e-9) if place != home]

    def _nearest(self, point: Array) -> int:
        return int(np.argmin(np.linalg.norm(self.points - point, axis=1)))


def ranks(candidates: CandidateSet) -> Array:
    """Return points (m, k): ranks of varying knobs' values, with choices in order of appearance."""
    columns = []
    for name in sorted(candidates.names):
        values = [cell[name] for cell in candidates.configurations]
        levels = list(dict.fromkeys(values))
        if all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels):
            levels.sort()
        if len(levels) > 1:
            rank = {level: float(place) for place, level in enumerate(levels)}
            columns.append([rank[value] for value in values])
    if not columns:
        return np.zeros((len(candidates.configurations), 1))
    return np.array(columns).T


def _places(configurations: Collection[Configuration], candidates: CandidateSet) -> set[int]:
    found = (candidates.index_of(one) for one in configurations)
    return {place for place in found if place is not None}
