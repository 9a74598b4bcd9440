"""Recommended configuration, whatever the sampler: the best posterior mean, or the default.

The best of thirty equal configurations would look two standard errors too good. A configuration is
recommended only if it beats the default with probability `CONFIDENCE`, under a variance that counts
both configurations' own evaluations too; otherwise the default is.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study, StudyDirection
from scipy.special import ndtri

from tuner.sampling import blas
from tuner.sampling.arrays import Array, Positions
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.encoding import Cube
from tuner.sampling.history import DISREGARDED, History, gather, shared_distributions
from tuner.sampling.surrogates import constraint_model, model_averaging, surrogate
from tuner.sampling.surrogates.knowledge import NO_PRIOR_KNOWLEDGE, PriorKnowledge
from tuner.values.configuration import Configuration

CONFIDENCE = 0.95
"""Probability of beating the default (`_beats`) from which another configuration is recommended."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """Observed configuration with the best posterior mean."""

    configuration: Configuration
    minimised: float
    """Posterior objective, in the minimised unit."""
    sd: float
    """Posterior sd; on the log scale if `is_log`."""
    noise_sd: float
    is_log: bool


def recommend(
    study: Study,
    *,
    candidates: CandidateSet | None = None,
    known: PriorKnowledge = NO_PRIOR_KNOWLEDGE,
    default: Configuration | None = None,
) -> Configuration | None:
    """Return the `incumbent`, the default if it may be better, or None without an incumbent."""
    history = history_of(study, candidates)
    found = None if history is None else _incumbent(history, candidates, known)
    if history is None or found is None:
        return None
    if default is None or candidates is None or not candidates.names <= default.keys():
        return found.configuration
    default = Configuration({name: default[name] for name in candidates.names})
    if found.configuration == default:
        return default
    if default not in history.configurations:
        return found.configuration
    if default in history.lost_configurations:
        return found.configuration
    with blas.single_threaded():
        is_better = _beats(history, candidates, known, found.configuration, default)
    return found.configuration if is_better else default


def _beats(
    history: History,
    candidates: CandidateSet,
    known: PriorKnowledge,
    best: Configuration,
    default: Configuration,
) -> bool:
    """Return whether `best` has a lower objective than `default` with probability `CONFIDENCE`.

    The variance of the mean of their own evaluations is added to that of the process, which learns
    from neighbours and is too certain of what is best of many because its evaluations were lucky.
    """
    places = [candidates.index_of(one) for one in (best, default)]
    if None in places:
        return True
    if not likely_kept(history, candidates, known)[history.configurations.index(default)]:
        return True
    both = np.array(places, dtype=np.intp)
    model = model_averaging.fit(history, candidates, known)
    mean, sd = model.predict(both)
    covariance = model.covariance(both)
    correlation = covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
    variance = float(sd @ sd - 2 * correlation * sd[0] * sd[1])
    alone = model.noise_sd**2 * sum(
        1 / history.configurations.count(one) for one in (best, default)
    )
    return float(mean[1] - mean[0]) >= float(ndtri(CONFIDENCE)) * math.sqrt(variance + alone)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeSpeeds:
    """How much the machines of a study differ, in logarithms of the objective, minimised."""

    names: tuple[str, ...]
    counts: Positions  # (k,) successful evaluations on each
    mean: Array  # (k,) above the mean of all: slower
    covariance: Array  # (k, k)


def incumbent(
    study: Study,
    *,
    candidates: CandidateSet | None = None,
    known: PriorKnowledge = NO_PRIOR_KNOWLEDGE,
) -> Incumbent | None:
    """Return the observed configuration with the best posterior mean, or None without one.

    Configurations that have failed count only if all have. The study may be running.
    """
    history = history_of(study, candidates)
    return None if history is None else _incumbent(history, candidates, known)


def _incumbent(
    history: History, candidates: CandidateSet | None, known: PriorKnowledge
) -> Incumbent | None:
    if not len(history.targets):
        return None
    with blas.single_threaded():
        if candidates is None:
            process = surrogate.fit(history)
            (mean, sd), noise_sd = process.predict(history.vectors), process.noise_sd
        else:
            both = model_averaging.fit(history, candidates, known)
            (mean, sd), noise_sd = both.predict_observed(), both.noise_sd
        may_be = likely_kept(history, candidates, known)
    if not may_be.any():
        return None
    best = int(np.argmin(np.where(never_failed(history, may_be), mean, np.inf)))
    is_log = history.scale == "log"
    return Incumbent(
        configuration=history.configurations[best],
        minimised=float(np.exp(mean[best]) if is_log else mean[best]),
        sd=float(sd[best]),
        noise_sd=noise_sd,
        is_log=is_log,
    )


def estimate_drift(
    study: Study, *, candidates: CandidateSet, known: PriorKnowledge = NO_PRIOR_KNOWLEDGE
) -> tuple[Array, Array]:
    """Estimate machine drift: its means (n,) and errors (n,) at successful evaluations, in logs."""
    history = history_of(study, candidates)
    if history is None or not len(history.targets):
        return np.empty(0), np.empty(0)
    # CPU times in the model would absorb the drift.
    unknown = np.full(len(history.log_cpu_per_request), np.nan)
    history = dataclasses.replace(history, log_cpu_per_request=unknown)
    with blas.single_threaded():
        return model_averaging.fit(history, candidates, known).drift()


def estimate_node_speeds(
    study: Study, *, candidates: CandidateSet, known: PriorKnowledge = NO_PRIOR_KNOWLEDGE
) -> NodeSpeeds | None:
    """Estimate how much slower than their mean each machine is, or return None for a single one."""
    history = history_of(study, candidates)
    if history is None or history.several is None or history.scale != "log":
        return None
    # CPU times in the model would absorb the difference.
    unknown = np.full(len(history.log_cpu_per_request), np.nan)
    history = dataclasses.replace(history, log_cpu_per_request=unknown)
    with blas.single_threaded():
        model = model_averaging.fit(history, candidates, known)
    assert history.nodes is not None, "there are several"
    mean, covariance = model.node_speeds(history.nodes)
    count = len(mean)
    centred = np.eye(count) - 1 / count
    return NodeSpeeds(
        names=history.node_names,
        counts=np.bincount(history.nodes, minlength=count),
        mean=centred @ mean,
        covariance=centred @ covariance @ centred,
    )


def likely_kept(
    history: History, candidates: CandidateSet | None, known: PriorKnowledge
) -> NDArray[np.bool_]:
    """Return which evaluations (n,) the metric constraints allow to be recommended."""
    if not history.slacks:
        return np.ones(len(history.targets), dtype=bool)
    if candidates is None:
        log_kept = constraint_model.observed_without_candidates(history)
    else:
        log_kept = constraint_model.fit(history, candidates, known).observed
    return constraint_model.recommendable(log_kept, constraint_model.kept_once(history))


def never_failed(history: History, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return `among` (n,) without configurations that have failed, unless all of them have."""
    failed = np.array([one in history.lost_configurations for one in history.configurations])
    return among if failed[among].all() else among & ~failed


def history_of(study: Study, candidates: CandidateSet | None) -> History | None:
    """Read a study, or return None if no parameter varies."""
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
        disregarded=study.user_attrs.get(DISREGARDED, ()),
    )
