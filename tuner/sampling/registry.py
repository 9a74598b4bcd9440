"""Samplers by name: adding one is a file, a line here and a fixture of the contract suite.

In: a name and its options. Out: a sampler for any Optuna study. Libraries that are extras, and those that
take long to import, are imported when a sampler first proposes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any

from optuna.samplers import BaseSampler

from serving.errors import nearest
from tuner.errors import WrongUse
from tuner.sampling.botorch_nei import BotorchSampler
from tuner.sampling.candidates import Candidates
from tuner.sampling.cell_sampler import CellSampler
from tuner.sampling.epsilon_greedy import EpsilonGreedySampler
from tuner.sampling.gp import GpSampler, StructuredSampler
from tuner.sampling.gpy_ei import GpySampler
from tuner.sampling.guess import GuessSampler
from tuner.sampling.hill_climb import HillClimbSampler
from tuner.sampling.optuna_gp import OptunaGpSampler
from tuner.sampling.random import RandomSampler
from tuner.sampling.ridge import RidgeSampler
from tuner.sampling.skopt_ei import SkoptSampler
from tuner.sampling.smac_forest import SmacSampler
from tuner.sampling.tpe import TpeSampler

SAMPLERS: Mapping[str, type[CellSampler]] = {
    "gp": GpSampler,
    "structured": StructuredSampler,
    "random": RandomSampler,
    "epsilon-greedy": EpsilonGreedySampler,
    "skopt": SkoptSampler,
    "gpy": GpySampler,
    "tpe": TpeSampler,
    "guess": GuessSampler,
    "ridge": RidgeSampler,
    "hill-climb": HillClimbSampler,
    "optuna-gp": OptunaGpSampler,
    "smac": SmacSampler,
    "botorch": BotorchSampler,
}
NAMES = tuple(SAMPLERS)


@dataclasses.dataclass(frozen=True, slots=True)
class Needed:
    """What a sampler needs beside Luthier's own dependencies."""

    package: str
    extra: str
    """Of Luthier, which brings it."""
    modules: tuple[str, ...]
    """That must be there."""


NEEDED: Mapping[str, Needed] = {
    "skopt": Needed("scikit-optimize", "skopt", ("skopt",)),
    "gpy": Needed("GPy", "gpy", ("GPy",)),
    "optuna-gp": Needed("PyTorch", "benchmarks", ("torch",)),
    "smac": Needed("SMAC", "benchmarks", ("smac", "ConfigSpace")),
    "botorch": Needed("BoTorch", "benchmarks", ("botorch", "gpytorch", "torch")),
}


def create(
    name: str, *, seed: int, initial: int, candidates: Candidates | None = None, **options: Any
) -> BaseSampler:
    """A sampler.

    Args:
        name: one of `NAMES`.
        seed: 0 or more; a study with the same seed and results proposes the same.
        initial: trials before the sampler is guided by results, the default configuration included.
        candidates: the cells that may be proposed; None to take the study's distributions.
        options: those of the sampler, for example `epsilon` and `exploit` of epsilon-greedy.

    Raises:
        WrongUse: the name or an option is not known, or an option's value or an extra package is
        missing.
    """
    if name not in SAMPLERS:
        raise WrongUse(
            f"sampler {name!r} is not known{nearest(name, NAMES)} (samplers: {', '.join(NAMES)})"
        )
    if not is_installed(name):
        needed = NEEDED[name]
        raise WrongUse(
            f"the sampler {name!r} needs {needed.package}: "
            f"pip install '.[{needed.extra}]' in a clone of Luthier"
        )
    sampler = SAMPLERS[name]
    own = _options(sampler)
    for option in options:
        if option not in own:
            raise WrongUse(
                f"sampler {name!r} has no option {option!r}{nearest(option, own)} (options: {', '.join(own)})"
            )
    return sampler(seed=seed, initial=initial, candidates=candidates, **options)


def is_installed(name: str) -> bool:
    """Whether what a known sampler needs is there."""
    modules = NEEDED[name].modules if name in NEEDED else ()
    return all(importlib.util.find_spec(module) is not None for module in modules)


def takes(name: str, option: str) -> bool:
    """Whether a sampler has an option; an unknown one has none."""
    return name in SAMPLERS and option in _options(SAMPLERS[name])


def searches_fronts(name: str) -> bool:
    """Whether a sampler has a use for a second objective."""
    return name in SAMPLERS and SAMPLERS[name].searches_fronts


def _options(sampler: type[CellSampler]) -> list[str]:
    return [
        option
        for option in inspect.signature(sampler).parameters
        if option not in {"seed", "initial", "candidates"}
    ]
