"""How much of a study is left: trials, time, and when its end can be expected.

In: the settings, the number of trials that ended and how long they took. Out: seconds and a reason
to stop. Verification belongs to the longest time: trials stop early enough for it. Pure; seconds
throughout.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from tuner.measurement.sequential import LEAST_PAIRS
from tuner.settings import StudySettings
from tuner.slices import EXPECTED_LAUNCH_S, Slices

EXPECTED_OVERHEAD_S = 0.5
"""Of a trial before any was seen: new replicas, the proposal, and keeping the result."""
EXPECTED_START_S = 1.6
"""Of a fresh server before any was seen: start to ready, and its end."""
KEPT_FOR_VERIFICATION = 1 / 3
"""Share of the longest time that is kept for the verification, where it can use so much."""
MOST_FOR_VERIFICATION = 0.5
"""Largest share that is kept where a third is too short for the least pairs: the search has as much."""
MOST_FINALISTS = 3
"""Configurations among which fresh starts choose the best."""
OPEN_LOADS = 3
"""How many times as long as a trial default and best are measured in an open loop at the end."""
FINAL_ROUNDS = 4
"""Fresh starts that each finalist gets."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a study may use."""

    trials: int
    initial: int
    max_time_s: float
    load_s: float
    """Warm-up and measured time of one launch."""
    pairs: int
    start_s: float | None = None
    """Of a fresh start, where every trial is one, as of another engine; None: a trial costs none."""
    fresh_start_s: float = EXPECTED_START_S
    """Of a fresh start, where a trial is none."""
    is_cut: bool = False
    """Whether what is compared is up at once, and loaded in slices; else each launch is a fresh start with a whole
    load."""
    measured_s: float = 0.0
    """Least that a launch is measured for."""
    round_trip_s: float = 0.0
    """Mean, of the slowest that is compared; 0 before it is known."""
    shows_open: bool = False
    """Whether default and best are launched in an open loop at the end."""

    @classmethod
    def of(
        cls, settings: StudySettings, *, start_s: float | None = None, is_cut: bool = False
    ) -> Budget:
        """What the settings allow.

        Args:
            settings: of the study.
            start_s: of a fresh start, where every trial is one.
            is_cut: whether what is compared is up at once, and loaded in slices.
        """
        measurement = settings.measurement
        return cls(
            trials=settings.search.trials,
            initial=settings.search.first_trials,
            max_time_s=settings.search.max_time_s,
            load_s=measurement.load_s,
            pairs=measurement.pairs,
            start_s=start_s,
            is_cut=is_cut,
            measured_s=measurement.compared_s,
            shows_open=not settings.is_open,
        )

    def learnt(self, walls_s: Sequence[float]) -> Budget:
        """The budget with what the trials so far tell of fresh starts, their ends included."""
        if self.start_s is None or not walls_s:
            return self
        return dataclasses.replace(self, start_s=max(0.0, self.trial_s(walls_s) - self.load_s))

    def loaded(self, loads_s: Sequence[float]) -> Budget:
        """The budget with what the loads so far tell, where they last longer than was asked for.

        Args:
            loads_s: warm-up and measured time of each launch that was measured.
        """
        if not loads_s:
            return self
        return dataclasses.replace(self, load_s=max(self.load_s, statistics.median(loads_s)))

    def answered(self, round_trip_s: float) -> Budget:
        """The budget with the mean round trip of the default, the slowest of what is compared as a rule."""
        return dataclasses.replace(self, round_trip_s=round_trip_s)

    @property
    def slices(self) -> Slices | None:
        """Of launches that are compared side by side; None where they are not."""
        if not self.is_cut:
            return None
        return Slices.of(
            round_trip_s=self.round_trip_s,
            launch_s=EXPECTED_LAUNCH_S if self.start_s is None else self.start_s,
            measured_s=self.measured_s,
        )

    def trial_s(self, walls_s: Sequence[float]) -> float:
        """Expected time of one trial, from those that were seen."""
        if not walls_s:
            return self.load_s + EXPECTED_OVERHEAD_S + (self.start_s or 0.0)
        return statistics.median(walls_s)

    @property
    def fresh_s(self) -> float:
        """Expected time of one launch on a fresh server."""
        return self.load_s + (self.fresh_start_s if self.start_s is None else self.start_s)

    @property
    def compared_s(self) -> float:
        """Expected time of one launch among those that are compared."""
        slices = self.slices
        if slices is None:
            return self.fresh_s
        launch_s = EXPECTED_LAUNCH_S if self.start_s is None else self.start_s
        return launch_s + slices.loaded_s

    def _begun_s(self, roles: int) -> float:
        """Expected time until the engines of so many configurations are up at once; 0 where they are not."""
        start_s = self.fresh_start_s if self.start_s is None else self.start_s
        return roles * start_s if self.is_cut else 0.0

    @property
    def open_s(self) -> float:
        """Expected time of default and best in an open loop, for `OPEN_LOADS` times as long as a trial each."""
        return 2 * (self.fresh_s + (OPEN_LOADS - 1) * self.load_s) if self.shows_open else 0.0

    def verification_s(self, pairs: int | None = None, *, finalists: int = MOST_FINALISTS) -> float:
        """Expected time of the verification: the finals, and then all pairs.

        Args:
            pairs: of default and best; None: the most.
            finalists: among which the best is still to be chosen; fewer than two need no finals.
        """
        starts, roles = 2 * (self.pairs if pairs is None else pairs), 2
        if finalists > 1:
            starts, roles = starts + FINAL_ROUNDS * finalists, roles + finalists
        return starts * self.compared_s + self._begun_s(roles)

    def pairs_alone(self, spent_s: float) -> int:
        """Rounds of a comparison of two configurations that takes so long, their engines' starts included."""
        return max(0, int((spent_s - self._begun_s(2)) / (2 * self.compared_s)))

    def pairs_of_study(self, spent_s: float) -> int:
        """Rounds of the verification of a study that takes so long, behind its finals."""
        study = dataclasses.replace(self, max_time_s=spent_s)
        left_s = study.kept_s
        finals = study.final_rounds_in(left_s, MOST_FINALISTS)
        if finals:
            left_s -= finals * MOST_FINALISTS * self.compared_s + self._begun_s(MOST_FINALISTS)
        return max(0, int((left_s - self.open_s - self._begun_s(2)) / (2 * self.compared_s)))

    def left_s(self, done: int, walls_s: Sequence[float]) -> float:
        """Expected time to the end of the study."""
        verified_s = self.verification_s() + self.open_s
        return max(0, self.trials - done) * self.trial_s(walls_s) + verified_s

    def stop_reason(self, done: int, used_s: float, walls_s: Sequence[float]) -> str | None:
        """Why no further trial may start; None while one may."""
        if done >= self.trials:
            return f"the budget of {self.trials} trials is used up"
        if done and used_s + self.trial_s(walls_s) + self.kept_s > self.max_time_s:
            return (
                f"the longest time of {self.max_time_s:g} s leaves room for the verification only "
                f"({done} of {self.trials} trials were launched)"
            )
        return None

    def trials_in(self, left_s: float) -> int:
        """Trials that can be expected to end in the time left, without the verification's share."""
        return max(0, int((left_s - self.kept_s) / self.trial_s([])))

    @property
    def kept_s(self) -> float:
        """What of the longest time is kept for the verification: a third, but enough for the least pairs."""
        third = KEPT_FOR_VERIFICATION * self.max_time_s
        least = min(self.least_s, MOST_FOR_VERIFICATION * self.max_time_s)
        return min(self.verification_s() + self.open_s, max(third, least))

    @property
    def least_s(self) -> float:
        """Expected time of the least pairs, and of what comes after them."""
        return self.verification_s(min(self.pairs, LEAST_PAIRS), finalists=1) + self.open_s

    def final_rounds_in(self, left_s: float, finalists: int) -> int:
        """Rounds of the finals that leave time for the least pairs; 0 where none does."""
        left_s -= self.least_s + self._begun_s(finalists)
        return max(0, min(FINAL_ROUNDS, int(left_s / (finalists * self.compared_s))))

    def pairs_in(self, left_s: float, *, roles: int = 2) -> int:
        """Rounds of the verification that fit into the time left, at least two.

        Args:
            left_s: of the longest time.
            roles: launches of each round.
        """
        left_s -= self.open_s + self._begun_s(roles)
        return max(2, min(self.pairs, int(left_s / (roles * self.compared_s))))
