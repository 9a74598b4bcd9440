"""Measures the study again, unit by unit; `draw.py` draws what is kept in `data/`.

    python benchmarks/study/measure.py --minutes 60
    python benchmarks/study/draw.py

Each unit takes a few minutes and is kept when it is complete; a killed one is measured again. Units
are measured in the order of `units.py`, and no further one begins once the minutes are used. Nothing
else may run beside it.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import launches
import records
import replays
import result
import searches
from searches import Budget
from units import Unit, units

from tuner.errors import TunerError

SHORT = {
    kind: launches.Plan(
        rounds=1, seconds=0.4, warmup_s=0.1, requests=200 if plan.requests else None
    )
    for kind, plan in launches.PLANS.items()
}
"""Plans of a run that only shows that everything works."""


def measured(unit: Unit, budget: Budget, *, is_quick: bool) -> dict[str, Any]:
    """Measure one unit and return its row."""
    if unit.kind in {"search", "repeated"}:
        return searches.searched(unit, budget)
    if unit.kind == "replay":
        return replays.replayed(unit, budget)
    return launches.launched(unit, (SHORT if is_quick else launches.PLANS)[unit.kind])


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Measure the study again.", allow_abbrev=False)
    parser.add_argument("--minutes", type=float, help="begin no unit after these; default: no end")
    parser.add_argument("--only", default="", help="units whose name begins so, as search_resnet")
    parser.add_argument("--list", action="store_true", help="print the units and what is measured")
    parser.add_argument(
        "--data", type=pathlib.Path, default=records.DATA, help="folder of the data"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few trials, to see that it works; needs --data"
    )
    options = parser.parse_args()
    if options.quick and options.data == records.DATA:
        parser.error("--quick: its figures are no results; add --data DIR")
    return options


def main() -> int:
    """Measure what is missing."""
    options = parsed()
    budget = Budget(trials=6, rounds=2) if options.quick else Budget()
    every = [unit for unit in units() if unit.name.startswith(options.only)]
    waiting = [unit for unit in every if not records.path_of(unit, options.data).exists()]
    if options.list:
        for unit in every:
            print(f"{unit.name} {'waits' if unit in waiting else 'measured'}")
        return 0
    begun_s, failures = time.monotonic(), 0
    for number, unit in enumerate(waiting, start=1):
        unit_s = time.monotonic()
        if options.minutes is not None and unit_s - begun_s >= 60 * options.minutes:
            break
        facts = result.machine_facts(("GPy",))
        try:
            found = measured(unit, budget, is_quick=options.quick)
        except TunerError as error:
            failures += 1
            result.say(f"{unit.name} failed: {error}")
            continue
        minutes = (time.monotonic() - unit_s) / 60
        row = {"machine": facts, "minutes": round(minutes, 2), **found}
        records.keep(unit, row, options.data)
        result.say(f"{number}/{len(waiting)} {unit.name}: {minutes:.1f} minutes")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; complete units are kept", file=sys.stderr)
        sys.exit(130)
