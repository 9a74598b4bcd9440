"""Budget of a study: trials, time and expected end, with time reserved for verification.

Pure; times are in seconds.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from tuner.measurement.sequential import MIN_PAIRS
from tuner.measurement.time_slices import EXPECTED_STARTUP_S, TimeSlices
from tuner.settings.study import StudySettings

EXPECTED_OVERHEAD_S = 0.5
"""Overhead of a trial before any data: new replicas, proposal, saving the result."""
EXPECTED_START_S = 1.6
"""Time to start and end a new server, before any data."""
RESERVED_FOR_VERIFICATION = 1 / 3
"""Share of the maximum time reserved for verification, if needed."""
MAX_FOR_VERIFICATION = 0.5
"""Maximum share for verification if the minimum number of pairs needs more."""
MAX_SHORTLIST = 3
OPEN_LOADS = 3
"""Duration of a final open loop, as a multiple of an evaluation's load time."""
FINAL_ROUNDS = 4
"""Number of final-selection rounds, each with one evaluation per shortlisted configuration."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits and expected costs of a study."""

    trials: int
    initial: int
    max_time_s: float
    load_s: float
    """Warm-up and measured time of one evaluation."""
    pairs: int
    start_s: float | None = None
    """Time to start a server if every trial starts one (as with other engines), otherwise None."""
    fresh_start_s: float = EXPECTED_START_S
    """Time to start a new server if trials do not start one."""
    uses_time_slices: bool = False
    """Whether arms are interleaved; if not, each evaluation starts a server."""
    measured_s: float = 0.0
    latency_s: float = 0.0
    """Mean latency of the slowest arm, or 0 if unknown."""
    at_once: int = 1
    """Machines that evaluate at once, each whole rounds in a comparison."""
    shows_open: bool = False
    """Whether default and best are finally evaluated in an open loop."""

    @classmethod
    def of(
        cls,
        settings: StudySettings,
        *,
        start_s: float | None = None,
        uses_time_slices: bool = False,
    ) -> Budget:
        """Return the settings' budget; `start_s` is the time to start a server for each trial."""
        measurement = settings.measurement
        return cls(
            trials=settings.search.trials,
            initial=settings.search.first_trials,
            max_time_s=settings.search.max_time_s,
            load_s=measurement.load_s,
            pairs=measurement.pairs,
            start_s=start_s,
            uses_time_slices=uses_time_slices,
            measured_s=measurement.compared_s,
            shows_open=not settings.is_open,
        )

    def with_start_time(self, walls_s: Sequence[float]) -> Budget:
        """Return the budget with the start time measured in the trials."""
        if self.start_s is None or not walls_s:
            return self
        return dataclasses.replace(self, start_s=max(0.0, self.trial_s(walls_s) - self.load_s))

    def with_load_time(self, loads_s: Sequence[float]) -> Budget:
        """Return the budget with the phase time measured in evaluations, if longer than set."""
        if not loads_s:
            return self
        return dataclasses.replace(self, load_s=max(self.load_s, statistics.median(loads_s)))

    def with_latency(self, latency_s: float) -> Budget:
        """Return the budget with the default's mean latency; the default is usually slowest."""
        return dataclasses.replace(self, latency_s=latency_s)

    @property
    def startup_s(self) -> float:
        """Expected time until an arm of an interleaved round is ready."""
        return EXPECTED_STARTUP_S if self.start_s is None else self.start_s

    @property
    def slices(self) -> TimeSlices | None:
        """Time slices of interleaved evaluations, or None without interleaving."""
        if not self.uses_time_slices:
            return None
        return TimeSlices.of(
            latency_s=self.latency_s,
            startup_s=self.startup_s,
            measured_s=self.measured_s,
        )

    def trial_s(self, walls_s: Sequence[float]) -> float:
        """Return the expected time of a trial."""
        if not walls_s:
            return self.load_s + EXPECTED_OVERHEAD_S + (self.start_s or 0.0)
        return statistics.median(walls_s)

    @property
    def fresh_s(self) -> float:
        """Expected time of an evaluation on a new server."""
        return self.load_s + (self.fresh_start_s if self.start_s is None else self.start_s)

    @property
    def compared_s(self) -> float:
        """Expected time of an evaluation in a comparison."""
        slices = self.slices
        return self.fresh_s if slices is None else self.startup_s + slices.loaded_s

    def rounds_s(self, rounds: int, arms: int) -> float:
        """Return the expected time of rounds with this many arms, without starts."""
        return math.ceil(rounds / self.at_once) * arms * self.compared_s

    def _rounds_in(self, spent_s: float, arms: int) -> int:
        """Return the number of rounds with this many arms that fit into this time."""
        return max(0, int(spent_s / (arms * self.compared_s))) * self.at_once

    def _begun_s(self, arms: int) -> float:
        start_s = self.fresh_start_s if self.start_s is None else self.start_s
        return arms * start_s if self.uses_time_slices else 0.0

    @property
    def open_s(self) -> float:
        """Expected time of default and best in the final open loop."""
        return 2 * (self.fresh_s + (OPEN_LOADS - 1) * self.load_s) if self.shows_open else 0.0

    def verification_s(self, pairs: int | None = None, *, finalists: int = MAX_SHORTLIST) -> float:
        """Return the expected time of final selection and verification.

        Args:
            pairs: number of pairs of default and best; None for the maximum.
            finalists: size of the shortlist; with fewer than two, there is no selection.
        """
        spent_s = self.rounds_s(self.pairs if pairs is None else pairs, 2) + self._begun_s(2)
        if finalists > 1:
            spent_s += self.rounds_s(FINAL_ROUNDS, finalists) + self._begun_s(finalists)
        return spent_s

    def pairs_alone(self, spent_s: float) -> int:
        """Return the number of rounds with two arms that fit into this time, including starts."""
        return self._rounds_in(spent_s - self._begun_s(2), 2)

    def pairs_of_study(self, spent_s: float) -> int:
        """Return the number of verification rounds in a study that takes this time."""
        study = dataclasses.replace(self, max_time_s=spent_s)
        left_s = study.reserved_for_verification_s
        selection_rounds = study.final_rounds_in(left_s, MAX_SHORTLIST)
        if selection_rounds:
            begun_s = self._begun_s(MAX_SHORTLIST)
            left_s -= self.rounds_s(selection_rounds, MAX_SHORTLIST) + begun_s
        return self._rounds_in(left_s - self.open_s - self._begun_s(2), 2)

    def left_s(self, done: int, walls_s: Sequence[float]) -> float:
        """Return the expected time until the end of the study."""
        verified_s = self.verification_s() + self.open_s
        return max(0, self.trials - done) * self.trial_s(walls_s) / self.at_once + verified_s

    def stop_reason(self, done: int, used_s: float, walls_s: Sequence[float]) -> str | None:
        """Return why no further trial may start, or None."""
        if done >= self.trials:
            return f"the budget of {self.trials} trials is used up"
        if (
            done
            and used_s + self.trial_s(walls_s) + self.reserved_for_verification_s > self.max_time_s
        ):
            return (
                f"the longest time of {self.max_time_s:g} s leaves time only for the "
                f"verification ({done} of {self.trials} trials were evaluated)"
            )
        return None

    def trials_in(self, left_s: float) -> int:
        """Return the expected number of trials that fit into this time, after the reserve."""
        searched_s = left_s - self.reserved_for_verification_s
        return max(0, int(self.at_once * searched_s / self.trial_s([])))

    @property
    def reserved_for_verification_s(self) -> float:
        """Time reserved for verification: a third, or more for the minimum number of pairs."""
        third = RESERVED_FOR_VERIFICATION * self.max_time_s
        least = min(self.least_s, MAX_FOR_VERIFICATION * self.max_time_s)
        return min(self.verification_s() + self.open_s, max(third, least))

    @property
    def least_s(self) -> float:
        """Expected time of the minimum number of pairs and of the open loop."""
        return self.verification_s(min(self.pairs, MIN_PAIRS), finalists=1) + self.open_s

    def final_rounds_in(self, left_s: float, finalists: int) -> int:
        """Return how many final-selection rounds leave time for the minimum number of pairs."""
        left_s -= self.least_s + self._begun_s(finalists)
        return min(FINAL_ROUNDS, self._rounds_in(left_s, finalists))

    def pairs_in(self, left_s: float, *, arms: int = 2) -> int:
        """Return the number of verification rounds that fit into this time, but at least two."""
        left_s -= self.open_s + self._begun_s(arms)
        return max(2, min(self.pairs, self._rounds_in(left_s, arms)))
