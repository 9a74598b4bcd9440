"""The part that all samplers of this room share: between Optuna's calls and one proposal per trial.

Optuna asks parameter by parameter; a sampler here decides once per trial. `CellSampler` reads the
study, builds a `Situation`, lets the sampler `propose`, keeps the proposal for the trial's
further questions, and writes it to the trial (`history.PROPOSAL`) so that parallel trials, a
resumed study and reports see it.

Two modes. With candidates, whatever Optuna asks for is answered from the proposed cell, whether
or not earlier trials have shown the parameter's distribution. Without, the space is what ended
trials have in common; the first trial, and parameters that only some trials have, are drawn from
their own distribution.

Everything is derived from the study and the seed: the random stream of a trial is seeded by
(seed, trial number), so a study that was killed and resumed goes on as if it had not been. Safe
to share between threads; one proposal is made at a time.

It is a base class, not a Protocol, because Optuna's interface is one.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tuner.errors import WrongUse
from tuner.sampling import blas
from tuner.sampling.candidates import LIMIT, Candidates, sobol
from tuner.sampling.encoding import Cube, axis_of
from tuner.sampling.history import PROPOSAL, History, gather, shared_distributions
from tuner.values import Configuration

Array = NDArray[np.float64]
Origin = Literal["initial", "guided", "replicate"]

_TRIAL_STREAM, _DESIGN_STREAM, _PARAMETER_STREAM = range(3)
_KEPT = 256
"""Proposals kept for trials that run: more than one study has threads."""
_CENTRES = 5
"""Best configurations around which an endless space is drawn more densely."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One configuration, and what its sampler knows of it."""

    configuration: Configuration
    origin: Origin
    """`initial`: from the design before the model; `replicate`: a configuration that was run before, on purpose."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Plain data for the store: predictions, hyper-parameters."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a sampler may know when it proposes for a trial."""

    study: Study
    trial: FrozenTrial
    distributions: Mapping[str, BaseDistribution]
    """Those that the study has shown; may lack some, or all, where there are candidates."""
    candidates: Candidates
    history: History
    unseen: NDArray[np.intp]  # positions of candidates that no trial has had
    initial: int
    seed: int
    rng: np.random.Generator
    """The stream of this trial."""

    @property
    def is_initial(self) -> bool:
        """Whether the design before the model is not complete, or nothing was learnt from it yet."""
        return self.history.earlier < self.initial or self.history.is_blank

    @property
    def not_lost(self) -> NDArray[np.intp]:
        """Positions of candidates that never failed; all where every one did."""
        kept = self.candidates.unseen(self.history.lost_configurations)
        return kept if len(kept) else np.arange(len(self.candidates.cells))

    def design_point(self) -> Array:
        """The next point (design_width,) of this study's space-filling design in [0, 1)."""
        rng = stream(self.seed, _DESIGN_STREAM)
        points = sobol(self.candidates.design_width, self.history.earlier + 1, rng)
        return np.asarray(points[-1], dtype=float)

    def at_random(self) -> Proposal:
        """A random candidate that was not run before; where all were, any that did not fail.

        In an endless space: independent draws, each by its parameter's own law.
        """
        origin: Origin = "initial" if self.history.earlier < self.initial else "guided"
        if not self.candidates.is_complete:
            drawn = {
                name: axis_of(dist).draw(self.rng) for name, dist in self.distributions.items()
            }
            return Proposal(configuration=Configuration(drawn), origin=origin)
        if not len(self.unseen):
            origin = "replicate"
        among = self.unseen if len(self.unseen) else self.not_lost
        chosen = self.candidates.cells[int(self.rng.choice(among))]
        return Proposal(configuration=chosen, origin=origin)


class CellSampler(BaseSampler, abc.ABC):
    """An Optuna sampler that decides on a whole configuration at once."""

    models_limits: ClassVar[bool] = False
    """Whether launches beyond a limit are observations to it, and no walls."""
    searches_fronts: ClassVar[bool] = False
    """Whether it has a use for a second objective."""

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: Candidates | None = None,
        limit: int = LIMIT,
    ) -> None:
        """Keep what is given.

        Args:
            seed: 0 or more.
            initial: trials before a model guides, the default configuration included.
            candidates: the cells that may be proposed; None where the study's distributions say it.
            limit: largest grid of distributions that is listed whole.
        """
        self._seed = checked("seed", seed, least=0)
        self._initial = checked("initial", initial, least=0)
        self._limit = checked("limit", limit, least=1)
        self._candidates = candidates
        self._listed: tuple[dict[str, BaseDistribution], Candidates] | None = None
        self._proposals: dict[tuple[str, int], Proposal] = {}
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """State without what can be derived again: a lock cannot be pickled."""
        return {**self.__dict__, "_lock": None, "_listed": None, "_proposals": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    @abc.abstractmethod
    def propose(self, situation: Situation) -> Proposal:
        """The configuration to try next; a candidate, or a legal configuration where candidates are only a sample."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Distributions that ended trials share; with candidates, only those of their knobs."""
        del trial  # the space is the same for every trial
        if len(study.directions) > 1:
            raise WrongUse(
                f"{type(self).__name__} has one objective, the study has {len(study.directions)}"
            )
        shared = shared_distributions(study.get_trials(deepcopy=False))
        if self._candidates is None:
            return {name: dist for name, dist in shared.items() if not dist.single()}
        return {name: dist for name, dist in shared.items() if name in self._candidates.names}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The values of the proposed configuration for these parameters."""
        if not search_space:
            return {}
        chosen = self._proposal(study, trial, search_space).configuration
        return {
            name: legal(name, chosen[name], dist)
            for name, dist in search_space.items()
            if name in chosen
        }

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter that the study had not shown: from the proposed cell, or drawn from its own distribution."""
        if self._candidates is not None and param_name in self._candidates.names:
            search_space = self.infer_relative_search_space(study, trial)
            chosen = self._proposal(study, trial, search_space).configuration
            return legal(param_name, chosen[param_name], param_distribution)
        return self.draw(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Forget the proposal of a trial that has ended; the study keeps it."""
        del state, values  # the next proposal reads them from the study
        self._proposals.pop((study.study_name, trial.number), None)

    def draw(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """One parameter by the law of its distribution; a sampler may use what the study says."""
        del study  # not needed for a plain draw
        rng = stream(self._seed, _PARAMETER_STREAM, trial.number, zlib.crc32(name.encode()))
        return axis_of(distribution).draw(rng)

    def situation(
        self, study: Study, trial: FrozenTrial, distributions: Mapping[str, BaseDistribution]
    ) -> Situation:
        """What is known before a trial; `distributions` leave a choice each."""
        trials = study.get_trials(deepcopy=False)
        rng = stream(self._seed, _TRIAL_STREAM, trial.number)
        maximise = study.direction is StudyDirection.MAXIMIZE
        candidates = self._candidates or self._finite(dict(distributions))
        place = candidates or Cube.of(distributions)
        history = gather(
            trials,
            place,
            number=trial.number,
            maximise=maximise,
            with_missed=self.models_limits,
        )
        if candidates is None:
            best = history.vectors[np.argsort(history.targets, kind="stable")[:_CENTRES]]
            candidates = Candidates.drawn(Cube.of(distributions), rng, around=best)
        candidates = candidates.agreeing(trial.system_attrs.get("fixed_params", {}))
        return Situation(
            study=study,
            trial=trial,
            distributions=distributions,
            candidates=candidates,
            history=history,
            unseen=candidates.unseen(history.seen),
            initial=self._initial,
            seed=self._seed,
            rng=rng,
        )

    def _finite(self, distributions: dict[str, BaseDistribution]) -> Candidates | None:
        """All cells of these distributions, listed once; None where there are too many."""
        if self._listed is None or self._listed[0] != distributions:
            cube = Cube.of(distributions)
            if cube.size is None or cube.size > self._limit:
                return None
            self._listed = (distributions, Candidates.listed(cube))
        return self._listed[1]

    def _proposal(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> Proposal:
        key = (study.study_name, trial.number)
        with self._lock:
            if key not in self._proposals:
                with blas.single_threaded():
                    proposal = self.propose(self.situation(study, trial, search_space))
                record = {
                    "configuration": dict(proposal.configuration),
                    "origin": proposal.origin,
                    **proposal.facts,
                }
                # Optuna gives samplers no public way to write to the trial at hand; its own ones write the same way.
                study._storage.set_trial_user_attr(trial._trial_id, PROPOSAL, record)  # noqa: SLF001
                self._proposals[key] = proposal
                while len(self._proposals) > _KEPT:
                    del self._proposals[next(iter(self._proposals))]
            return self._proposals[key]


def stream(seed: int, *path: int) -> np.random.Generator:
    """The random stream of one purpose; independent for different paths."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=path))


def legal(name: str, value: Any, distribution: BaseDistribution) -> Any:
    """The value, if the distribution allows it; raises WrongUse where candidates and study do not agree."""
    if axis_of(distribution).contains(value):
        return value
    raise WrongUse(
        f"parameter {name!r}: the candidate value {value!r} is not in {distribution}; "
        "derive candidates and distributions from the same search space"
    )


def checked(name: str, value: int, *, least: int) -> int:
    """A whole number not below `least`; raises WrongUse."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise WrongUse(f"{name} is {value!r}; expected a whole number, {least} or more")
    return int(value)
