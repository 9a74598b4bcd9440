"""Whether `tune doctor --noise` finds what emulated machines are made of.

    python benchmarks/verdict/doctor.py [--runs 5]

Machines whose parts are known, each piloted for ten minutes as the command does: 600 launches of four
configurations in a random order, one a second, three blocks of each. Told are the shares of time, launches and
blocks in the variance of the machine, of what was drawn of it in these ten minutes, and as they are found: what
moves in minutes is seen some five times, and a draw may differ from its machine by itself. Ends with 1 where
a share is more than ten points off the machine's.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import result

from tuner.measurement import drift_model
from tuner.measurement.drift_model import Blocks, DriftModel, DriftProcess

LAUNCHES, BLOCKS, EVERY_S, BLOCK_S, CONFIGURATIONS = 600, 3, 1.0, 0.2, 4
MOST_OFF = 0.10
Shares = Mapping[str, float]
MACHINES = {
    "busy": DriftModel(
        quick=DriftProcess(sd=0.07, forgets_s=6.0),
        slow=DriftProcess(sd=0.06, forgets_s=60.0),
        evaluation_sd=0.02,
        block_sd=0.05,
    ),
    "quiet": DriftModel(
        quick=DriftProcess(sd=0.015, forgets_s=5.0),
        slow=DriftProcess(sd=0.01, forgets_s=90.0),
        evaluation_sd=0.005,
        block_sd=0.03,
    ),
    "launches differ": DriftModel(
        quick=DriftProcess(sd=0.03, forgets_s=8.0),
        slow=DriftProcess(sd=0.02, forgets_s=120.0),
        evaluation_sd=0.08,
        block_sd=0.04,
    ),
    "minutes alone": DriftModel(
        quick=DriftProcess(sd=0.001, forgets_s=5.0),
        slow=DriftProcess(sd=0.08, forgets_s=60.0),
        evaluation_sd=0.02,
        block_sd=0.05,
    ),
}


def pilot(course: DriftModel, seed: int) -> tuple[Shares, Shares]:
    """What was drawn in a pilot of ten minutes, and what it finds."""
    rng = np.random.default_rng(seed)
    launch = np.repeat(np.arange(LAUNCHES), BLOCKS)
    at_s = EVERY_S * launch + BLOCK_S * np.tile(np.arange(BLOCKS), LAUNCHES)
    configuration = rng.integers(CONFIGURATIONS, size=LAUNCHES)[launch]
    none = DriftProcess(sd=0.0, forgets_s=1.0)
    parts = {
        "time": dataclasses.replace(course, evaluation_sd=0.0, block_sd=0.0),
        "launch": dataclasses.replace(course, quick=none, slow=none, block_sd=0.0),
        "block": dataclasses.replace(course, quick=none, slow=none, evaluation_sd=0.0),
    }
    drawn = {name: drift_model.draw(part, at_s, launch, rng) for name, part in parts.items()}
    logs = sum(drawn.values()) + configuration
    found = drift_model.fit(
        Blocks(at_s=at_s, logs=logs, evaluation=launch, configuration=configuration)
    )
    assert found is not None
    variances = {name: float(values.var()) for name, values in drawn.items()}
    total = sum(variances.values())
    return {name: one / total for name, one in variances.items()}, found.shares


def off(one: Shares, other: Shares) -> float:
    """By how much the shares differ at most."""
    return max(abs(one[part] - share) for part, share in other.items())


def told(shares: Shares) -> str:
    """In percent."""
    return " / ".join(f"{100 * share:.0f}" for share in shares.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--runs", type=int, default=5, help="of each machine")
    given = options.parse_args(argv)
    rows, worst = [], 0.0
    for name, course in MACHINES.items():
        pilots = [pilot(course, seed) for seed in range(given.runs)]
        off_draw = max(off(found, drawn) for drawn, found in pilots)
        off_machine = max(off(found, course.shares) for _, found in pilots)
        worst = max(worst, off_machine)
        rows.append(
            (
                name,
                told(course.shares),
                ", ".join(f"{told(drawn)} > {told(found)}" for drawn, found in pilots),
                f"{100 * off_draw:.0f}",
                f"{100 * off_machine:.0f}",
            )
        )
    head = (
        "machine",
        "time / launches / blocks, %",
        "drawn > found",
        "off, points",
        "off the machine",
    )
    print(result.Table(title="Pilots of ten minutes", head=head, rows=rows, left=3).text())
    return 0 if worst <= MOST_OFF else 1


if __name__ == "__main__":
    sys.exit(main())
