"""Optuna distributions of knobs, for a study's storage.

Evenly spaced whole numbers become an `IntDistribution`. All other grids become categorical, in
ascending order: a log distribution allows neither steps nor 0, and a float with a step returns
0.30000000000000004 for 0.3.
"""

from __future__ import annotations

import itertools

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.space.knobs import IntKnob, SearchedKnob
from tuner.space.space import SearchSpace


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return a distribution for each searched knob, by name."""
    return {knob.name: distribution(knob) for knob in space.searched_knobs}


def distribution(knob: SearchedKnob) -> BaseDistribution:
    """Return the distribution that contains exactly the knob's grid."""
    if isinstance(knob, IntKnob):
        values = knob.values()
        steps = {high - low for low, high in itertools.pairwise(values)} or {1}
        if len(steps) == 1:
            return IntDistribution(values[0], values[-1], step=steps.pop())
    return CategoricalDistribution(knob.values())
