"""The prediction of every configuration of a study, from a few seconds' profile of its model.

In: a bench that serves the model, the arena, what was kept of an earlier command. Out: the arena with a
predicted mean round trip for every cell. Only the serving core can be predicted: of another engine
nobody knows how it batches.
"""

from __future__ import annotations

import dataclasses

from tuner import profiling
from tuner.bench import Bench
from tuner.errors import TunerError
from tuner.inputs import Arena
from tuner.sampling import registry
from tuner.settings import StudySettings
from tuner.simulation import closed_form
from tuner.simulation.closed_form import Load
from tuner.simulation.profile import Profile
from tuner.space.environment import Environment

OBJECTIVES = frozenset({"mean", "p50", "p95", "p99", "throughput", "time-per-item", "consistency"})
"""Those that go with the mean round trip; it is no guess of energy."""
_WITHOUT = {
    "structured": "the search relies on what it measures alone (sampler gp)",
    "guess": "the sampler guess has nothing to go by, and tries configurations at random",
}
"""What a sampler does without a prediction."""


def is_wanted(settings: StudySettings) -> bool:
    """Whether a study's sampler can use a prediction, and there can be one."""
    return (
        registry.takes(settings.search.sampler, "guess")
        and settings.measurement.objective in OBJECTIVES
        and not settings.target.is_of_other_engine
        and not settings.is_open
    )


def why_none(settings: StudySettings) -> str | None:
    """Why a sampler that could use a prediction gets none; None where it gets one, or needs none."""
    if not registry.takes(settings.search.sampler, "guess") or is_wanted(settings):
        return None
    if settings.target.is_of_other_engine:
        why = "how another engine batches is not known"
    elif settings.is_open:
        why = "a profile tells of a closed loop, and not how requests queue up in an open one"
    else:
        why = f"a profile does not tell of the objective {settings.measurement.objective}"
    instead = _WITHOUT.get(settings.search.sampler, _WITHOUT["structured"])
    return f"no prediction: {why}; {instead}"


def profile_of(bench: Bench, arena: Arena) -> Profile | None:
    """The model's profile, of every number of threads that is searched; None where it cannot be had."""
    environment, cells = arena.environment, arena.candidates.cells
    largest = max(
        int(cell.get("batching.max_size", arena.default.get("batching.max_size", 1)))
        for cell in cells
    )
    try:
        return profiling.profiled(
            bench,
            most=min(environment.items, largest),
            client_batch=environment.client_batch,
            threads={int(cell.get("replica.threads", 1)) for cell in cells},
        )
    except TunerError:
        return None


def with_guess(arena: Arena, profile: Profile | None) -> Arena:
    """The arena with what the profile predicts."""
    if profile is None:
        return arena
    guess = closed_form.all_ms(profile, load_of(arena.environment), arena.candidates.cells)
    return dataclasses.replace(arena, guess=guess)


def load_of(environment: Environment) -> Load:
    """The load of an environment, as the simulators take it."""
    return Load(
        concurrency=environment.concurrency,
        client_batch=environment.client_batch,
        cores=environment.machine.cores,
    )
