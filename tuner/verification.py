"""The last word: configurations launched side by side, alternating, and their difference with an interval.

Each round launches every configuration once, and the next round in the opposite order (for two: A B
B A), so that a machine that drifts favours neither. Where their engines can be up at once, they are
loaded in slices that alternate within the round as well (`tuner.residents`). A round in which a launch
failed gives no pair; the failure counts for its side (`tuner.advice`). The order follows from the number of a launch
alone, so that a verification that was interrupted goes on behind its last whole round: a round that
the interruption split is launched again, because a drift between the two commands would not fall
out of it. Whether limits are kept is judged by all launches of a configuration together
(`outcomes.tallied`), not by each alone. In: what measures
rounds, and who says after a round whether it is enough. Out: measurements by role,
of equal number, paired by round. What the pairs show is computed in `tuner.measurement`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from tuner.bench import Bench, Launch
from tuner.errors import LaunchFailed
from tuner.measurement import comparison
from tuner.measurement.outcome import Needs
from tuner.residents import Contender, NotResidentError, Residents
from tuner.values import Configuration, FreshStart, Measurement, Trial, Verdict

Report = Callable[[Sequence[FreshStart], Launch], None]
"""Called after each launch with all fresh starts so far, its own the last, and with what it gave."""


IsEnough = Callable[["Rounds"], bool]
"""Whether the rounds so far are enough."""


class MeasuresRounds(Protocol):
    """What a verification needs."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Of the configurations, in the order of the first round."""
        ...

    def round(self, roles: Sequence[str]) -> Iterator[tuple[str, Launch]]:
        """One launch of each role, in this order, whatever happens."""
        ...


class StartsFresh(Protocol):
    """What rounds of fresh starts need of a bench."""

    def launch_fresh(self, configuration: Configuration) -> Launch:
        """Launch a configuration on a server of its own and measure it, whatever happens."""
        ...


class FreshStarts:
    """Rounds in which each configuration is launched on a server of its own, one after the other."""

    def __init__(self, bench: StartsFresh, configurations: Mapping[str, Configuration]) -> None:
        self._bench = bench
        self._configurations = configurations

    @property
    def roles(self) -> tuple[str, ...]:
        """Of the configurations."""
        return tuple(self._configurations)

    def round(self, roles: Sequence[str]) -> Iterator[tuple[str, Launch]]:
        """One launch of each role, in this order."""
        for role in roles:
            yield role, self._bench.launch_fresh(self._configurations[role])


@contextlib.contextmanager
def measuring(
    bench: Bench,
    configurations: Mapping[str, Configuration],
    *,
    round_trip_s: float,
    say: Callable[[str], None],
) -> Iterator[MeasuresRounds]:
    """What measures rounds of configurations: engines that are up at once, else fresh starts in turn.

    Args:
        bench: with its launcher and its load.
        configurations: by role.
        round_trip_s: mean, of the slowest, as far as it is known.
        say: hears why engines are not up at once.
    """
    why = bench.why_alone
    if why is None:
        contenders = {
            role: Contender(launcher=bench.launcher, configuration=configuration)
            for role, configuration in configurations.items()
        }
        try:
            residents = Residents.open(bench, contenders, round_trip_s=round_trip_s)
        except (NotResidentError, LaunchFailed) as error:
            why = str(error)
        else:
            with residents:
                yield residents
            return
    say(f"launched afresh in turn, not side by side: {why}")
    yield FreshStarts(bench, configurations)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What fresh starts gave: one measurement per role and counted round."""

    starts: tuple[FreshStart, ...]
    """All of them, also those that failed."""
    measurements: Mapping[str, tuple[Measurement, ...]]

    @property
    def counted(self) -> int:
        """Rounds in which every launch gave a measurement."""
        return min((len(found) for found in self.measurements.values()), default=0)


def alternate(
    source: MeasuresRounds,
    *,
    rounds: int,
    needs: Needs,
    report: Report,
    done: Sequence[FreshStart] = (),
    is_enough: IsEnough | None = None,
) -> Rounds:
    """Launch all configurations in every round.

    Args:
        source: launches and measures them.
        rounds: in all, with those that are done.
        needs: what each launch must tell.
        report: hears of every launch.
        done: fresh starts of an earlier command, in their order; whole rounds are not launched again.
        is_enough: asked after each round whether it was the last one; None: all rounds.
    """
    roles = source.roles
    starts = list(whole(done, len(roles)))
    waiting = list(order(roles, rounds))
    while len(starts) < len(waiting):
        if starts and is_enough is not None and is_enough(counted(starts, roles)):
            break
        for role, launch in source.round(waiting[len(starts) : len(starts) + len(roles)]):
            starts.append(_judged(role, launch, needs))
            report(tuple(starts), launch)
    return counted(starts, roles)


def round_trip_s(trials: Iterable[Trial], configurations: Iterable[Configuration]) -> float:
    """Mean round trip of the slowest of some configurations, as the trials had it; 0 where none did."""
    wanted = set(configurations)
    means = [
        trial.measured.mean_ms
        for trial in trials
        if trial.configuration in wanted and trial.measured is not None
    ]
    return max(means, default=0.0) / 1e3


def whole(starts: Sequence[FreshStart], size: int) -> Sequence[FreshStart]:
    """Those of whole rounds of `size` launches, without the round that an interruption split."""
    return starts[: len(starts) // size * size]


def _judged(role: str, launch: Launch, needs: Needs) -> FreshStart:
    outcome = launch.outcome
    if launch.measurement is not None:
        outcome = needs.told(launch.measurement)
    is_ok = outcome.status == "ok"
    return FreshStart(
        role=role,
        outcome=outcome,
        measurement=launch.measurement if is_ok else None,
        slices_ms=launch.slices_ms if is_ok else (),
    )


def order(roles: Sequence[str], rounds: int) -> Iterator[str]:
    """Role of each launch: A B B A A B ..."""
    for index in range(rounds):
        yield from roles if index % 2 == 0 else reversed(roles)


def among(starts: Sequence[FreshStart], *roles: str) -> Rounds:
    """The same of some of the roles: what the others did in a round does not count.

    Args:
        starts: of whole rounds.
        roles: those that are looked at.
    """
    return counted([start for start in starts if start.role in roles], roles)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """How default and best are compared by their rounds, in a study and in a replay alike."""

    names: Sequence[str]
    """Of the objectives, which share the error."""
    most: int
    """Pairs that there may be."""
    sd: float
    """Of the logarithms of the pairs' ratios, as the search presumes it."""

    @property
    def rule(self) -> comparison.Rule:
        """When they end, and what they show."""
        return comparison.Rule(most=self.most, sd=self.sd, objectives=len(self.names))

    def is_enough(self, rounds: Rounds) -> bool:
        """Whether the pairs so far end the comparison."""
        both = among(rounds.starts, "default", "best").measurements
        return comparison.is_enough(both["default"], both["best"], self.names, self.rule)

    def verdict(self, rounds: Rounds) -> Verdict | None:
        """What they show; None of too few."""
        pairs = among(rounds.starts, "default", "best")
        if pairs.counted < comparison.LEAST_PAIRS:
            return None
        found = comparison.compare(
            default=pairs.measurements["default"],
            best=pairs.measurements["best"],
            objective=self.names[0],
            second=self.names[1] if len(self.names) > 1 else None,
            rule=self.rule,
        )
        return dataclasses.replace(found, launch_sd=launch_sd(rounds.starts))


def launch_sd(
    starts: Sequence[FreshStart], roles: Sequence[str] = ("default", "best")
) -> float | None:
    """What launches of two roles have of their own, of the logarithm of their ratio (`comparison.excess_sd`).

    Args:
        starts: of whole rounds.
        roles: the two; a round in which one of them failed tells nothing.
    """
    sides = [[start for start in starts if start.role == role] for role in roles]
    pairs = [
        np.log(np.array(second.slices_ms) / np.array(first.slices_ms))
        for first, second in zip(*sides, strict=True)
        if first.slices_ms and len(first.slices_ms) == len(second.slices_ms)
    ]
    pairs = [pair for pair in pairs if np.isfinite(pair).all()]
    return comparison.excess_sd([pair.reshape(-1, 2).mean(axis=1) for pair in pairs])


def counted(starts: Sequence[FreshStart], roles: Sequence[str]) -> Rounds:
    """Fresh starts by role, without the rounds in which one of them failed."""
    found: dict[str, list[Measurement]] = {role: [] for role in roles}
    size = len(roles)
    for first in range(0, len(starts), size):
        seen = {
            start.role: start.measurement
            for start in starts[first : first + size]
            if start.measurement is not None
        }
        if len(seen) == size:
            for role, measurement in seen.items():
                found[role].append(measurement)
    return Rounds(
        starts=tuple(starts),
        measurements={role: tuple(measurements) for role, measurements in found.items()},
    )
