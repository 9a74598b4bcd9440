"""Whether `tune doctor --noise` finds what emulated machines are made of.

    python benchmarks/verdict/doctor.py [--runs 5]

Machines whose parts are known, each piloted for ten minutes as the command does: 600 launches of four
configurations in a random order, one a second, three blocks of each. Told are the shares of time, launches and
blocks in the variance as they are, and as they are found. Ends with 1 where one is more than ten points off.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import result

from tuner.measurement import moments
from tuner.measurement.moments import Blocks, Course, Part

LAUNCHES, BLOCKS, EVERY_S, BLOCK_S, CONFIGURATIONS = 600, 3, 1.0, 0.2, 4
MOST_OFF = 0.10
MACHINES = {
    "busy": Course(
        quick=Part(sd=0.07, forgets_s=6.0),
        slow=Part(sd=0.06, forgets_s=60.0),
        launch_sd=0.02,
        block_sd=0.05,
    ),
    "quiet": Course(
        quick=Part(sd=0.015, forgets_s=5.0),
        slow=Part(sd=0.01, forgets_s=90.0),
        launch_sd=0.005,
        block_sd=0.03,
    ),
    "launches differ": Course(
        quick=Part(sd=0.03, forgets_s=8.0),
        slow=Part(sd=0.02, forgets_s=120.0),
        launch_sd=0.08,
        block_sd=0.04,
    ),
    "minutes alone": Course(
        quick=Part(sd=0.001, forgets_s=5.0),
        slow=Part(sd=0.08, forgets_s=60.0),
        launch_sd=0.02,
        block_sd=0.05,
    ),
}


def pilot(course: Course, seed: int) -> Course:
    """What a pilot of ten minutes finds."""
    rng = np.random.default_rng(seed)
    launch = np.repeat(np.arange(LAUNCHES), BLOCKS)
    at_s = EVERY_S * launch + BLOCK_S * np.tile(np.arange(BLOCKS), LAUNCHES)
    configuration = rng.integers(CONFIGURATIONS, size=LAUNCHES)[launch]
    logs = moments.draw(course, at_s, launch, rng) + configuration
    found = moments.fit(Blocks(at_s=at_s, logs=logs, launch=launch, configuration=configuration))
    assert found is not None
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--runs", type=int, default=5, help="of each machine")
    given = options.parse_args(argv)
    rows, worst = [], 0.0
    for name, course in MACHINES.items():
        true = course.shares
        found = [pilot(course, seed) for seed in range(given.runs)]
        off = max(abs(one.shares[part] - share) for one in found for part, share in true.items())
        worst = max(worst, off)
        told = [" / ".join(f"{100 * share:.0f}" for share in one.shares.values()) for one in found]
        rows.append(
            (
                name,
                " / ".join(f"{100 * share:.0f}" for share in true.values()),
                ", ".join(told),
                f"{100 * off:.0f}",
            )
        )
    head = ("machine", "time / launches / blocks, %", "found", "at most off, points")
    print(result.Table(title="Pilots of ten minutes", head=head, rows=rows, left=3).text())
    return 0 if worst <= MOST_OFF else 1


if __name__ == "__main__":
    sys.exit(main())
