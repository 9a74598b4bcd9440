"""A comparison in which another process takes the machine for seconds: how wide its interval is.

    python benchmarks/verdict/disturbed.py [--model resnet] [--runs 5] [--seconds 3]

`tune ab` of batches and of single items; some seconds after its first round as many processes as there are cores
spin for so long. Told are the interval of each run, half of its width in points (15 % less to 21 % less are 3), and
how many slices were driven again. Ends with 1 where one is wider than `MOST` points, or leaves out what the run
without a neighbour says.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import ab_answers
import result

SIDES = ({"batching": {"max_size": 1}}, {"batching": {"max_size": 8}})
MOST = 3.0
"""Points, half of the width."""
AFTER_S = 2.0
"""From the first round on."""
SPIN = "import sys, time\nuntil_s = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < until_s: pass"


def compare(model: str, spun_s: float) -> Mapping[str, Any]:
    """Compare both sides beside a neighbour that spins for so long; returns the answer of `tune ab`.

    Raises:
        SystemExit: it could not be measured.
    """

    def hear(line: str) -> None:
        if spun_s and line.lstrip().startswith("1 A "):
            _disturb(spun_s)

    answer, _ = ab_answers.ask(SIDES, model=model, concurrency=20, max_time_s=60.0, hear=hear)
    return answer


def _disturb(spun_s: float) -> None:
    time.sleep(AFTER_S)
    for _ in range(os.cpu_count() or 1):
        subprocess.Popen([sys.executable, "-c", SPIN, str(spun_s)])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--model", default="resnet")
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--seconds", type=float, default=3.0, help="of the neighbour")
    given = options.parse_args(argv)
    quiet = compare(given.model, 0.0)
    rows, is_met = [], True
    for name, one in [
        ("nobody", quiet),
        *((f"{given.seconds:g} s", compare(given.model, given.seconds)) for _ in range(given.runs)),
    ]:
        low, high = one["interval"]
        half = 50 * (high - low)
        if one is not quiet:
            is_met = is_met and half <= MOST and low <= quiet["ratio"] <= high
        rows.append(
            (
                name,
                f"x {one['ratio']:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{half:.1f}",
                str(one["rounds"]),
                f"{one['seconds']:.0f}",
                str(one["repeats"]),
            )
        )
    head = ("neighbour", "B over A", "95 %", "points", "rounds", "s", "slices again")
    print(result.Table(title=f"{given.model} at 20", head=head, rows=rows).text())
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
