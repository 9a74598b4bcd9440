"""One sampler at work: ask, launch, judge, keep; a step is one trial, and every step leaves the
store whole.

In: a store, an arena, a bench. Out: trials as values, and which configuration they recommend. Two
searches can share a bench in turns (`tuner.compare`). A step that is interrupted leaves a RUNNING
trial, which counts for nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
import time
from typing import Any, Protocol

import numpy as np

from tuner import objective as objectives
from tuner.bench import Launch
from tuner.budget import Budget
from tuner.inputs import Arena
from tuner.limits import Limit
from tuner.measurement.effort import log_effort
from tuner.measurement.error import relative_error
from tuner.measurement.outcome import Needs
from tuner.racing import Racing
from tuner.sampling import finalists, recommendation, registry
from tuner.sampling import front as fronts
from tuner.sampling.finalists import Finalists
from tuner.sampling.knowledge import NOTHING, Knowledge
from tuner.settings import SearchSettings
from tuner.store import records
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import Sampler, StudyStore
from tuner.store.trial_rows import TrialResult
from tuner.traffic.plan import Race
from tuner.values import Configuration, FrontPoint, Measurement, Trial

STOP_AFTER = 3
"""Proposals in a row with too little to gain before a search ends early: one may be a bad fit."""
MOST_REFUSED = 8
"""Launches in a row that end without a result, from the first on, before the study is given up."""
MEMORY_LIMITS = ("replica.memory_mb", "engine.memory_mb")
"""Knobs that bound what the peak is of: a replica of the serving core, or another engine as a whole."""
MOST_DRIFT = 0.05
"""Of the machine's speed in the course of a search, before it is told: launches differ by as much anyhow."""
CHECK_EVERY = 8
"""Every so many trials the incumbent and the default are launched again, in turn: the one because a lucky
launch must not lead a search astray, the other because it tells a slower machine from a slower
configuration."""
LEAST_FOR_RACE = 4
"""Trials that worked before one is ended early: until then nobody knows how good the best is."""
PROMISING = frozenset({"guided", "replicate"})
"""Origins of trials whose sampler told what is to gain: where all was launched, a repeat gains nothing."""
OF_MOMENTS = frozenset({"mean", "p50", "throughput", "time-per-item"})
"""Objectives that see as much of a slow moment as CPU time does, as was shown of closed loops."""
_log = logging.getLogger(__name__)


class LaunchesConfigurations(Protocol):
    """What a search needs of a bench."""

    def launch(self, configuration: Configuration, race: Race | None = None) -> Launch:
        """Launch a configuration and measure it, whatever happens; only as long as it keeps up."""
        ...


class Search:
    """One sampler, one store, one budget."""

    def __init__(
        self,
        *,
        store: StudyStore,
        arena: Arena,
        bench: LaunchesConfigurations,
        budget: Budget,
        objective: str,
        limits: tuple[Limit, ...],
        stop_ei: float,
        keep_in: RunFolder | None,
        prefix: str = "trials",
        racing: Racing | None = None,
        second: str | None = None,
        point: str = "knee",
    ) -> None:
        self.store = store
        self.arena = arena
        self.budget = budget
        self.objective = objectives.named(objective)
        self.trials: tuple[Trial, ...] = store.trials()
        self.walls_s: list[float] = []
        """Time of each trial that this process ran, everything included."""
        self._loads_s: list[float] = []
        self._bench = bench
        self.second = None if second is None else objectives.named(second)
        self._needs = Needs(objective=objective, second=second, limits=limits)
        self._point = point
        self._stop_ei = stop_ei
        self._folder = keep_in
        self._prefix = prefix
        self._racing = racing
        self._known = NOTHING
        self._gains = list(store.gains(PROMISING))
        self._last_end_s: float | None = None

    def prepare(self, settings: SearchSettings) -> None:
        """Give up what a killed process left running, set the sampler, and put the default first."""
        self.store.give_up_running("the process that ran it ended")
        self.store.use_sampler(sampler_of(settings, self.arena))
        takes_guess = registry.takes(settings.sampler, "guess")
        guess = self.arena.guess if takes_guess else None
        self._known = Knowledge(
            guess=None if guess is None else np.log(guess),
            earlier=self.arena.earlier if registry.takes(settings.sampler, "earlier") else None,
            latency=None
            if guess is None or self.arena.latency is None
            else np.log(self.arena.latency),
        )
        has_default = any(trial.origin == "default" for trial in self.trials)
        if not has_default and not self.store.has_waiting():
            self.store.enqueue(self.arena.default, origin="default")

    def stop_reason(self, used_s: float) -> str | None:
        """Why no further trial may start; None while one may."""
        reason = self.budget.stop_reason(len(self.trials), used_s, self.walls_s)
        if reason is not None:
            return reason
        if self.trials and self.trials[0].outcome.cause == "short":
            return self.trials[0].outcome.reason  # no longer launch will follow
        if self._has_little_to_gain():
            return (
                f"ended early after {len(self.trials)} of {self.budget.trials} trials: no configuration is expected "
                f"to be more than {self._stop_ei:.1%} better than the best (--stop-ei)"
            )
        if len(self.trials) >= MOST_REFUSED and all(
            trial.measured is None for trial in self.trials
        ):
            return (
                f"none of the first {len(self.trials)} configurations worked; "
                f"the last: {self.trials[-1].outcome.reason}"
            )
        return None

    def step(self) -> Trial:
        """Run one trial to its end and keep it."""
        before_s = time.monotonic() if self._last_end_s is None else self._last_end_s
        is_initial = len(self.trials) < self.budget.initial
        self._enqueue_check()
        proposed = self.store.ask(
            self.arena.distributions, else_origin="initial" if is_initial else "guided"
        )
        launch = self._bench.launch(proposed.configuration, self._race())
        self._keep_records(proposed.trial.number, launch)
        self._last_end_s = time.monotonic()
        wall_s = self._last_end_s - before_s
        trial = self.store.tell(proposed, self._result(launch, wall_s))
        self.walls_s.append(wall_s)
        if launch.measurement is not None:
            self._loads_s.append(launch.loaded_s)
        self.budget = self.budget.learnt(self.walls_s).loaded(self._loads_s)
        if trial.origin == "default" and trial.measured is not None:
            self.budget = self.budget.answered(trial.measured.mean_ms / 1e3)
        if trial.origin in PROMISING:
            self._gains.append(proposed.gain)
        self.trials = (*self.trials, trial)
        _log.info(
            "trial ended",
            extra={
                "fields": {
                    "trial": trial.number,
                    "origin": trial.origin,
                    "status": trial.outcome.status,
                    "cause": trial.outcome.cause,
                    "reason": trial.outcome.reason or None,
                    "objective": trial.objective,
                    "overhead_s": round(trial.overhead_s, 3),
                }
            },
        )
        return trial

    def left_s(self, used_s: float) -> float:
        """Expected time to the end of the study, its verification included."""
        expected_s = self.budget.left_s(len(self.trials), self.walls_s)
        return max(0.0, min(expected_s, self.budget.max_time_s - used_s))

    def trials_left_s(self) -> float:
        """Expected time of the trials that are left, without the verification."""
        left = max(0, self.budget.trials - len(self.trials))
        return left * self.budget.trial_s(self.walls_s)

    def pause(self) -> None:
        """Say that time until the next step is not this search's."""
        self._last_end_s = None

    def best_seen(self) -> Trial | None:
        """The trial with the lowest objective so far."""
        ok = [trial for trial in self.trials if trial.objective is not None]
        return min(ok, key=lambda trial: trial.objective or 0.0, default=None)

    def drift(self) -> str | None:
        """What the machine did meanwhile, where it was too much to be passed over; None where it was not."""
        worked = [trial for trial in self.trials if trial.objective is not None]
        mean, error = recommendation.drifted(
            self.store.study, candidates=self.arena.candidates, known=self._known
        )
        if len(mean) != len(worked) or not len(mean):
            return None
        slow, quick = int(np.argmax(mean)), int(np.argmin(mean))
        apart = float(mean[slow] - mean[quick])
        if apart < MOST_DRIFT or apart < 2 * float(np.hypot(error[slow], error[quick])):
            return None
        return (
            f"the machine was {math.expm1(apart):.0%} slower around trial {worked[slow].number} than around "
            f"trial {worked[quick].number}: trials are compared with that taken out, but a quieter machine "
            "tells more"
        )

    def recommended(self) -> Configuration | None:
        """The configuration with the best posterior mean; None while no trial was ok.

        Of two objectives the point of the front that is asked for.
        """
        if self.second is not None:
            points = self.front()
            return next((one.configuration for one in points if one.is_chosen), None)
        found = recommendation.recommend(
            self.store.study, candidates=self.arena.candidates, known=self._known
        )
        return None if found is None else Configuration({**self.arena.default, **found})

    def front(self) -> tuple[FrontPoint, ...]:
        """What none beats in both objectives, the best in the first one first; empty in a study of one."""
        found = None
        if self.second is not None:
            found = fronts.front(
                self.store.study, candidates=self.arena.candidates, known=self._known
            )
        if found is None or self.second is None:
            return ()
        places = {"knee": found.knee, self.objective.name: 0}
        chosen = places.get(self._point, len(found.configurations) - 1)
        worked = [trial for trial in self.trials if trial.objective is not None]
        trials = {trial.configuration: trial.number for trial in reversed(worked)}
        points = []
        for place, one in enumerate(found.configurations):
            whole = Configuration({**self.arena.default, **one})
            sides = zip((self.objective, self.second), found.mean[place], strict=True)
            points.append(
                FrontPoint(
                    configuration=whole,
                    values=tuple(side.from_minimised(math.exp(mean)) for side, mean in sides),
                    sds=tuple(map(float, found.sd[place])),
                    trial=trials.get(whole),
                    is_chosen=place == chosen,
                )
            )
        return tuple(points)

    def finalists(self, most: int) -> Finalists | None:
        """What may be the best, the recommendation first, and what is believed of it; None where nothing is."""
        found = finalists.finalists(
            self.store.study,
            candidates=self.arena.candidates,
            known=self._known,
            but=self.arena.default,
            most=most,
        )
        if found is None:
            return None
        whole = (Configuration({**self.arena.default, **one}) for one in found.configurations)
        return dataclasses.replace(found, configurations=tuple(whole))

    def _result(self, launch: Launch, wall_s: float) -> TrialResult:
        outcome, measurement = launch.outcome, launch.measurement
        if measurement is not None:
            outcome = self._needs.outcome(measurement)
            # A p99 that only a limit needs: what else the launch tells is worth knowing.
            teaches = outcome.cause in {None, "constraint", "short"}
            if not (teaches and self._needs.tells_objectives(measurement)):
                measurement = None
        is_kept = outcome.status == "ok"
        value = None if measurement is None else self.objective.to_minimise(measurement)
        return TrialResult(
            outcome=outcome,
            measurement=measurement if is_kept else None,
            objective=value if is_kept else None,
            missed=None if is_kept else measurement,
            value=None if is_kept else value,
            second=None if measurement is None else self._second(measurement),
            slacks={} if measurement is None else self._slacks(measurement),
            launch_s=launch.launch_s,
            overhead_s=wall_s - launch.loaded_s,
            started_at=launch.started_at,
            error=None if measurement is None else relative_error(self.objective, measurement),
            headroom=None if measurement is None else _headroom(launch.configuration, measurement),
            effort=None if measurement is None else self._effort(measurement),
        )

    def _effort(self, measurement: Measurement) -> float | None:
        """Logarithm of the CPU time of a request, where a latency sees all of it; else, or not known, None."""
        if self.objective.name not in OF_MOMENTS or measurement.rate_per_s is not None:
            return None
        return log_effort(measurement)

    def _enqueue_check(self) -> None:
        """Now and then what is launched next is not the sampler's to choose: see `CHECK_EVERY`."""
        turn, rest = divmod(len(self.trials), CHECK_EVERY)
        if rest or not turn or len(self.trials) < self.budget.initial or self.store.has_waiting():
            return
        checked = self.recommended() if turn % 2 else self.arena.default
        if checked is not None:
            self.store.enqueue(checked, origin="check")

    def _race(self) -> Race | None:
        """When the next trial is to end early; None where it lasts its time."""
        measured = [one.measurement for one in self.trials if one.measurement is not None]
        if self._racing is None or len(measured) < LEAST_FOR_RACE:
            return None
        incumbent = recommendation.incumbent(
            self.store.study, candidates=self.arena.candidates, known=self._known
        )
        if incumbent is None or not incumbent.is_log:
            return None
        errors = [
            error
            for one in measured
            if not one.ended_early and (error := relative_error(self.objective, one)) is not None
        ]
        return self._racing.race(
            self.objective.name,
            minimised=incumbent.minimised,
            sd=incumbent.sd,
            noise_sd=incumbent.noise_sd,
            error=statistics.median(errors) if errors else 0.0,
        )

    def _second(self, measurement: Measurement) -> tuple[float, float | None] | None:
        """The logarithm of the second objective, and how well it is known."""
        if self.second is None:
            return None
        value = math.log(self.second.to_minimise(measurement))
        return value, relative_error(self.second, measurement)

    def _slacks(self, measurement: Measurement) -> dict[str, tuple[float | None, float | None]]:
        """By limit: by how much the launch lies beyond it, and how well that is known."""
        found: dict[str, tuple[float | None, float | None]] = {}
        for limit in self._needs.limits:
            same = limit.of.objective
            error = None if same is None else relative_error(objectives.named(same), measurement)
            slack = limit.slack(limit.of.value(measurement))
            found[limit.text] = (None if math.isnan(slack) else slack, error)
        return found

    def _has_little_to_gain(self) -> bool:
        """Whether the last proposals, of earlier commands too, promised too little."""
        last = self._gains[-STOP_AFTER:]
        return len(last) == STOP_AFTER and all(
            gain is not None and gain < self._stop_ei for gain in last
        )

    def _keep_records(self, number: int, launch: Launch) -> None:
        if self._folder is not None and launch.records is not None:
            self._folder.write_bytes(
                f"{self._prefix}/{number}/requests.npz", records.encoded(launch.records)
            )


def _headroom(configuration: Configuration, measurement: Measurement) -> float | None:
    """Logarithm of peak memory over limit; None where one of them is not known."""
    limits = [configuration.get(knob) for knob in MEMORY_LIMITS]
    limit_mb = next((float(limit) for limit in limits if isinstance(limit, int | float)), None)
    peak_mb = measurement.noise.peak_memory_mb
    return math.log(peak_mb / limit_mb) if peak_mb and limit_mb else None


def sampler_of(settings: SearchSettings, arena: Arena) -> Sampler:
    """The sampler that the settings name.

    Raises:
        WrongUse: an unknown name, or an option that the sampler does not have.
    """
    first = list(arena.winners or ())
    if arena.guessed_best is not None and registry.takes(settings.sampler, "guess"):
        first.append(arena.guessed_best)
    given = {
        "guess": arena.guess,
        "latency": arena.latency,
        "first": first or None,
        "earlier": arena.earlier,
    }
    options: dict[str, Any] = {
        option: value
        for option, value in given.items()
        if value is not None and registry.takes(settings.sampler, option)
    }
    if settings.epsilon is not None:
        options["epsilon"] = settings.epsilon
    return registry.create(
        settings.sampler,
        seed=settings.seed,
        initial=settings.first_trials,
        candidates=arena.candidates,
        **options,
    )
