"""The last word: configurations launched side by side on fresh servers, alternating, and their
difference with an interval.

Each round launches every configuration once, and the next round in the opposite order (for two: A B
B A), so that a machine that drifts favours neither. A round in which a launch failed does not
count, and is said. In: a bench, configurations by role. Out: measurements by role, of equal number,
paired by round. What the pairs show is computed in `tuner.measurement.comparison`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

from tuner.bench import Launch
from tuner.values import Configuration, Measurement

Report = Callable[[int, str, Launch], None]
"""Called after each launch with its number from 1, the role and what it gave."""


class StartsFresh(Protocol):
    """What a verification needs of a bench."""

    def launch_fresh(self, configuration: Configuration) -> Launch:
        """Launch a configuration on a server of its own and measure it, whatever happens."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What fresh starts gave: one measurement per role and counted round."""

    measurements: Mapping[str, tuple[Measurement, ...]]
    failures: tuple[str, ...]
    """One line for each launch that gave no measurement."""

    @property
    def counted(self) -> int:
        """Rounds in which every launch gave a measurement."""
        return min((len(found) for found in self.measurements.values()), default=0)


def alternate(
    bench: StartsFresh, configurations: Mapping[str, Configuration], *, rounds: int, report: Report
) -> Rounds:
    """Launch all configurations in every round, each on a server of its own."""
    found: dict[str, list[Measurement]] = {role: [] for role in configurations}
    failures: list[str] = []
    number = 0
    for index in range(rounds):
        order = list(configurations.items())
        seen: dict[str, Measurement] = {}
        for role, configuration in order if index % 2 == 0 else reversed(order):
            launch = bench.launch_fresh(configuration)
            number += 1
            report(number, role, launch)
            if launch.measurement is None:
                failures.append(f"{role}: {launch.outcome.reason}")
            else:
                seen[role] = launch.measurement
        if len(seen) == len(configurations):
            for role, measurement in seen.items():
                found[role].append(measurement)
    return Rounds(
        measurements={role: tuple(measurements) for role, measurements in found.items()},
        failures=tuple(failures),
    )
