"""Problem statement of a study, checked before anything is written: model, space and payloads.

A `ProblemStatement` is the space bound to a machine and a workload. Errors name the option or the
file. Nothing is started.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from serving import zoo
from serving.accelerator import clocks, mps
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.spawners.process.spawner import OF_POD
from serving.zoo import bundled
from tuner.errors import UsageError
from tuner.evaluation import request_source
from tuner.evaluation.open_loop import make_open_loop_plan
from tuner.launching import machine
from tuner.launching.engine import EngineInfo
from tuner.launching.engine_process import LuthierLauncher
from tuner.launching.machine import MachineFacts
from tuner.launching.pod import PodLimiter
from tuner.load_generator.payloads import Payloads
from tuner.metrics.prices import Prices
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.surrogates.knowledge import WarmStart
from tuner.settings.target import TargetSettings
from tuner.space import derived_features, distributions, files, footprint, knob_schema, roles
from tuner.space.environment import ACCURACY, VARIANT, Environment, Machine
from tuner.space.files import SpaceFile
from tuner.space.knobs import ChoiceKnob, FloatKnob, IntKnob, Knob, knob_info
from tuner.space.narrowing import CLOCK, SHARE
from tuner.space.space import SearchSpace
from tuner.store.study_store import Distributions
from tuner.values.configuration import Configuration, Value
from tuner.values.study_record import KnobInfo

Array = NDArray[np.float64]
EQUAL = 1.0001
"""Ratio below which two predictions count as equal."""
LIMITED_KNOBS = knob_schema.LIMITS_OF_ANY
"""Knobs that have no effect if limits cannot be enforced."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EarlierEvaluation:
    """What the prediction of a warm start's evaluation needs."""

    environment: Environment
    """Workload of the earlier study, on this machine."""
    knobs: Mapping[str, Value]
    """Configuration in Luthier's names (`roles.translator`)."""
    shift: float
    """Difference of the logarithms of both workloads' targets."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProblemStatement:
    """Search space bound to this machine and workload."""

    text: str
    """Text of the search-space file, not yet bound to a machine."""
    space: SearchSpace
    environment: Environment
    default: Configuration
    candidates: CandidateSet
    distributions: Distributions
    knobs: tuple[KnobInfo, ...]
    notes: tuple[str, ...]
    prediction: Array | None = None
    """Predicted objective of each candidate, (m,), to minimise; None before or without one."""
    latency: Array | None = None
    """Predicted mean latency of each candidate in ms, (m,)."""
    estimated_at: Prices | None = None
    """Prices for predictions from the default's latency (`prediction.estimate`); None for none."""
    predicted_feasible: NDArray[np.bool_] | None = None
    """Whether each candidate is predicted to meet the constraints, (m,); None if there are none."""
    warm_start: WarmStart | None = None
    earlier: tuple[EarlierEvaluation, ...] = ()
    """Evaluations of the warm start, in its order."""
    warm_start_configurations: tuple[Configuration, ...] | None = None
    """Candidates that won the studies of the warm start."""

    @property
    def predicted_best(self) -> Configuration | None:
        """Candidate predicted to be best, or None; if several tie, the one nearest to the default.

        Ties are common, since predictions ignore some knobs.
        """
        if self.prediction is None:
            return None
        guess = self.prediction
        if self.predicted_feasible is not None and self.predicted_feasible.any():
            guess = np.where(self.predicted_feasible, guess, np.inf)
        best = np.flatnonzero(guess <= EQUAL * np.min(guess))
        cells = (self.candidates.configurations[int(place)] for place in best)
        return min(cells, key=lambda cell: footprint.differences(cell, self.default))

    def named(self, configuration: Configuration) -> Configuration:
        """Return the default for any configuration that behaves like it."""
        return self.default if self.is_default(configuration) else configuration

    def is_default(self, configuration: Configuration) -> bool:
        """Whether a configuration behaves like the default."""
        if configuration == self.default:
            return True
        same = self.space.canonical(configuration, self.environment)
        return same == self.space.canonical(self.default, self.environment)


def find_spec(model: str, *, is_trusted: bool = False) -> ModelSpec:
    """Return a model's spec, or raise UsageError if it is unknown or unsuitable."""
    try:
        return zoo.find(model, is_trusted=is_trusted)
    except ServingError as error:
        raise UsageError(f"--model: {error}") from error


def absolute_model(model: str, card: ModelSpec) -> str:
    """Return the model, as an absolute path if it is a file."""
    if model in bundled.names() or card.path is None or not pathlib.Path(model).exists():
        return model
    return str(pathlib.Path(model).absolute())


def find_space(target: TargetSettings, card: ModelSpec) -> SpaceFile | None:
    """Return the given or bundled search space, or None if one must be derived.

    Raises:
        InvalidSpace: the file is invalid.
        UsageError: a minimum accuracy is given, but the model has no variants.
    """
    if target.min_accuracy is not None and not card.variants:
        raise UsageError(
            f"--min-accuracy {target.min_accuracy:g}: {card.name} has no variants; use a "
            "model whose model.yaml lists some, as resnet's does (docs/models.md)"
        )
    if target.space is not None:
        return files.read(target.space)
    space = files.load_bundled(card.name) if target.model in bundled.names() else None
    return None if space is None else unwritten(space, card)


def unwritten(space: SearchSpace, card: ModelSpec) -> SpaceFile:
    """Return a file for a space that no user wrote; errors call it by the model's name."""
    named = dataclasses.replace(space, source=f"{card.name}.yaml")
    return SpaceFile(space=named, text=files.dump(named))


def with_variants(space: SearchSpace, target: TargetSettings, card: ModelSpec) -> SearchSpace:
    """Return the space with a variant knob and an accuracy constraint, if requested."""
    if target.min_accuracy is None:
        return space
    knobs = space.knobs
    if VARIANT not in space.names:
        assert card.default_variant is not None, "checked by `find_space`"
        choices = tuple(card.variants)
        knobs = (*knobs, ChoiceKnob(name=VARIANT, default=card.default_variant, choices=choices))
    constraint = f"{ACCURACY} >= {target.min_accuracy:g}"
    if knobs == space.knobs and constraint in space.constraints:  # a resumed study
        return space
    return dataclasses.replace(space, knobs=knobs, constraints=(*space.constraints, constraint))


def with_note_of_fixed(problem: ProblemStatement, target: TargetSettings) -> ProblemStatement:
    """Note the fixed knobs, or raise UsageError if one is not a knob on this machine."""
    if not target.fixed:
        return problem
    for one in target.fixed:
        name = one.partition("=")[0]
        if name not in problem.space.names:
            why = next((note for note in problem.notes if note.startswith(name)), "left out here")
            raise UsageError(f"--fix {one}: {why}")
    note = f"fixed, not searched: {', '.join(target.fixed)}"
    return dataclasses.replace(problem, notes=(*problem.notes, note))


def environment_of(target: TargetSettings, machine: MachineFacts, card: ModelSpec) -> Environment:
    """Return machine, workload and variants, to which `with_gpu` adds the GPU."""
    forms = tuple((name, variant.accuracy) for name, variant in card.variants.items())
    load = make_open_loop_plan(target)
    return Environment(
        concurrency=target.in_flight,
        client_batch=target.client_batch,
        rate_per_s=None if load is None else load.rate_per_s,
        machine=Machine(cores=machine.cores, memory_mb=machine.memory_mb),
        variants=None if target.is_of_other_engine else forms,
    )


def with_gpu(
    environment: Environment,
    space: SearchSpace | None,
    *,
    device: str | None = None,
    is_tried: bool = True,
) -> Environment:
    """Return the environment with what the GPU offers.

    Args:
        space: search space; None to add everything, for a space that is yet to be derived.
        device: device of the model; None if unknown. A GPU offers nothing to `cpu`.
        is_tried: whether to test by briefly locking the clock.
    """
    machine = environment.machine
    if device == "cpu":
        why = "the model runs on the CPU"
        machine = dataclasses.replace(machine, gpu_clocks_mhz=(), no_clocks=why, no_sharing=why)
        return dataclasses.replace(environment, machine=machine)
    wanted = (CLOCK, SHARE) if space is None else {knob.name for knob in space.knobs}
    if CLOCK in wanted:
        found = clocks.lockable_clocks_mhz() if is_tried else clocks.supported_clocks_mhz()
        why_none = {"gpu_clocks_mhz": (), "no_clocks": found}
        changes = why_none if isinstance(found, str) else {"gpu_clocks_mhz": found}
        machine = dataclasses.replace(machine, **changes)
    if SHARE in wanted:
        machine = dataclasses.replace(machine, no_sharing=mps.lacking(os.environ) or "")
    return dataclasses.replace(environment, machine=machine)


def make_problem(
    space: SearchSpace, environment: Environment, *, limits: str, text: str = ""
) -> ProblemStatement:
    """Bind a space to this machine and workload.

    Args:
        limits: the engine's support for limits; unless enforced, their knobs keep the default.
        text: text of the search-space file.

    Raises:
        InvalidSpace: no configuration is feasible here.
    """
    narrowed = bind_space(space, environment, limits=limits)
    default = narrowed.default()
    representative = narrowed.canonical(default, environment)
    cells = narrowed.candidates(environment)
    canonical = roles.translator(narrowed.knobs)
    # The default represents its class: the user's own values run first.
    candidates = CandidateSet.of(
        [default if cell == representative else cell for cell in cells],
        narrowed.encode,
        lambda cell: derived_features.features(canonical(cell), environment),
    )
    return ProblemStatement(
        text=text,
        space=narrowed,
        environment=environment,
        default=default,
        candidates=candidates,
        distributions=distributions.distributions(narrowed),
        knobs=tuple(map(knob_info, narrowed.searched_knobs)),
        notes=narrowed.notes,
    )


def bind_space(space: SearchSpace, environment: Environment, *, limits: str) -> SearchSpace:
    """Bind a space as `make_problem` does, and return the space alone."""
    narrowed = space.narrow(environment)
    return narrowed if limits in {"enforced", OF_POD} else _without_limits(narrowed, limits)


def payloads_of(
    target: TargetSettings, card: ModelSpec, served: EngineInfo, *, seed: int
) -> Payloads:
    """Return the payloads, or raise UsageError if a file or size does not fit."""
    found = request_source.make_request_source(target, card, served.told_signature())
    return found.payloads(model=served.model, client_batch=target.client_batch, seed=seed)


def launcher_of(target: TargetSettings) -> LuthierLauncher:
    """Return the launcher of Luthier's engine; raise UsageError for malformed sizes or values."""
    request_source.check(target)
    pods = None
    if target.limits == "pod":
        kind = find_spec(target.model, is_trusted=target.trust).kind
        pods = PodLimiter(kind, cores=machine.read().cores)
    return LuthierLauncher(
        target.model,
        target.spawner,
        is_trusted=target.trust,
        always=request_source.server_settings(target),
        pods=pods,
    )


def _without_limits(space: SearchSpace, limits: str) -> SearchSpace:
    notes = [
        f"{knob.name} stays at {knob.default} {knob.unit}: limits are {limits}"
        for knob in space.searched_knobs
        if knob.name in LIMITED_KNOBS
    ]
    knobs = tuple(_at_default(knob) if knob.name in LIMITED_KNOBS else knob for knob in space.knobs)
    return dataclasses.replace(space, knobs=knobs, notes=(*space.notes, *notes))


def _at_default(knob: Knob) -> Knob:
    if not isinstance(knob, IntKnob | FloatKnob):
        return knob
    return knob.only(lambda value: value == knob.default) or knob
