"""A neighbour that takes one or all cores for seconds at a time, beside a recording on a disturbed machine.

    python benchmarks/tables/neighbour.py [--seed 0] [--busy 2] [--idle 10]

Until it is interrupted. Times are exponential: some last a fraction of an evaluation, some several.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time

import numpy as np


def spin(seconds: float) -> None:
    """Keep one core busy for so long."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def main() -> None:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--busy", type=float, default=2.0, help="mean seconds of a burst")
    options.add_argument("--idle", type=float, default=10.0, help="mean seconds between bursts")
    given = options.parse_args()
    rng = np.random.default_rng(given.seed)
    cores = os.cpu_count() or 1
    while True:
        time.sleep(rng.exponential(given.idle))
        seconds = rng.exponential(given.busy)
        spinning = [
            multiprocessing.Process(target=spin, args=(seconds,), daemon=True)
            for _ in range(int(rng.choice([1, cores])))
        ]
        for each in spinning:
            each.start()
        for each in spinning:
            each.join()


if __name__ == "__main__":
    main()
