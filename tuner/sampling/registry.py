"""Samplers by name: adding one is a file, a line here and a fixture of the contract suite.

In: a name and its options. Out: a sampler for any Optuna study. Files that take long to import
say so themselves and import late.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from optuna.samplers import BaseSampler

from serving.errors import nearest
from tuner.errors import WrongUse
from tuner.sampling.candidates import Candidates
from tuner.sampling.cell_sampler import CellSampler
from tuner.sampling.epsilon_greedy import EpsilonGreedySampler
from tuner.sampling.gp import GpSampler, StructuredSampler
from tuner.sampling.random import RandomSampler
from tuner.sampling.skopt_ei import SkoptSampler
from tuner.sampling.tpe import TpeSampler

SAMPLERS: Mapping[str, type[CellSampler]] = {
    "gp": GpSampler,
    "structured": StructuredSampler,
    "random": RandomSampler,
    "epsilon-greedy": EpsilonGreedySampler,
    "skopt": SkoptSampler,
    "tpe": TpeSampler,
}
NAMES = tuple(SAMPLERS)


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
    sampler = SAMPLERS[name]
    own = _options(sampler)
    for option in options:
        if option not in own:
            raise WrongUse(
                f"sampler {name!r} has no option {option!r}{nearest(option, own)} (options: {', '.join(own)})"
            )
    return sampler(seed=seed, initial=initial, candidates=candidates, **options)


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
