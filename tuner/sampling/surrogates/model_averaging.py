"""Average of a plain Gaussian process and one with predictions as its prior mean.

Evaluations from earlier studies are additional rows, with their workload as extra inputs. The
structured process is weighted by its leave-one-out predictive density with prior odds `ODDS`
(pseudo Bayesian model averaging: Yao et al., Bayesian Analysis 13:917, 2018). Its fitted slope
makes useless predictions harmless.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from tuner.sampling.arrays import Array, Positions
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.history import History
from tuner.sampling.surrogates import surrogate
from tuner.sampling.surrogates.gaussian_process import GaussianProcess, Posterior
from tuner.sampling.surrogates.knowledge import NO_PRIOR_KNOWLEDGE, PriorKnowledge, WarmStart
from tuner.sampling.surrogates.knowledge_gradient import knowledge_gradient

ODDS = 2.0
"""Prior odds of the structured process, whose predictions are rules of thumb."""
LEFT_VARIANCE = 0.4
"""Share of the targets' variance that predictions leave."""
MIN_SHARE = 1e-3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AveragedModel:
    """One process, or two with their weights."""

    plain: GaussianProcess
    structured: GaussianProcess | None
    weight: float
    _inputs: Array  # (m, d) of the candidates, then the context if there are earlier evaluations
    _guess: Array | None
    _observed: Array  # (n, d)
    _observed_guess: Array | None
    _observed_at: Positions | None
    """Positions (n,) of the observations, if all are candidates."""
    _context: Array  # (c,)

    def drift(self) -> tuple[Array, Array]:
        """Return the machine drift at each evaluation (n,) and its error (n,)."""
        mean, sd = self._likelier.drift()
        own = len(self._observed)
        return mean[:own], sd[:own]

    def node_speeds(self, nodes: Positions) -> tuple[Array, Array]:
        """Return the lasting speeds (k,) of machines and their covariance (k, k).

        Args:
            nodes: (n,) number below k of each observation's machine.
        """
        process = self._likelier
        earlier = len(process.vectors) - len(nodes)
        return process.node_speeds(np.concatenate([nodes, np.full(earlier, -1)]))

    @property
    def _likelier(self) -> GaussianProcess:
        if self.structured is not None and self.weight >= 0.5:
            return self.structured
        return self.plain

    @property
    def noise_sd(self) -> float:
        """Sd of one evaluation, in units of the targets."""
        own = 0.0 if self.structured is None else self.weight * self.structured.noise_sd
        return own + (1 - self.weight) * self.plain.noise_sd

    @property
    def round_noise_sd(self) -> float:
        """Sd of one evaluation among those of a round, which one machine measures."""
        own = 0.0 if self.structured is None else self.weight * _round_noise_sd(self.structured)
        return own + (1 - self.weight) * _round_noise_sd(self.plain)

    def predict(self, at: Positions) -> tuple[Array, Array]:
        """Return mean and sd (k,) at candidates."""
        return _mix([(share, one.among(at)) for share, _, one in self._parts()])

    def covariance(self, at: Positions) -> Array:
        """Return the covariance (k, k) at candidates, from the process with more weight."""
        _, process, posterior = max(self._parts(), key=lambda part: part[0])
        return process.covariance(posterior.among(at), posterior.among(at))

    def predict_observed(self) -> tuple[Array, Array]:
        """Return mean and sd (n,) at the observations."""
        if self._observed_at is not None:
            return self.predict(self._observed_at)
        parts = [(1 - self.weight, self.plain.at(self._observed))]
        if self.structured is not None and self.weight:
            parts.append((self.weight, self.structured.at(self._observed, self._observed_guess)))
        return _mix(parts)

    def _parts(self) -> list[tuple[float, GaussianProcess, Posterior]]:
        """Return the weight of each process, and its posterior at all candidates."""
        found = [(1 - self.weight, self.plain, self.plain.at(self._inputs))]
        if self.structured is not None and self.weight:
            posterior = self.structured.at(self._inputs, self._guess)
            found.append((self.weight, self.structured, posterior))
        return found

    def expecting(self, pending: Array) -> AveragedModel:
        """Return the model as if running trials (p, d) had returned their predicted means.

        A trial that is no candidate has no prediction; then the structured process is dropped.
        """
        if not len(pending):
            return self
        places = self._places_of(pending)
        whole = _with(pending, self._context)
        plain = self.plain.expecting(whole)
        if self.structured is None or self._guess is None or places is None:
            return dataclasses.replace(self, plain=plain, structured=None, weight=0.0)
        structured = self.structured.expecting(whole, self._guess[places])
        return dataclasses.replace(self, plain=plain, structured=structured)

    def _places_of(self, vectors: Array) -> Positions | None:
        """Return the candidates with these vectors (p, d), or None if one is no candidate."""
        rows = self._inputs[:, : vectors.shape[1]]
        equal = (rows[None] == vectors[:, None]).all(axis=2)
        return equal.argmax(axis=1) if equal.any(axis=1).all() else None

    def knowledge_gradient(self, among: Positions) -> tuple[Positions, Array]:
        """Return the scored positions within `among`, and their expected gains."""
        gains = np.zeros(len(among))
        is_scored = np.zeros(len(among), dtype=bool)
        for share, process, posterior in self._parts():
            if share >= MIN_SHARE:
                tried, found = knowledge_gradient(process, posterior.among(among))
                gains[tried] += share * found
                is_scored[tried] = True
        tried = np.flatnonzero(is_scored)
        return tried, gains[tried]


def _round_noise_sd(process: GaussianProcess) -> float:
    return math.sqrt(process.noise_sd**2 - process.hyperparameters_in(1.0).node_sd ** 2)


def _mix(parts: Sequence[tuple[float, Posterior]]) -> tuple[Array, Array]:
    """Return mean and sd of a mixture of posteriors at the same points, with their weights."""
    parts = [(share, one) for share, one in parts if share]
    if len(parts) == 1:
        return parts[0][1].mean, parts[0][1].sd
    mean = np.sum([share * one.mean for share, one in parts], axis=0)
    square = np.sum([share * (one.sd**2 + one.mean**2) for share, one in parts], axis=0)
    return mean, np.sqrt(np.maximum(square - mean**2, 1e-12))


def fit(
    history: History,
    candidates: CandidateSet,
    known: PriorKnowledge = NO_PRIOR_KNOWLEDGE,
    *,
    is_plain: bool = False,
) -> AveragedModel:
    """Fit a non-empty history; `is_plain` uses only the plain process."""
    earlier = known.warm_start if history.scale == "log" else None
    context = np.empty(0) if earlier is None else earlier.own_context
    observed = _with(history.vectors, context)
    seen = dataclasses.replace(history, vectors=observed, knobs=candidates.design_width)
    if earlier is not None:
        seen = _append(seen, earlier)
    plain = surrogate.fit(seen)
    own_guess = candidates.values_at(history.configurations, known.prior_mean)
    structured, weight, guess = None, 0.0, None
    if own_guess is not None and history.scale == "log" and len(seen.targets) > 1:
        guesses = own_guess
        if earlier is not None and earlier.prediction is not None:
            guesses = np.concatenate([own_guess, earlier.prediction])
        if len(guesses) == len(seen.targets):
            guess = known.prior_mean
            structured = surrogate.fit(
                seen,
                prior_mean=guesses,
                variance=LEFT_VARIANCE,
                like=plain,
            )
            ahead = float(structured.leave_one_out().sum() - plain.leave_one_out().sum())
            weight = float(expit(ahead + np.log(ODDS)))
    return AveragedModel(
        plain=plain,
        structured=structured,
        weight=0.0 if is_plain else weight,
        _inputs=_with(candidates.vectors, context),
        _guess=guess,
        _observed=observed,
        _observed_guess=own_guess if structured is not None else None,
        _observed_at=candidates.places_of(history.configurations),
        _context=context,
    )


def _append(seen: History, earlier: WarmStart) -> History:
    unknown = np.full(len(earlier.errors), np.nan)
    rows = np.hstack([earlier.vectors, earlier.context])
    return dataclasses.replace(
        seen,
        vectors=np.vstack([seen.vectors, rows]),
        targets=np.concatenate([seen.targets, earlier.targets]),
        errors=np.concatenate([seen.errors, earlier.errors]),
        at_s=np.concatenate([seen.at_s, unknown]),
        nodes=None
        if seen.nodes is None
        else np.concatenate([seen.nodes, np.full(len(earlier.errors), -1)]),
        log_cpu_per_request=np.concatenate([seen.log_cpu_per_request, unknown]),
        earlier=len(earlier.targets),
    )


def _with(vectors: Array, context: Array) -> Array:
    if not len(context):
        return vectors
    return np.hstack([vectors, np.broadcast_to(context, (len(vectors), len(context)))])
