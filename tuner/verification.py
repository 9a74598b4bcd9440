"""The last word: configurations launched side by side on fresh servers, alternating, and their
difference with an interval.

Each round launches every configuration once, and the next round in the opposite order (for two: A B
B A), so that a machine that drifts favours neither. A round in which a launch failed gives no pair;
the failure counts for its side (`tuner.advice`). The order follows from the number of a launch
alone, so that a verification that was interrupted goes on behind its last whole round: a round that
the interruption split is launched again, because a drift between the two commands would not fall
out of it. Whether limits are kept is judged by all launches of a configuration together
(`outcomes.tallied`), not by each alone. In: a bench,
configurations by role, and who says after a round whether it is enough. Out: measurements by role,
of equal number, paired by round. What the pairs show is computed in `tuner.measurement`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from tuner.bench import Launch
from tuner.measurement import comparison
from tuner.measurement.outcome import Needs
from tuner.values import Configuration, FreshStart, Measurement, Verdict

Report = Callable[[Sequence[FreshStart], Launch], None]
"""Called after each launch with all fresh starts so far, its own the last, and with what it gave."""


IsEnough = Callable[["Rounds"], bool]
"""Whether the rounds so far are enough."""


class StartsFresh(Protocol):
    """What a verification needs of a bench."""

    def launch_fresh(self, configuration: Configuration) -> Launch:
        """Launch a configuration on a server of its own and measure it, whatever happens."""
        ...


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
    bench: StartsFresh,
    configurations: Mapping[str, Configuration],
    *,
    rounds: int,
    needs: Needs,
    report: Report,
    done: Sequence[FreshStart] = (),
    is_enough: IsEnough | None = None,
) -> Rounds:
    """Launch all configurations in every round, each on a server of its own.

    Args:
        bench: starts the servers.
        configurations: by role.
        rounds: in all, with those that are done.
        needs: what each launch must tell.
        report: hears of every launch.
        done: fresh starts of an earlier command, in their order; whole rounds are not launched again.
        is_enough: asked after each round whether it was the last one; None: all rounds.
    """
    roles = tuple(configurations)
    starts = list(whole(done, len(roles)))
    waiting = list(order(roles, rounds))
    while len(starts) < len(waiting):
        if starts and is_enough is not None and is_enough(counted(starts, roles)):
            break
        for role in waiting[len(starts) : len(starts) + len(roles)]:
            launch = bench.launch_fresh(configurations[role])
            starts.append(_judged(role, launch, needs))
            report(tuple(starts), launch)
    return counted(starts, roles)


def whole(starts: Sequence[FreshStart], size: int) -> Sequence[FreshStart]:
    """Those of whole rounds of `size` launches, without the round that an interruption split."""
    return starts[: len(starts) // size * size]


def _judged(role: str, launch: Launch, needs: Needs) -> FreshStart:
    outcome = launch.outcome
    if launch.measurement is not None:
        outcome = needs.told(launch.measurement)
    is_ok = outcome.status == "ok"
    return FreshStart(role=role, outcome=outcome, measurement=launch.measurement if is_ok else None)


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
        return comparison.compare(
            default=pairs.measurements["default"],
            best=pairs.measurements["best"],
            objective=self.names[0],
            second=self.names[1] if len(self.names) > 1 else None,
            rule=self.rule,
        )


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
