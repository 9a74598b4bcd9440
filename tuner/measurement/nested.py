"""A nested pilot read: what blocks, launches and the time of day bring to a measurement, each with an interval.

In: means of blocks, in launches, of configurations, in rounds; every round launches every configuration
once. Out: three standard deviations on the log scale (0.05 reads as 5 %), the drift, and for every
configuration its own noise drawn towards that of all. Pure.

Model: log(block mean) = configuration + round + launch + block. Rounds, launches and blocks are random;
what all launches of a round share is the time. Estimated by analysis of variance, fitting constants
(Henderson's method III: Searle, Casella and McCulloch, Variance Components, section 5.5), which is
unbiased whatever launches are missing and, where none is, the classical estimator of the balanced design
(and REML wherever no estimate is negative). Intervals are those of `noise`: chi-squared for blocks,
Williams' and Tukey's for launches and rounds.

The variance of one configuration, of five launches, is too rough to be used as it is: a tenth of all
configurations would get an error of little more than half of the true one. So each is drawn towards the common one, as
far as the configurations are alike beyond chance (the empirical Bayes estimator of Smyth, Statistical
Applications in Genetics and Molecular Biology 3, 2004, section 6).
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from tuner.measurement.noise import excess_interval, sd_interval
from tuner.values import Interval

Array = NDArray[np.float64]

_ALIKE = 1e4
"""Prior degrees of freedom from which configurations count as alike."""
_NOTHING = 1e-200
"""A variance that has no logarithm worth the name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PilotLaunch:
    """One launch that worked."""

    configuration: int
    """Its number, from 0."""
    turn: int
    """The round, from 0."""
    started_at: float
    """Seconds, from any origin."""
    blocks: tuple[float, ...]
    """Means of its blocks, all of one length, in any positive unit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """What one source of noise brings."""

    sd: float
    """Standard deviation on the log scale; 0 where nothing is seen beyond what the source below explains."""
    interval: Interval
    degrees: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How much slower the machine was at the end than at the beginning."""

    change: float
    """Of the round trip, by a straight line through the rounds: 0.02 is 2 % slower."""
    interval: Interval
    """Ends None under three rounds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnNoise:
    """The noise of one configuration."""

    mean: float
    """Geometric mean of its launches, in the unit of the blocks."""
    launches: int
    block_sd: float
    """By its own blocks alone."""
    launch_sd: float
    """Of one launch's mean about the configuration and its round, by its own launches alone."""
    pooled_block_sd: float
    """Drawn towards the others'."""
    pooled_launch_sd: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """The noise of every configuration, and how far it was drawn towards the common one."""

    own: tuple[OwnNoise, ...]
    block_weight: float
    """Degrees of freedom that the common variance of blocks counts as; infinite where all are alike."""
    launch_weight: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The three sources."""

    block: Component
    launch: Component
    time: Component
    drift: Drift
    block_s: float
    """Length of the blocks."""

    def launch_variance(self, seconds: float, *, over_time: bool) -> float:
        """Of the log mean of one launch that is measured for so long.

        Args:
            seconds: measured; the variance of blocks falls with their length.
            over_time: whether it is compared with launches of other times; in a pair the time falls out.
        """
        between = self.launch.sd**2 + (self.time.sd**2 if over_time else 0.0)
        return between + self.block.sd**2 * self.block_s / seconds

    def error_after(self, spent_s: float, *, seconds: float, overhead_s: float) -> float:
        """Standard error of one configuration's log mean after launches, spread over time, of so long in all.

        Args:
            spent_s: time for the launches.
            seconds: measured in each.
            overhead_s: what a launch takes beside them.
        """
        launches = spent_s / (overhead_s + seconds)
        return math.sqrt(self.launch_variance(seconds, over_time=True) / launches)

    def best_seconds(self, overhead_s: float) -> float:
        """Length of a trial that tells most for its time: infinite where launches do not differ.

        The optimal allocation between two stages of sampling (Cochran, Sampling Techniques, section
        10.6): what a stage gets goes with the root of its variance over its cost.
        """
        between = self.launch.sd**2 + self.time.sd**2
        if not between:
            return math.inf
        return math.sqrt(self.block.sd**2 * self.block_s * overhead_s / between)


def components(launches: Sequence[PilotLaunch], *, block_s: float) -> Components | None:
    """Split the spread of block means.

    Args:
        launches: at least two configurations in at least two rounds; some may be missing.
        block_s: length of the blocks.

    Returns:
        The components; None where the launches do not tell one source from another.
    """
    table = _Table.of(launches)
    if not (table.within_degrees and table.rest_degrees and table.turn_degrees):
        return None
    block = table.within / table.within_degrees
    blocks = table.blocks_of_launch
    rest = table.rest / table.rest_degrees
    turns = table.between_turns / table.turn_degrees
    launch_variance = max(0.0, rest - block / blocks)
    time_variance = max(0.0, (turns - rest) / table.per_turn)
    return Components(
        block=Component(
            sd=math.sqrt(block),
            interval=sd_interval(block, table.within_degrees),
            degrees=table.within_degrees,
        ),
        launch=Component(
            sd=math.sqrt(launch_variance),
            interval=excess_interval(
                blocks * rest, block, table.rest_degrees, table.within_degrees, blocks
            ),
            degrees=table.rest_degrees,
        ),
        time=Component(
            sd=math.sqrt(time_variance),
            interval=excess_interval(
                turns, rest, table.turn_degrees, table.rest_degrees, table.per_turn
            ),
            degrees=table.turn_degrees,
        ),
        drift=table.drift(),
        block_s=block_s,
    )


def pooled(launches: Sequence[PilotLaunch]) -> Pooled:
    """Every configuration's noise, drawn towards that of all; as for `components`, which must not be None."""
    table = _Table.of(launches)
    block_own, block_degrees = table.block_variances()
    launch_own, launch_degrees = table.launch_variances()
    block_pooled, block_weight = shrunken(block_own, block_degrees)
    launch_pooled, launch_weight = shrunken(launch_own, launch_degrees)
    means = table.configuration_means()
    counts = np.bincount(table.configurations)
    return Pooled(
        own=tuple(
            OwnNoise(
                mean=float(means[place]),
                launches=int(counts[place]),
                block_sd=math.sqrt(block_own[place]),
                launch_sd=math.sqrt(launch_own[place]),
                pooled_block_sd=math.sqrt(block_pooled[place]),
                pooled_launch_sd=math.sqrt(launch_pooled[place]),
            )
            for place in range(len(counts))
        ),
        block_weight=block_weight,
        launch_weight=launch_weight,
    )


def shrunken(variances: Array, degrees: Array) -> tuple[Array, float]:
    """Variances drawn towards a common one, and the degrees of freedom that it counts as.

    Args:
        variances: (k,) estimates, as of normal samples; a zero is drawn wholly by the others.
        degrees: (k,) of freedom of each, above 0.

    Returns:
        (k,) variances; and the weight, infinite where they differ no more than by chance.
    """
    common = float(degrees @ variances / degrees.sum())
    if len(variances) < 2:
        return variances.copy(), 0.0
    if common < _NOTHING:
        return np.full_like(variances, common), math.inf
    # Smyth's equations: the logarithm of a variance has a mean and a variance that are known but for
    # the prior's. A logarithm of nearly nothing would speak for all, so none is below a thousandth.
    logs = np.log(np.maximum(variances, 1e-3 * common))
    levels = logs - special.digamma(degrees / 2) + np.log(degrees / 2)
    excess = float(levels.var(ddof=1) - special.polygamma(1, degrees / 2).mean())
    weight = _weight(excess)
    if math.isinf(weight):
        return np.full_like(variances, common), weight
    prior = math.exp(levels.mean() + float(special.digamma(weight / 2)) - math.log(weight / 2))
    return (weight * prior + degrees * variances) / (weight + degrees), weight


def _weight(excess: float) -> float:
    """Twice the value at which the trigamma function has the variance that chance leaves unexplained."""
    if excess <= float(special.polygamma(1, _ALIKE / 2)):
        return math.inf
    found = optimize.brentq(
        lambda log: math.log(float(special.polygamma(1, math.exp(log)))) - math.log(excess),
        math.log(1e-3),
        math.log(_ALIKE),
    )
    return 2 * math.exp(float(found))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """The launches' means by configuration and round, and the sums of squares."""

    configurations: NDArray[np.int64]  # (n,) of each launch, numbered without gaps
    turns: NDArray[np.int64]  # (n,)
    at_s: Array  # (n,)
    means: Array  # (n,) logarithms
    counts: Array  # (n,) blocks
    squares: Array  # (n,) of the blocks about their launch's mean
    fitted: Array  # (n,) by configuration and round
    effects: Array  # (rounds,) of each round, up to a constant
    rest: float
    rest_degrees: int
    between_turns: float
    turn_degrees: int
    per_turn: float
    """Weight of the variance over time in the mean square between rounds."""

    @classmethod
    def of(cls, launches: Sequence[PilotLaunch]) -> _Table:
        logs = [np.log(np.asarray(launch.blocks, dtype=float)) for launch in launches]
        configurations = _numbered([launch.configuration for launch in launches])
        turns = _numbered([launch.turn for launch in launches])
        means = np.array([log.mean() for log in logs])
        by_configuration = np.eye(configurations.max() + 1)[configurations]
        by_turn = np.eye(turns.max() + 1)[turns]
        alone = np.linalg.lstsq(by_configuration, means, rcond=None)[0]
        both = np.hstack([by_configuration, by_turn])
        together, _, rank, _ = np.linalg.lstsq(both, means, rcond=None)
        fitted = both @ together
        rest = float(((means - fitted) ** 2).sum())
        turn_degrees = int(rank) - by_configuration.shape[1]
        # The trace of Z'MZ, M the projection off the configurations (Henderson's method III).
        shares = by_configuration.T @ by_turn
        counts = by_configuration.sum(axis=0)[:, None]
        trace = float(by_turn.sum() - (shares**2 / counts).sum())
        return cls(
            configurations=configurations,
            turns=turns,
            at_s=np.array([launch.started_at for launch in launches]),
            means=means,
            counts=np.array([len(log) for log in logs], dtype=float),
            squares=np.array([float(((log - log.mean()) ** 2).sum()) for log in logs]),
            fitted=fitted,
            effects=together[by_configuration.shape[1] :],
            rest=rest,
            rest_degrees=len(means) - int(rank),
            between_turns=float(((means - by_configuration @ alone) ** 2).sum()) - rest,
            turn_degrees=turn_degrees,
            per_turn=trace / turn_degrees if turn_degrees else 0.0,
        )

    @property
    def within(self) -> float:
        """Sum of squares of blocks about their launches."""
        return float(self.squares.sum())

    @property
    def within_degrees(self) -> int:
        """Of it."""
        return int(self.counts.sum()) - len(self.counts)

    @property
    def blocks_of_launch(self) -> float:
        """Harmonic mean: what the variance of blocks is divided by in that of launches' means."""
        return len(self.counts) / float((1 / self.counts).sum())

    def drift(self) -> Drift:
        """A straight line through the rounds, from the first launch to the last."""
        rounds = len(self.effects)
        middle_s = np.bincount(self.turns, self.at_s) / np.bincount(self.turns)
        away_s = middle_s - middle_s.mean()
        spread = float(away_s @ away_s)
        slope = float(away_s @ self.effects) / spread
        length_s = float(np.ptp(self.at_s))
        change = math.expm1(slope * length_s)
        if rounds < 3:
            return Drift(change=change, interval=Interval(low=None, high=None))
        left = self.effects - self.effects.mean() - slope * away_s
        error = math.sqrt(float(left @ left) / (rounds - 2) / spread)
        reach = float(special.stdtrit(rounds - 2, 0.975)) * error
        return Drift(
            change=change,
            interval=Interval(
                low=math.expm1((slope - reach) * length_s),
                high=math.expm1((slope + reach) * length_s),
            ),
        )

    def configuration_means(self) -> Array:
        """(k,) geometric means, in the unit of the blocks."""
        sums = np.bincount(self.configurations, self.means)
        return np.asarray(np.exp(sums / np.bincount(self.configurations)))

    def block_variances(self) -> tuple[Array, Array]:
        """(k,) of each configuration's blocks about their launches, and degrees."""
        degrees: Array = np.bincount(self.configurations, self.counts - 1.0).astype(float)
        return np.bincount(self.configurations, self.squares) / degrees, degrees

    def launch_variances(self) -> tuple[Array, Array]:
        """(k,) of each configuration's launches about itself and the rounds, and degrees: its share of all."""
        squares = np.bincount(self.configurations, (self.means - self.fitted) ** 2)
        launches = np.bincount(self.configurations)
        degrees = self.rest_degrees * launches / launches.sum()
        return squares / degrees, degrees


def _numbered(values: Sequence[int]) -> NDArray[np.int64]:
    """The same without gaps, in ascending order."""
    places = {value: place for place, value in enumerate(sorted(set(values)))}
    return np.array([places[value] for value in values])


def usable(launches: Sequence[PilotLaunch]) -> tuple[PilotLaunch, ...]:
    """Those of two blocks or more whose configuration has two of them: the others tell nothing of noise."""
    known = [launch for launch in launches if len(launch.blocks) > 1]
    counts = collections.Counter(launch.configuration for launch in known)
    return tuple(launch for launch in known if counts[launch.configuration] > 1)
