"""Knobs as Optuna distributions: what a study's store says about each parameter.

In: a search space. Out: one distribution for each knob, in the space's order. Each contains the
knob's grid and nothing else, and gives back exactly the value that was stored, type included.
Optuna is imported for its three classes only.

Why these forms. Whole numbers at equal distances are an `IntDistribution` with a step. Everything
else is a `CategoricalDistribution` over the ascending grid:

- A log distribution takes no step (Optuna refuses it), so between 1 and 64 it holds 64 values where
the grid has
  seven, and none at all for the 0 beside a log range; a sampler would propose what the study does
  not search.
- A float with a step is computed back as `low + k * step`: 0.30000000000000004 for the grid's 0.3.

The price is that Optuna's own samplers do not see the order of such a knob. Ours do not need to:
they choose among the cells. One that wraps an Optuna sampler can restore the order, as the choices
ascend: the position of a value is its rank.
"""

from __future__ import annotations

import itertools

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.space.knobs import IntKnob, SearchedKnob
from tuner.space.space import SearchSpace


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """One distribution for each knob that has values, by name."""
    return {knob.name: distribution(knob) for knob in space.searched}


def distribution(knob: SearchedKnob) -> BaseDistribution:
    """The distribution that contains the knob's grid and nothing else."""
    if isinstance(knob, IntKnob):
        values = knob.values()
        steps = {high - low for low, high in itertools.pairwise(values)} or {1}
        if len(steps) == 1:
            return IntDistribution(values[0], values[-1], step=steps.pop())
    return CategoricalDistribution(knob.values())
