"""The configuration to keep at the end of a study: the best posterior mean, not the lowest measurement.

The lowest of thirty equally good measurements looks two standard errors better than it is; the
process averages over neighbours and repeats. Works after any sampler, so that studies of
different samplers are judged by one rule. Reads an Optuna study, writes nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study, StudyDirection

from tuner.sampling import averaged, blas, surrogate, within_limits
from tuner.sampling.candidates import Candidates
from tuner.sampling.encoding import Cube
from tuner.sampling.history import History, gather, shared_distributions
from tuner.sampling.knowledge import NOTHING, Knowledge
from tuner.sampling.surrogate import Seen
from tuner.values import Configuration

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """The observed configuration with the best posterior mean, and what is believed of it."""

    configuration: Configuration
    """Values by name; parameters that cannot vary are left out."""
    minimised: float
    """Believed objective, in the unit that is minimised."""
    sd: float
    """How well it is known: on the log scale, where objectives have a logarithm."""
    noise_sd: float
    """Of one launch, likewise."""
    is_log: bool


def recommend(
    study: Study, *, candidates: Candidates | None = None, known: Knowledge = NOTHING
) -> Configuration | None:
    """The configuration of `incumbent`."""
    found = incumbent(study, candidates=candidates, known=known)
    return None if found is None else found.configuration


def incumbent(
    study: Study, *, candidates: Candidates | None = None, known: Knowledge = NOTHING
) -> Incumbent | None:
    """The observed configuration with the best posterior mean, of those that keep to the limits.

    One that also failed is kept only where every one did. Under limits it is one that is likely enough to
    keep to them (`within_limits.recommendable`).

    Args:
        study: one objective; may still be running.
        candidates: as the sampler had them; None to take the parameters that ended trials share.
        known: what was known before the study; only with candidates.

    Returns:
        None while no trial was ok, or none kept to the limits.
    """
    history = history_of(study, candidates)
    if history is None or not len(history.targets):
        return None
    with blas.single_threaded():
        if candidates is None:
            process = surrogate.fitted(Seen.of(history))
            (mean, sd), noise_sd = process.predict(history.vectors), process.noise_sd
        else:
            both = averaged.fitted(history, candidates, known)
            (mean, sd), noise_sd = both.predict_observed(), both.noise_sd
        may_be = likely_kept(history, candidates, known)
    if not may_be.any():
        return None
    mean = np.where(may_be, mean, np.inf)
    has_failed = np.array(
        [configuration in history.lost_configurations for configuration in history.configurations]
    )
    if not has_failed[may_be].all():
        mean = np.where(has_failed, np.inf, mean)
    best = int(np.argmin(mean))
    is_log = history.scale == "log"
    return Incumbent(
        configuration=history.configurations[best],
        minimised=float(np.exp(mean[best]) if is_log else mean[best]),
        sd=float(sd[best]),
        noise_sd=noise_sd,
        is_log=is_log,
    )


def drifted(
    study: Study, *, candidates: Candidates, known: Knowledge = NOTHING
) -> tuple[Array, Array]:
    """How much slower than at other times the machine was at each launch, on the log scale.

    Args:
        study: one objective; may still be running.
        candidates: as the sampler had them.
        known: what was known before the study.

    Returns:
        Means (n,) and their errors (n,), of the launches that worked, in order; empty where there is none.
    """
    history = history_of(study, candidates)
    if history is None or not len(history.targets):
        return np.empty(0), np.empty(0)
    # With CPU times in the model these would explain what is to be told.
    unknown = np.full(len(history.efforts), np.nan)
    history = dataclasses.replace(history, efforts=unknown)
    with blas.single_threaded():
        return averaged.fitted(history, candidates, known).drift()


def likely_kept(
    history: History, candidates: Candidates | None, known: Knowledge
) -> NDArray[np.bool_]:
    """Which launches (n,) are of configurations that may be recommended under the limits; all without any."""
    if not history.slacks:
        return np.ones(len(history.targets), dtype=bool)
    if candidates is None:
        log_kept = within_limits.observed_without_cells(history)
    else:
        log_kept = within_limits.fitted(history, candidates, known).observed
    return within_limits.recommendable(log_kept, within_limits.kept_once(history))


def history_of(study: Study, candidates: Candidates | None) -> History | None:
    """What a study has taught; None where nothing varies."""
    trials = study.get_trials(deepcopy=False)
    place = candidates or Cube.of(shared_distributions(trials))
    if not place.width:
        return None
    return gather(
        trials,
        place,
        number=None,
        maximise=study.direction is StudyDirection.MAXIMIZE,
        with_missed=True,
    )
