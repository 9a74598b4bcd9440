"""Search loop: ask the sampler, evaluate, judge, save.

Each step runs one trial and leaves the store consistent. Searches can take turns on an evaluator
(`tuner.lab.compare`). An interrupted step leaves a RUNNING trial, which is ignored.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.trial_result import Judge, relative_standard_error
from tuner.load_generator.plan import Race
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import objective as objectives
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.sampling import pareto_front as fronts
from tuner.sampling import recommendation, registry, shortlist
from tuner.sampling.shortlist import Shortlist
from tuner.sampling.surrogates.knowledge import NO_PRIOR_KNOWLEDGE, PriorKnowledge
from tuner.settings.search import SearchSettings
from tuner.store import records
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import RunningTrial, StudyStore
from tuner.study import prediction
from tuner.study.budget import Budget
from tuner.study.problem import ProblemStatement
from tuner.study.racing import Racing
from tuner.study.samplers import sampler_of
from tuner.values.configuration import Configuration
from tuner.values.trial import Trial, best_of
from tuner.values.verification_state import ParetoPoint

STOP_AFTER = 3
"""Number of consecutive low-gain proposals that end a search; one may come from a bad fit."""
MAX_FAILED_IN_A_ROW = 8
"""Number of consecutive failures at the beginning that end the study."""
CHECK_EVERY = 4
"""Number of trials between checks; while the incumbent is recommended, every other one is left out.

A check evaluates incumbent and default again, one after the other: a lucky evaluation must not
mislead, and what is measured in one moment can be compared.
"""
MIN_FOR_RACE = 4
"""Number of successful trials before racing begins; until then the best is too uncertain."""
PROMISING = frozenset({"guided", "replicate"})
"""Origins of trials with an expected gain, which repeats of evaluated configurations lack."""
_log = logging.getLogger(__name__)


class EvaluatesConfigurations(Protocol):
    """Evaluator of a search's trials."""

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """Evaluate a configuration, ending early if its race is lost; failures are results too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProposedTrial:
    """Trial that is to be evaluated."""

    running: RunningTrial
    race: Race | None
    begun_s: float

    @property
    def configuration(self) -> Configuration:
        """The configuration to evaluate."""
        return self.running.configuration


class Search:
    """Search with one sampler, one store and one budget."""

    def __init__(
        self,
        *,
        store: StudyStore,
        problem: ProblemStatement,
        evaluator: EvaluatesConfigurations,
        budget: Budget,
        objective: str,
        limits: tuple[MetricConstraint, ...],
        stop_ei: float,
        keep_in: RunFolder | None,
        racing: Racing | None = None,
        second: str | None = None,
        point: str = "knee",
        predict: Callable[..., ProblemStatement] = prediction.estimate,
    ) -> None:
        self.store = store
        self.problem = problem
        self.budget = budget
        self.objective = objectives.find_objective(objective)
        self.trials: tuple[Trial, ...] = store.trials()
        self.walls_s: list[float] = []
        """Wall times of the trials that this process ran."""
        self._loads_s: list[float] = []
        self._evaluator = evaluator
        self.second = None if second is None else objectives.find_objective(second)
        self._judge = Judge(
            needs=EvaluationRequirements(objective=objective, second=second, limits=limits),
            objective=self.objective,
            second=self.second,
        )
        self._point = point
        self._stop_ei = stop_ei
        self._folder = keep_in
        self._racing = racing
        self._predict = predict
        self.given: dict[str, Any] = {
            "candidates": problem.candidates,
            "known": NO_PRIOR_KNOWLEDGE,
        }
        """Arguments of what estimates from the study: its candidates and what was known before."""
        self._gains = list(store.gains(PROMISING))
        self._last_end_s: float | None = None
        self._settings = SearchSettings()

    def prepare(self, settings: SearchSettings) -> None:
        """Close trials that a killed process left, set the sampler, and enqueue the default."""
        self.store.give_up_running("its process ended")
        self._settings = settings
        self._use_sampler()
        default = next((trial for trial in self.trials if trial.origin == "default"), None)
        if default is None and not self.store.has_waiting():
            self.store.enqueue(self.problem.default, origin="default")
        for trial in self.trials:
            self._estimate(trial)

    def _use_sampler(self) -> None:
        settings, problem = self._settings, self.problem
        self.store.use_sampler(sampler_of(settings, problem))
        takes_guess = registry.takes(settings.sampler, "guess")
        guess = problem.prediction if takes_guess else None
        latency = None if guess is None else problem.latency
        takes_earlier = registry.takes(settings.sampler, "earlier")
        self.given["known"] = PriorKnowledge(
            prior_mean=None if guess is None else np.log(guess),
            warm_start=problem.warm_start if takes_earlier else None,
            latency=None if latency is None else np.log(latency),
        )

    def _estimate(self, trial: Trial) -> None:
        """Predict the candidates from the first trial that works, which is mostly the default's."""
        problem, measured = self.problem, trial.measured
        if problem.estimated_at is None or problem.prediction is not None or measured is None:
            return
        self.problem = self._predict(
            problem,
            measured.mean_ms,
            self.objective.name,
            of=trial.configuration,
            limits=self._judge.needs.limits,
        )
        self._use_sampler()

    def stop_reason(self, used_s: float) -> str | None:
        """Return why no further trial may start, or None."""
        reason = self.budget.stop_reason(len(self.trials), used_s, self.walls_s)
        if reason is not None:
            return reason
        if self.trials and self.trials[0].outcome.cause == "short":
            return self.trials[0].outcome.reason  # longer evaluations will not follow
        if self._has_little_to_gain():
            return (
                f"ended early after {len(self.trials)} of {self.budget.trials} trials: no configuration is expected "
                f"to be more than {self._stop_ei:.1%} better than the best (--stop-ei)"
            )
        if len(self.trials) >= MAX_FAILED_IN_A_ROW and all(
            trial.measured is None for trial in self.trials
        ):
            return (
                f"none of the first {len(self.trials)} configurations worked; "
                f"the last: {self.trials[-1].outcome.reason}"
            )
        return None

    def step(self) -> Trial:
        """Run one trial and save it."""
        proposed = self.propose()
        return self.conclude(
            proposed, self._evaluator.evaluate(proposed.configuration, proposed.race)
        )

    def propose(self) -> ProposedTrial:
        """Begin a trial, also while others run; it must be concluded or given up."""
        begun_s = time.monotonic() if self._last_end_s is None else self._last_end_s
        self._last_end_s = None
        is_initial = len(self.trials) < self.budget.initial
        self._enqueue_check()
        running = self.store.ask(
            self.problem.distributions, else_origin="initial" if is_initial else "guided"
        )
        return ProposedTrial(running=running, race=self._race(), begun_s=begun_s)

    def conclude(self, proposed: ProposedTrial, evaluation: Evaluation) -> Trial:
        """Save a trial's result."""
        self._keep_records(proposed.running.trial.number, evaluation)
        self._last_end_s = time.monotonic()
        wall_s = self._last_end_s - proposed.begun_s
        trial = self.store.tell(proposed.running, self._judge.result(evaluation, wall_s))
        self.walls_s.append(wall_s)
        if evaluation.measurement is not None:
            self._loads_s.append(evaluation.loaded_s)
        self.budget = self.budget.with_start_time(self.walls_s).with_load_time(self._loads_s)
        if trial.origin == "default" and trial.measured is not None:
            self.budget = self.budget.with_latency(trial.measured.mean_ms / 1e3)
        self._estimate(trial)
        if trial.origin in PROMISING:
            self._gains.append(proposed.running.gain)
        self.trials = tuple(sorted((*self.trials, trial), key=lambda one: one.number))
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

    def disregard(self, failed: Sequence[Trial]) -> None:
        """Let failures of a machine count for nothing, and queue what failed there."""
        self.store.disregard([trial.number for trial in failed])
        self.trials = self.store.trials()
        for configuration, origin in {one.configuration: one.origin for one in failed}.items():
            self.store.enqueue(configuration, origin=origin)

    def check_nodes(self, count: int) -> None:
        """Queue the default once more for each further machine, so that they can be compared."""
        if not self.trials:
            for _ in range(count - 1):
                self.store.enqueue(self.problem.default, origin="check")

    def use_nodes(self, count: int) -> None:
        """Plan with so many machines from now on."""
        self.budget = dataclasses.replace(self.budget, at_once=count)

    def left_s(self, used_s: float) -> float:
        """Return the expected time until the study's end."""
        expected_s = self.budget.left_s(len(self.trials), self.walls_s)
        return max(0.0, min(expected_s, self.budget.max_time_s - used_s))

    def trials_left_s(self) -> float:
        """Return the expected time of the remaining trials."""
        left = max(0, self.budget.trials - len(self.trials))
        return left * self.budget.trial_s(self.walls_s)

    def pause(self) -> None:
        """Exclude the time until the next step from that step's wall time."""
        self._last_end_s = None

    def best_seen(self) -> Trial | None:
        """Return the trial with the best measured objective."""
        return best_of(self.trials)

    def recommend(self, *, keeps_default: bool = True) -> Configuration | None:
        """Return what to use: the configuration with the best posterior mean, or the default.

        Without a successful trial, return None; with two objectives, the requested point of the
        Pareto front.

        Args:
            keeps_default: whether the default is recommended as long as it may be better; False
                for a configuration that is about to be compared with it.
        """
        if self.second is not None:
            points = self.front()
            return next((one.configuration for one in points if one.is_chosen), None)
        default = self.problem.default if keeps_default else None
        found = recommendation.recommend(self.store.study, **self.given, default=default)
        return None if found is None else Configuration({**self.problem.default, **found})

    def front(self) -> tuple[ParetoPoint, ...]:
        """Return the Pareto front, ordered from best to worst in the first objective."""
        found = None
        if self.second is not None:
            found = fronts.pareto_front(self.store.study, **self.given)
        if found is None or self.second is None:
            return ()
        places = {"knee": found.knee, self.objective.name: 0}
        chosen = places.get(self._point, len(found.configurations) - 1)
        worked = [trial for trial in self.trials if trial.objective is not None]
        trials = {trial.configuration: trial.number for trial in reversed(worked)}
        points = []
        for place, one in enumerate(found.configurations):
            whole = Configuration({**self.problem.default, **one})
            sides = zip((self.objective, self.second), found.mean[place], strict=True)
            points.append(
                ParetoPoint(
                    configuration=whole,
                    values=tuple(side.from_minimised(math.exp(mean)) for side, mean in sides),
                    sds=tuple(map(float, found.sd[place])),
                    trial=trials.get(whole),
                    is_chosen=place == chosen,
                )
            )
        return tuple(points)

    def finalists(self, most: int) -> Shortlist | None:
        """Return the shortlist with its posterior, the best posterior mean first."""
        found = shortlist.make_shortlist(
            self.store.study, **self.given, but=self.problem.default, most=most
        )
        if found is None:
            return None
        whole = (Configuration({**self.problem.default, **one}) for one in found.configurations)
        return dataclasses.replace(found, configurations=tuple(whole))

    def _enqueue_check(self) -> None:
        count = len(self.trials)
        if not count or count % CHECK_EVERY or count < self.budget.initial:
            return
        if self.store.has_waiting():
            return
        incumbent = self.recommend(keeps_default=False)
        if count % (2 * CHECK_EVERY) and self.recommend() == incumbent:
            return
        for checked in dict.fromkeys((incumbent, self.problem.default)):
            if checked is not None:
                self.store.enqueue(checked, origin="check")

    def _race(self) -> Race | None:
        measured = [one.measurement for one in self.trials if one.measurement is not None]
        if self._racing is None or len(measured) < MIN_FOR_RACE:
            return None
        incumbent = recommendation.incumbent(self.store.study, **self.given)
        if incumbent is None or not incumbent.is_log:
            return None
        errors = [
            error
            for one in measured
            if not one.ended_early
            and (error := relative_standard_error(self.objective, one)) is not None
        ]
        return self._racing.race(
            self.objective.name,
            minimised=incumbent.minimised,
            sd=incumbent.sd,
            noise_sd=incumbent.noise_sd,
            error=statistics.median(errors) if errors else 0.0,
        )

    def _has_little_to_gain(self) -> bool:
        last = self._gains[-STOP_AFTER:]
        return len(last) == STOP_AFTER and all(
            gain is not None and gain < self._stop_ei for gain in last
        )

    def _keep_records(self, number: int, evaluation: Evaluation) -> None:
        if self._folder is not None and evaluation.records is not None:
            self._folder.write_bytes(
                f"trials/{number}/requests.npz", records.encode(evaluation.records)
            )
