"""The configuration to keep at the end of a study: the best posterior mean, not the lowest measurement.

The lowest of thirty equally good measurements looks two standard errors better than it is; the
process averages over neighbours and repeats. Works after any sampler, so that studies of
different samplers are judged by one rule. Reads an Optuna study, writes nothing.
"""

from __future__ import annotations

import numpy as np
from optuna.study import Study, StudyDirection

from tuner.sampling import blas, gp_model
from tuner.sampling.candidates import Candidates
from tuner.sampling.encoding import Cube
from tuner.sampling.history import History, gather, shared_distributions
from tuner.values import Configuration


def recommend(study: Study, *, candidates: Candidates | None = None) -> Configuration | None:
    """The observed configuration with the best posterior mean.

    One that also failed is kept only where every one did.

    Args:
        study: one objective; may still be running.
        candidates: as the sampler had them; None to take the parameters that ended trials share.

    Returns:
        Values by name; parameters that cannot vary are left out. None while no trial was ok.
    """
    trials = study.get_trials(deepcopy=False)
    place = candidates or Cube.of(shared_distributions(trials))
    if not place.width:
        return None
    history = gather(
        trials, place, number=None, maximise=study.direction is StudyDirection.MAXIMIZE
    )
    if not len(history.targets):
        return None
    with blas.single_threaded():
        mean, _ = surrogate_of(history).predict(history.vectors)
    has_failed = np.array(
        [configuration in history.lost_configurations for configuration in history.configurations]
    )
    if not has_failed.all():
        mean = np.where(has_failed, np.inf, mean)
    return history.configurations[int(np.argmin(mean))]


def surrogate_of(history: History) -> gp_model.Surrogate:
    """The process fitted to a history with at least one observation."""
    noise_sd = gp_model.NOISE_SD
    if history.scale == "raw":
        # No unit to measure noise in: the same share of the spread that 5 % is of a factor of e.
        noise_sd *= max(float(np.std(history.targets)), 1e-9)
    return gp_model.fit(
        history.vectors, history.targets, noise_sd=noise_sd, start=history.hyperparameters
    )
