"""Sampler of a study, with what is known of its problem."""

from __future__ import annotations

from typing import Any

from tuner.sampling import registry
from tuner.settings.search import SearchSettings
from tuner.store.study_store import Sampler
from tuner.study.problem import ProblemStatement


def sampler_of(settings: SearchSettings, problem: ProblemStatement) -> Sampler:
    """Return the named sampler, or raise UsageError if name or option is unknown."""
    first = list(problem.warm_start_configurations or ())
    if problem.predicted_best is not None and registry.takes(settings.sampler, "guess"):
        first.insert(0, problem.predicted_best)  # nearer than the best under another workload
    given = {
        "guess": problem.prediction,
        "latency": problem.latency,
        "first": first or None,
        "earlier": problem.warm_start,
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
        candidates=problem.candidates,
        **options,
    )
