"""What a comparison can show, and how honest its intervals are, on machines that move as recorded ones did.

    python benchmarks/verdict/emulated.py [--verdicts 2000] [--json]

For each recorded table the course of its machine is fitted to its launches (`tuner.measurement.drift_model`): the
speed over seconds and minutes, launches, blocks. On machines that are emulated by it two ways to compare are laid
out in time, starts and warm-up included: pairs of fresh starts in turn, 1.2 s measured after 0.5 s of warm-up, as
before; and rounds of two servers that are up at once, loaded in alternating slices, as it ships. Both end by the
shipped rule.

- *smallest gain*: the true gain that is called better in four of five comparisons of so many seconds.
- *here and now*: the share of intervals that hold the true ratio, over true ratios of 1, 0.95 and 0.8.
- *on another day*: the share of prediction intervals that hold the ratio of another session, which has moved by
  what the table's own sittings moved, while the interval counts with what all others moved.

Ends with 1 where a row of the targets is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import result
import sessions

from tuner.lab.tables import table_files
from tuner.lab.tables.table import BenchmarkTable
from tuner.measurement import drift_model, sequential
from tuner.measurement.drift_model import Blocks, DriftModel
from tuner.measurement.power import RoundLayout
from tuner.measurement.time_slices import EXPECTED_STARTUP_S, SWITCH_S, TimeSlices
from tuner.study.budget import EXPECTED_START_S

Array = NDArray[np.float64]
GOOD = 0.3
"""Share of the configurations whose launches are fitted: the quicker ones, of which finals and verdicts are."""
SPENT_S = (30.0, 60.0, 120.0)
RATIOS = (1.0, 0.95, 0.8)
BEFORE = TimeSlices(seconds=0.6, dropped_s=0.25, quartets=1)
"""1.2 s of one launch after 0.5 s of warm-up, as two parts that follow one another."""
NOW = TimeSlices.of(latency_s=0.02, startup_s=EXPECTED_STARTUP_S)
RUNS = 400
"""Comparisons of which a smallest gain is the median of."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to compare."""

    slices: TimeSlices
    startup_s: float
    begun_s: float
    """Before the first round."""
    is_side_by_side: bool

    @property
    def round_s(self) -> float:
        """Of both launches."""
        parts = 2 * self.slices.quartets
        switch_s = SWITCH_S if self.is_side_by_side else 0.0
        each_s = parts * (self.slices.seconds + self.slices.dropped_s + switch_s)
        return 2 * (self.startup_s + each_s)

    def rounds_in(self, spent_s: float) -> int:
        """That fit into a time."""
        return max(0, int((spent_s - self.begun_s) / self.round_s))


IN_TURN = Way(slices=BEFORE, startup_s=EXPECTED_START_S, begun_s=0.0, is_side_by_side=False)
SIDE_BY_SIDE = Way(
    slices=NOW,
    startup_s=EXPECTED_STARTUP_S,
    begun_s=2 * EXPECTED_START_S,
    is_side_by_side=True,
)


def course_of(table: BenchmarkTable) -> tuple[DriftModel, float]:
    """Course of the machine during a recording, and the length of its blocks."""
    worked = [launch for launch in table.evaluations if len(launch.blocks) > 1]
    means: dict[object, list[float]] = {}
    for launch in worked:
        means.setdefault(launch.cell, []).append(np.mean([one.mean_ms for one in launch.blocks]))
    good = sorted(means, key=lambda cell: float(np.median(means[cell])))
    chosen = {cell: number for number, cell in enumerate(good[: max(8, int(GOOD * len(good)))])}
    kept = sorted((one for one in worked if one.cell in chosen), key=lambda one: one.started_at)
    block_s = kept[0].blocks[0].seconds
    rows = [
        (
            launch.started_at - kept[0].started_at + launch.startup_s + block.start_s + block_s / 2,
            math.log(block.mean_ms),
            number,
            chosen[launch.cell],
        )
        for number, launch in enumerate(kept)
        for block in launch.blocks
    ]
    at_s, logs, numbers, cells = (np.array(column) for column in zip(*rows, strict=True))
    found = drift_model.fit(Blocks(at_s=at_s, logs=logs, evaluation=numbers, configuration=cells))
    assert found is not None
    return found, block_s


def differences(
    course: DriftModel, block_s: float, way: Way, rounds: int, runs: int, rng: np.random.Generator
) -> Array:
    """(runs, rounds) of the logarithms of ratios of two equal configurations."""
    at_s, weights = RoundLayout(
        number=rounds,
        slices=way.slices,
        startup_s=way.startup_s,
        is_interleaved=way.is_side_by_side,
    ).make_schedule()
    cells = len(at_s) // rounds
    cell_s = 2 * 2 * way.slices.quartets * way.slices.seconds / cells
    speed = course.block_sd * math.sqrt(block_s / cell_s) * rng.normal(size=(runs, len(at_s)))
    kept_s = np.diff(at_s, prepend=at_s[0])
    for part in (course.quick, course.slow):
        value = part.sd * rng.normal(size=runs)
        for place, gap_s in enumerate(kept_s):
            kept = math.exp(-gap_s / part.forgets_s)
            value = kept * value + part.sd * math.sqrt(1 - kept**2) * rng.normal(size=runs)
            speed[:, place] += value
    found = rounds * (speed * weights).reshape(runs, rounds, cells).sum(axis=2)
    return np.asarray(found + math.sqrt(2) * course.evaluation_sd * rng.normal(size=(runs, rounds)))


def estimates_of(drawn: Array, rule: sequential.StoppingRule) -> list[sequential.Estimate]:
    """What each comparison says when it ends."""
    found = []
    for row in drawn.tolist():
        count = next((n for n in sequential.looks(rule.most) if rule.is_enough(row[:n])), len(row))
        found.append(sequential.estimate(row[:count]))
    return found


def smallest_gain(drawn: Array, sd: float) -> float:
    """The true gain that four of five of these comparisons call better."""
    rule = sequential.StoppingRule(most=drawn.shape[1], sd=sd)

    def shown(gain: float) -> float:
        return float(
            np.mean([one.high < 0 for one in estimates_of(drawn + math.log1p(-gain), rule)])
        )

    low, high = 0.0, 0.9
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if shown(middle) < 0.8 else (low, middle)
    return high


def moved_by(tables: dict[str, BenchmarkTable]) -> dict[str, float]:
    """Return the change of ratios between sessions by table, for the tables that have one."""
    found = {name: sessions.within(table)[1] for name, table in tables.items()}
    for names in sessions.PAIRS:
        _, sd = sessions.between(*(tables[name] for name in names))
        for name in names:
            known = [sd] if math.isnan(found[name]) else [sd, found[name]]
            found[name] = math.sqrt(float(np.mean(np.square(known))))
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--verdicts", type=int, default=2000, help="of each table")
    options.add_argument("--json", action="store_true")
    given = options.parse_args(argv)
    folders = sorted(path.parent for path in sessions.TABLES.glob("*/histograms.csv.gz"))
    tables = {path.name: table_files.read(path) for path in folders}
    moved = moved_by(tables)
    rng = np.random.default_rng(0)
    rows, data, is_met = [], {}, True
    covered: list[float] = []
    later: list[float] = []
    for name, table in tables.items():
        course, block_s = course_of(table)
        gains: dict[str, list[float]] = {}
        for label, way in (("before", IN_TURN), ("now", SIDE_BY_SIDE)):
            for spent_s in SPENT_S:
                rounds = way.rounds_in(spent_s)
                drawn = differences(course, block_s, way, rounds, RUNS, rng)
                gains.setdefault(label, []).append(smallest_gain(drawn, float(drawn.std())))
        here, there, widths = [], [], []
        others = [sd for other, sd in moved.items() if other != name]
        tau = math.sqrt(float(np.mean(np.square(others))))
        for ratio in RATIOS:
            truth = math.log(ratio)
            runs = given.verdicts // len(RATIOS)
            drawn = differences(course, block_s, SIDE_BY_SIDE, 30, runs, rng)
            rule = sequential.StoppingRule(most=30, sd=float(drawn.std()))
            for one in estimates_of(drawn + truth, rule):
                here.append(one.low <= truth <= one.high)
                reach = float(special.stdtrit(len(others) - 1, 0.975)) * tau
                low = one.value - math.hypot(one.value - one.low, reach)
                high = one.value + math.hypot(one.high - one.value, reach)
                there.append(low <= truth + moved[name] * rng.normal() <= high)
                widths.append((high - low) / 2)
        covered.append(float(np.mean(here)))
        later.append(float(np.mean(there)))
        is_met &= covered[-1] >= 0.92 and all(
            now <= before / 2 for before, now in zip(gains["before"], gains["now"], strict=True)
        )
        data[name] = {
            "course": dataclasses.asdict(course),
            "gains": gains,
            "here": covered[-1],
            "between_session_interval": later[-1],
            "tau": tau,
            "half_width": float(np.median(widths)),
        }
        rows.append(
            (
                name,
                " / ".join(_percent(gain) for gain in gains["before"]),
                " / ".join(_percent(gain) for gain in gains["now"]),
                _percent(covered[-1]),
                _percent(later[-1]),
                _percent(float(np.median(widths))),
            )
        )
    overall, another = float(np.mean(covered)), float(np.mean(later))
    is_met &= 0.94 <= overall <= 0.96 and 0.93 <= another <= 0.97
    rows.append(("all", "", "", f"{100 * overall:.1f} %", f"{100 * another:.1f} %", ""))
    head = (
        "table",
        "before: gain in 30 / 60 / 120 s",
        "now",
        "here and now",
        "another day",
        "its half width",
    )
    if given.json:
        print(json.dumps({"tables": data, "here": overall, "between_session_interval": another}))
    else:
        print(result.Table(title="Comparisons, emulated", head=head, rows=rows).text())
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
