"""Exact Gaussian-process regression: Matern-5/2 with a length scale per axis.

    target = shift + b0 + b1 x guess + f(x) + rough(x) + drift + noise
    f ~ GP(0, variance x Matern-5/2)

- guess is an optional prediction; b0 and b1 are integrated out under normal priors (Rasmussen and
  Williams, Gaussian Processes for Machine Learning, equation 2.40 with finite B).
- drift is the machines' speed, Ornstein-Uhlenbeck processes in time (`machine_speed`) beside a
  given covariance, and is left out of predictions.
- rough(x), a second Matern-5/2 with fixed short length and variance, models steps.
- Length scales, variance, noise and the scales of drift maximise the log posterior (L-BFGS, gradient
  of equation 5.9).

Log-normal priors (median, spread of the logarithm): length scales (0.6 sqrt(d), 1.3; Hvarfner et
al., ICML 2024), variance of f (1, 1), noise as given. Vectors are (n, d) in [0, 1].
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy.linalg import solve_triangular

from tuner.sampling import blas
from tuner.sampling.arrays import Array, Positions
from tuner.sampling.surrogates import cholesky, machine_speed
from tuner.sampling.surrogates.host_slowdown import HostSlowdown
from tuner.sampling.surrogates.matern_kernel import (
    JITTER,
    LEVEL_SD,
    SLOPE_SD,
    HyperparameterPosterior,
    Hyperparameters,
    Kernel,
    roughness,
)

MIN_SD = 0.5
RETAINED = 2
"""Posteriors that a process keeps: at the candidates, and at what was evaluated."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoisePrior:
    """Prior for the noise of one evaluation."""

    sd: float
    """Median, in units of the targets; 0.05 is 5 % for log targets."""
    spread: float = 1.0
    """Spread of the logarithm; 0.3 after a noise measurement."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Posterior of a process's noiseless latent function at m points, in units of the targets."""

    mean: Array  # (m,)
    sd: Array  # (m,)
    vectors: Array  # (m, d)
    guess: Array | None  # (m,) standardised
    reduced: Array  # (n, m) of the covariance with the evaluations, by their Cholesky factor

    def among(self, places: Positions) -> Posterior:
        """Return that at some of the points."""
        return Posterior(
            mean=self.mean[places],
            sd=self.sd[places],
            vectors=self.vectors[places],
            guess=None if self.guess is None else self.guess[places],
            reduced=self.reduced[:, places],
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class GaussianProcess:
    """Fitted Gaussian process."""

    vectors: Array  # (n, d)
    prior_mean: Array | None  # (n,) standardised
    hyperparameters: Hyperparameters
    log_posterior: float
    """Of the hyper-parameters; NaN if they were taken over."""
    _shift: float
    _factor: float
    _guess_shift: float
    _chol: Array  # (n, n) lower
    _pull: Array  # (n,) K^-1 residuals
    _precision: Array  # (n,) diagonal of K^-1
    _residuals: Array  # (n,)
    _shares: Array  # (n,) of the noise's variance
    _drift: Array | None  # (n, n) standardised covariance of machine drift
    _slow: Array | None  # (n, n) the part of it that lasts for minutes or more, as it is learned
    _next: Array  # (n,) covariance of the next evaluation's drift with that of each target
    rough: float
    kernel: Kernel
    _posteriors: dict[tuple[bytes, bytes | None], Posterior] = dataclasses.field(
        default_factory=dict
    )
    slowdown: HostSlowdown | None = None
    """What CPU times tell of host slowdown, if the process uses them."""

    def hyperparameters_in(self, factor: float) -> Hyperparameters:
        """Return the hyper-parameters for targets that are divided by another factor."""
        return self.hyperparameters.in_unit(self._factor / factor)

    def predict(self, vectors: Array, prior_mean: Array | None = None) -> tuple[Array, Array]:
        """Return mean and sd (m,) of the noiseless latent function at vectors (m, d)."""
        found = self.at(vectors, prior_mean)
        return found.mean, found.sd

    def at(self, vectors: Array, prior_mean: Array | None = None) -> Posterior:
        """Return the posterior of the noiseless latent function at vectors (m, d)."""
        key = (vectors.tobytes(), None if prior_mean is None else prior_mean.tobytes())
        found = self._posteriors.get(key)
        if found is None:
            found = self._at(vectors, prior_mean)
            while len(self._posteriors) >= RETAINED:
                del self._posteriors[next(iter(self._posteriors))]
            self._posteriors[key] = found
        return found

    def _at(self, vectors: Array, prior_mean: Array | None) -> Posterior:
        standard = self._standard(prior_mean)
        cross = self._prior(vectors, standard, self.vectors, self.prior_mean)
        mean = cross @ self._pull + (0.0 if standard is None else standard)
        reduced = self._reduce(cross.T)
        variance = self._prior_variance(standard, len(vectors)) - (reduced**2).sum(axis=0)
        sd = np.sqrt(np.maximum(variance, 1e-12))
        return Posterior(
            mean=self._shift + self._factor * mean,
            sd=self._factor * sd,
            vectors=vectors,
            guess=standard,
            reduced=reduced,
        )

    def covariance(self, one: Posterior, other: Posterior) -> Array:
        """Return the covariance (m, k) between points with these posteriors."""
        prior = self._prior(one.vectors, one.guess, other.vectors, other.guess)
        return np.asarray(self._factor**2 * (prior - one.reduced.T @ other.reduced))

    def next_drift(self, at: Posterior) -> tuple[Array, float]:
        """Return the drift of the next evaluation, as far as it is uncertain.

        Returns:
            Covariance (m,) with the latent function at points, and variance.
        """
        reduced = self._reduce(self._next[:, None])[:, 0]
        variance = self._drift_sd**2 - self._factor**2 * float(reduced @ reduced)
        return -(self._factor**2) * (reduced @ at.reduced), max(0.0, variance)

    def expecting(self, pending: Array, prior_mean: Array | None = None) -> GaussianProcess:
        """Return the process as if running trials (p, d) had their predicted means.

        This is the "kriging believer" (Ginsbourger et al., 2010).
        """
        if not len(pending):
            return self
        standard = self._standard(prior_mean)
        cross = self._prior(pending, standard, self.vectors, self.prior_mean)
        pending_share = (self.told_sd / self._own_sd) ** 2
        return dataclasses.replace(
            self,
            vectors=np.vstack([self.vectors, pending]),
            prior_mean=None
            if self.prior_mean is None or standard is None
            else np.concatenate([self.prior_mean, standard]),
            _residuals=np.concatenate([self._residuals, cross @ self._pull]),
            _shares=np.concatenate([self._shares, np.full(len(pending), pending_share)]),
            _drift=None if self._drift is None else np.pad(self._drift, (0, len(pending))),
            _slow=None if self._slow is None else np.pad(self._slow, (0, len(pending))),
            _next=np.pad(self._next, (0, len(pending))),
        ).condition()

    def drift(self) -> tuple[Array, Array]:
        """Return each target's lasting drift (n,) and its error (n,), in units of the targets.

        It is that over minutes and, with several machines, also their own.
        """
        drift = self._drift if self._slow is None else self._slow
        if drift is None:
            return np.zeros(len(self._pull)), np.zeros(len(self._pull))
        mean = drift @ self._pull
        variance = np.diag(drift) - (self._reduce(drift) ** 2).sum(axis=0)
        return self._factor * mean, self._factor * np.sqrt(np.maximum(variance, 0.0))

    def node_speeds(self, nodes: Positions) -> tuple[Array, Array]:
        """Return the machines' lasting speeds (k,), and their covariance (k, k), in units of the targets.

        Args:
            nodes: (n,) number below k of each target's machine, or -1.
        """
        count = int(nodes.max()) + 1
        variance = self.hyperparameters.node_sd**2
        cross = variance * (nodes[None, :] == np.arange(count)[:, None])
        reduced = self._reduce(cross.T)
        left = variance * np.eye(count) - reduced.T @ reduced
        return self._factor * (cross @ self._pull), self._factor**2 * left

    @property
    def log_density(self) -> float:
        """Log posterior of the hyper-parameters, for targets in their own unit."""
        return self.log_posterior - len(self._residuals) * math.log(self._factor)

    @property
    def noise_sd(self) -> float:
        """Sd of one evaluation, in units of the targets."""
        moment_sd = 0.0 if self.slowdown is None else self.slowdown.sd
        return math.hypot(self._own_sd, moment_sd, self._drift_sd)

    @property
    def told_sd(self) -> float:
        """Sd left once CPU times and drift have explained part of the noise."""
        left_sd = 0.0 if self.slowdown is None else self.slowdown.left_sd
        return math.hypot(self._own_sd, left_sd)

    @property
    def _drift_sd(self) -> float:
        drift = self.hyperparameters.drift_parts(np.zeros(1))
        return self._factor * math.sqrt(sum(float(part[0]) for part in drift))

    @property
    def _own_sd(self) -> float:
        return self._factor * math.exp(self.hyperparameters.noise)

    def leave_one_out(self) -> Array:
        """Return the leave-one-out log predictive density (n,).

        Rasmussen and Williams, equations 5.10 to 5.12.
        """
        return np.asarray(
            0.5 * np.log(self._precision)
            - 0.5 * self._pull**2 / self._precision
            - 0.5 * math.log(2 * math.pi)
            - math.log(self._factor)
        )

    def downweight_outliers(self, degrees: float) -> GaussianProcess:
        """Return the process with less weight on outlying evaluations.

        This is one reweighting step towards Student's t (Lange et al., JASA 84:881, 1989), with
        leave-one-out residuals.
        """
        squared = self._pull**2 / self._precision
        shares = self._shares * np.maximum(1.0, (degrees + squared) / (degrees + 1))
        return dataclasses.replace(self, _shares=shares).condition()

    def _reduce(self, covariance: Array) -> Array:
        reduced = solve_triangular(self._chol, covariance, lower=True, check_finite=False)
        return np.asarray(reduced)

    def _standard(self, prior_mean: Array | None) -> Array | None:
        if self.prior_mean is None:
            return None
        assert prior_mean is not None, "the process was fitted with a guess"
        return np.asarray((prior_mean - self._guess_shift) / self._factor)

    def _prior(self, a: Array, guess_a: Array | None, b: Array, guess_b: Array | None) -> Array:
        smooth, rough = self.kernel.between(a, b)
        found = math.exp(self.hyperparameters.variance) * smooth + LEVEL_SD**2
        if self.rough:
            found += self.rough * rough
        if guess_a is not None and guess_b is not None:
            found += SLOPE_SD**2 * np.outer(guess_a, guess_b)
        return found

    def _prior_variance(self, prior_mean: Array | None, count: int) -> Array:
        found = np.full(count, math.exp(self.hyperparameters.variance) + self.rough + LEVEL_SD**2)
        return found if prior_mean is None else found + SLOPE_SD**2 * prior_mean**2

    def condition(self) -> GaussianProcess:
        """Return the process conditioned on its evaluations."""
        covariance = self._prior(self.vectors, self.prior_mean, self.vectors, self.prior_mean)
        if self._drift is not None:
            covariance += self._drift
        noise = math.exp(2 * self.hyperparameters.noise) * self._shares + JITTER
        covariance[np.diag_indices_from(covariance)] += noise
        chol = cholesky.factor(covariance)
        pull = cholesky.solve(chol, self._residuals)
        precision = cholesky.inverse_diagonal(chol)
        return dataclasses.replace(
            self, _chol=chol, _pull=pull, _precision=precision, _posteriors={}
        )


def fit(
    vectors: Array,
    targets: Array,
    *,
    noise: NoisePrior,
    weights: Array | None = None,
    prior_mean: Array | None = None,
    like: GaussianProcess | None = None,
    variance: float = 1.0,
    drift: Array | None = None,
    at_s: Array | None = None,
    nodes: Positions | None = None,
    drift_sd: float = 0.0,
    node_sd: float = 0.0,
    rough_sd: float = 0.0,
) -> GaussianProcess:
    """Fit the most probable hyper-parameters, or take over those of another process.

    Args:
        vectors: (n, d), n at least 1.
        targets: (n,).
        weights: (n,) noise variances as shares of the common one.
        prior_mean: (n,) predicted targets.
        like: process of some of these evaluations, whose hyper-parameters are taken over.
        variance: prior median of the variance of f, as a share of the targets' variance.
        drift: (n, n) covariance of machine drift that is known already.
        at_s: (n,) times of the evaluations in s; NaN if unknown.
        nodes: (n,) numbers of the machines; None for a single one.
        drift_sd: prior median of the sd of the other drift; 0 for none.
        node_sd: prior median of the sd of the machines' lasting speeds; 0 for a single one.
    """
    shift = float(np.mean(targets))
    factor = max(float(np.std(targets)), MIN_SD * noise.sd)
    guess_shift = 0.0 if prior_mean is None else float(np.mean(prior_mean))
    standard_guess = None if prior_mean is None else (prior_mean - guess_shift) / factor
    residuals = (targets - shift) / factor
    if standard_guess is not None:
        residuals = residuals - standard_guess
    shares = np.ones(len(targets)) if weights is None else weights
    middle = Hyperparameters.medians(
        vectors.shape[1],
        variance=variance,
        noise_sd=noise.sd / factor,
        drift_sd=0.0 if at_s is None else drift_sd / factor,
        node_sd=0.0 if at_s is None else node_sd / factor,
    )
    moments = None if drift is None else drift / factor**2
    rough = (rough_sd / factor) ** 2
    fixed = moments
    if rough:
        fixed = rough * roughness(vectors, vectors) + (0.0 if moments is None else moments)
    times = np.full(len(targets), np.nan) if at_s is None else at_s
    away_s = machine_speed.among(times, nodes)
    if like is not None and len(like.hyperparameters.drift) == len(middle.drift):
        best, height, kernel = like.hyperparameters_in(factor), math.nan, like.kernel
    else:
        target = HyperparameterPosterior(
            vectors, residuals, standard_guess, shares, fixed, middle, noise.spread, away_s
        )
        with blas.single_threaded():
            best, height = target.most_probable()
        kernel = Kernel(best.lengths)
    ahead, slow = np.zeros(len(targets)), None
    if best.drift:
        parts = best.drift_parts(away_s)
        learned, slow = np.asarray(sum(parts)), np.asarray(sum(parts[1:]))
        moments = learned if moments is None else moments + learned
        if nodes is None:  # on several machines, it is not known where the next one will be
            next_s = machine_speed.away(times, _next_s(times))[:, 0]
            ahead = np.asarray(sum(best.drift_parts(next_s)))
    return GaussianProcess(
        vectors=vectors,
        prior_mean=standard_guess,
        hyperparameters=best,
        log_posterior=-height,
        _shift=shift,
        _factor=factor,
        _guess_shift=guess_shift,
        _chol=np.empty((0, 0)),
        _pull=np.empty(0),
        _precision=np.empty(0),
        _residuals=residuals,
        _shares=shares,
        _drift=moments,
        _slow=slow,
        _next=ahead,
        rough=rough,
        kernel=kernel,
    ).condition()


def _next_s(at_s: Array) -> Array:
    """Return the expected time (1,) of the evaluation after those at these times (n,)."""
    known = np.sort(at_s[np.isfinite(at_s)])
    if len(known) < 2:
        return np.array([math.nan if not len(known) else known[-1] + 1.0])
    return np.array([known[-1] + float(np.median(np.diff(known)))])
