"""Samplers by name; a sampler's first proposal imports optional and slow libraries."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

from optuna.samplers import BaseSampler

from serving.error_text import nearest
from tuner.errors import UsageError
from tuner.sampling.baselines.botorch_nei import BotorchSampler
from tuner.sampling.baselines.epsilon_greedy import EpsilonGreedySampler
from tuner.sampling.baselines.gpy_ei import GpySampler
from tuner.sampling.baselines.hill_climb import HillClimbSampler
from tuner.sampling.baselines.optuna_gp import OptunaGpSampler
from tuner.sampling.baselines.prediction import PredictionSampler
from tuner.sampling.baselines.random import RandomSampler
from tuner.sampling.baselines.ridge import RidgeSampler
from tuner.sampling.baselines.skopt_ei import SkoptSampler
from tuner.sampling.baselines.smac_forest import SmacSampler
from tuner.sampling.baselines.tpe import TpeSampler
from tuner.sampling.candidate_sampler import CandidateSampler
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.gp import GpSampler, StructuredSampler

SAMPLERS: Mapping[str, type[CandidateSampler]] = {
    "gp": GpSampler,
    "structured": StructuredSampler,
    "random": RandomSampler,
    "epsilon-greedy": EpsilonGreedySampler,
    "skopt": SkoptSampler,
    "gpy": GpySampler,
    "tpe": TpeSampler,
    "prediction": PredictionSampler,
    "ridge": RidgeSampler,
    "hill-climb": HillClimbSampler,
    "optuna-gp": OptunaGpSampler,
    "smac": SmacSampler,
    "botorch": BotorchSampler,
}
NAMES = tuple(SAMPLERS)


@dataclasses.dataclass(frozen=True, slots=True)
class OptionalDependency:
    """Optional dependency of a sampler."""

    package: str
    extra: str
    modules: tuple[str, ...]


OPTIONAL_DEPENDENCIES: Mapping[str, OptionalDependency] = {
    "skopt": OptionalDependency("scikit-optimize", "skopt", ("skopt",)),
    "gpy": OptionalDependency("GPy", "gpy", ("GPy",)),
    "optuna-gp": OptionalDependency("PyTorch", "benchmarks", ("torch",)),
    "smac": OptionalDependency("SMAC", "benchmarks", ("smac", "ConfigSpace")),
    "botorch": OptionalDependency("BoTorch", "benchmarks", ("botorch", "gpytorch", "torch")),
}


def create(
    name: str, *, seed: int, initial: int, candidates: CandidateSet | None = None, **options: Any
) -> BaseSampler:
    """Create a sampler.

    Args:
        seed: makes proposals reproducible.
        options: the sampler's own options, such as `epsilon`.

    Raises:
        UsageError: a name or option is unknown, a value is invalid, or a package is missing.
    """
    if name not in SAMPLERS:
        raise UsageError(
            f"sampler {name!r} is not known{nearest(name, NAMES)} (samplers: {', '.join(NAMES)})"
        )
    if not is_installed(name):
        needed = OPTIONAL_DEPENDENCIES[name]
        raise UsageError(
            f"the sampler {name!r} needs {needed.package}: "
            f"pip install '.[{needed.extra}]' in a clone of Luthier"
        )
    sampler = SAMPLERS[name]
    own = sampler.options
    for option in options:
        if option not in own:
            raise UsageError(
                f"sampler {name!r} has no option {option!r}{nearest(option, own)} (options: {', '.join(own) or 'none'})"
            )
    return sampler(seed=seed, initial=initial, candidates=candidates, **options)


def is_installed(name: str) -> bool:
    """Whether a known sampler's dependencies are installed."""
    modules = OPTIONAL_DEPENDENCIES[name].modules if name in OPTIONAL_DEPENDENCIES else ()
    return all(importlib.util.find_spec(module) is not None for module in modules)


def takes(name: str, option: str) -> bool:
    """Whether a sampler has an option; False for unknown samplers."""
    return name in SAMPLERS and option in SAMPLERS[name].options


def searches_fronts(name: str) -> bool:
    """Whether a sampler uses a second objective."""
    return name in SAMPLERS and SAMPLERS[name].searches_fronts
