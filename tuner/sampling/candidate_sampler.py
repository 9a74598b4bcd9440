"""Base class of samplers that make one proposal per trial when Optuna calls them.

The trial stores its proposal (`history.PROPOSAL`). All state derives from the study, the seed and
the trial number, so a study resumes exactly. Samplers are thread-safe.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from tuner.errors import UsageError
from tuner.sampling import blas
from tuner.sampling.arrays import Array, Positions
from tuner.sampling.candidates import LIMIT, CandidateSet, sobol
from tuner.sampling.encoding import Cube, axis_of
from tuner.sampling.history import DISREGARDED, PROPOSAL, History, gather, shared_distributions
from tuner.values.configuration import Configuration

Origin = Literal["initial", "guided", "replicate"]

_TRIAL_STREAM, _DESIGN_STREAM, _PARAMETER_STREAM = range(3)
_RETAINED = 256
_CENTRES = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One proposed configuration."""

    configuration: Configuration
    origin: Origin
    """`initial` for a point of the initial design, `replicate` for a deliberate repeat."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext:
    """Everything that a sampler knows when it proposes."""

    study: Study
    trial: FrozenTrial
    distributions: Mapping[str, BaseDistribution]
    candidates: CandidateSet
    history: History
    untried: Positions  # positions of candidates that no trial has had
    initial: int
    seed: int
    rng: np.random.Generator

    @property
    def is_initial(self) -> bool:
        """Whether the initial design is incomplete, or no trial has taught anything."""
        return self.history.trial_count < self.initial or self.history.is_blank

    @property
    def not_lost(self) -> Positions:
        """Positions of candidates that never failed, or of all if every one has failed."""
        kept = self.candidates.untried(self.history.lost_configurations)
        return kept if len(kept) else np.arange(len(self.candidates.configurations))

    def design_point(self) -> Array:
        """Return the next point (design_width,) of the space-filling design, in [0, 1)."""
        rng = stream(self.seed, _DESIGN_STREAM)
        points = sobol(self.candidates.design_width, self.history.trial_count + 1, rng)
        return np.asarray(points[-1], dtype=float)

    def at_random(self) -> Proposal:
        """Propose a random untried candidate, or else one that never failed.

        In an infinite space, draw a new configuration instead.
        """
        origin: Origin = "initial" if self.history.trial_count < self.initial else "guided"
        if not self.candidates.is_complete:
            drawn = {
                name: axis_of(dist).draw(self.rng) for name, dist in self.distributions.items()
            }
            return Proposal(configuration=Configuration(drawn), origin=origin)
        if not len(self.untried):
            origin = "replicate"
        among = self.untried if len(self.untried) else self.not_lost
        chosen = self.candidates.configurations[int(self.rng.choice(among))]
        return Proposal(configuration=chosen, origin=origin)


class CandidateSampler(BaseSampler, abc.ABC):
    """Optuna sampler that proposes whole configurations."""

    options: ClassVar[tuple[str, ...]] = ()
    models_limits: ClassVar[bool] = False
    """Whether the sampler learns from evaluations that violate metric constraints."""
    searches_fronts: ClassVar[bool] = False

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: CandidateSet | None = None,
    ) -> None:
        """Store the arguments.

        Args:
            seed: 0 or more.
            initial: number of trials before a model guides the search, including the default.
            candidates: by default, those of the study's distributions.
        """
        self._seed = check_integer("seed", seed, least=0)
        self._initial = check_integer("initial", initial, least=0)
        self._candidates = candidates
        self._listed: tuple[dict[str, BaseDistribution], CandidateSet] | None = None
        self._proposals: dict[tuple[str, int], Proposal] = {}
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_listed": None, "_proposals": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    @abc.abstractmethod
    def propose(self, context: SamplerContext) -> Proposal:
        """Propose the configuration to try."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions that ended trials share, for the candidates' knobs if given."""
        del trial  # the space is the same for every trial
        if len(study.directions) > 1:
            raise UsageError(
                f"{type(self).__name__} has one objective, the study has {len(study.directions)}"
            )
        shared = shared_distributions(study.get_trials(deepcopy=False))
        if self._candidates is None:
            return {name: dist for name, dist in shared.items() if not dist.single()}
        return {name: dist for name, dist in shared.items() if name in self._candidates.names}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the proposed values, by parameter name."""
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
        """Return the proposed value, or a draw for a parameter that the candidates lack."""
        if self._candidates is not None and param_name in self._candidates.names:
            search_space = self.infer_relative_search_space(study, trial)
            chosen = self._proposal(study, trial, search_space).configuration
            return legal(param_name, chosen[param_name], param_distribution)
        return self.draw(study, trial, param_name, param_distribution)

    def draw(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Draw one parameter; subclasses may use the study."""
        del study  # not needed for a plain draw
        rng = stream(self._seed, _PARAMETER_STREAM, trial.number, zlib.crc32(name.encode()))
        return axis_of(distribution).draw(rng)

    def context(
        self, study: Study, trial: FrozenTrial, distributions: Mapping[str, BaseDistribution]
    ) -> SamplerContext:
        """Gather what is known before a trial."""
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
            disregarded=study.user_attrs.get(DISREGARDED, ()),
        )
        if candidates is None:
            best = history.vectors[np.argsort(history.targets, kind="stable")[:_CENTRES]]
            candidates = CandidateSet.sample_cube(Cube.of(distributions), rng, around=best)
        candidates = candidates.agreeing(trial.system_attrs.get("fixed_params", {}))
        return SamplerContext(
            study=study,
            trial=trial,
            distributions=distributions,
            candidates=candidates,
            history=history,
            untried=candidates.untried(history.seen),
            initial=self._initial,
            seed=self._seed,
            rng=rng,
        )

    def _finite(self, distributions: dict[str, BaseDistribution]) -> CandidateSet | None:
        if self._listed is None or self._listed[0] != distributions:
            cube = Cube.of(distributions)
            if cube.size is None or cube.size > LIMIT:
                return None
            self._listed = (distributions, CandidateSet.enumerate_cube(cube))
        return self._listed[1]

    def _proposal(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> Proposal:
        key = (study.study_name, trial.number)
        with self._lock:
            if key not in self._proposals:
                with blas.single_threaded():
                    proposal = self.propose(self.context(study, trial, search_space))
                record = {
                    "configuration": dict(proposal.configuration),
                    "origin": proposal.origin,
                    **proposal.facts,
                }
                # Optuna has no public way to write to the current trial; its own samplers do the
                # same.
                study._storage.set_trial_user_attr(trial._trial_id, PROPOSAL, record)  # noqa: SLF001
                self._proposals[key] = proposal
                while len(self._proposals) > _RETAINED:
                    del self._proposals[next(iter(self._proposals))]
            return self._proposals[key]


def stream(seed: int, *path: int) -> np.random.Generator:
    """Return a random stream that is independent for each path."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=path))


def legal(name: str, value: Any, distribution: BaseDistribution) -> Any:
    """Return the value, or raise UsageError if the distribution does not contain it."""
    if axis_of(distribution).contains(value):
        return value
    raise UsageError(
        f"parameter {name!r}: the candidate value {value!r} is not in {distribution}; "
        "derive candidates and distributions from the same search space"
    )


def check_prediction(guess: Array, candidates: CandidateSet | None) -> None:
    """Raise UsageError unless there is one prediction per candidate."""
    if candidates is None or len(guess) != len(candidates.configurations):
        raise UsageError("guess: expected one value for each candidate")


def check_integer(name: str, value: int, *, least: int) -> int:
    """Return a whole number of at least `least`, or raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name} is {value!r}; expected a whole number of {least} or more")
    return int(value)
