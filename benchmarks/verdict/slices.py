"""What a comparison of two configurations costs, by the slices that it is loaded in.

    python benchmarks/verdict/slices.py [--model resnet] [--concurrency 20] [--spawner process]
        [--engine engine.yaml] [--seconds 30]

The same configuration twice, so that the true ratio is 1. For each length of slices two servers are up at once and
loaded A B B A for so many seconds, with new replicas for each launch; then they are started afresh in turn, as
where they cannot be up at once. The figure is the *noise rate*: the standard deviation of the logarithm of a
round's ratio, times the root of the seconds that the round took, starts and all. A comparison of T seconds has a
standard error of the rate over the root of T. The last column is that of fresh starts over it, squared: so many
times as long a comparison of fresh starts takes for the same interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import sys
import time
from collections.abc import Sequence

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import result

from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.interleaving import Arm, InterleavedRounds
from tuner.measurement.time_slices import TimeSlices
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import targets, verification
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import RoundEvaluation

LENGTHS_S = (0.1, 0.2, 0.3, 0.5, 1.0)
DROPPED_S = 0.06
QUARTETS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What rounds of one kind gave."""

    rounds: int
    round_s: float
    sd: float
    evaluation_sd: float | None

    @property
    def rate(self) -> float:
        """Standard deviation of a comparison of one second."""
        return self.sd * math.sqrt(self.round_s)


def rounds_for(source: verification.MeasuresRounds, seconds: float) -> Found:
    """Rounds of the same configuration for so long, four of them at least."""
    starts: list[RoundEvaluation] = []
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < seconds or len(starts) < 8:
        order = source.arms if len(starts) % 4 == 0 else tuple(reversed(source.arms))
        starts += [
            RoundEvaluation(
                role=role,
                outcome=launch.outcome,
                measurement=launch.measurement,
                slices_ms=launch.slices_ms,
            )
            for role, launch in source.round(order)
        ]
    took_s = time.monotonic() - begun_s
    counted = verification.count_rounds(starts, source.arms)
    first, second = (
        np.log([one.mean_ms for one in counted.measurements[role]]) for role in source.arms
    )
    return Found(
        rounds=len(first),
        round_s=took_s / len(first),
        sd=float((second - first).std(ddof=1)),
        evaluation_sd=verification.evaluation_sd(starts, source.arms),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--model", default="resnet")
    options.add_argument("--concurrency", type=int, default=20)
    options.add_argument("--spawner", default="process")
    options.add_argument("--engine")
    options.add_argument("--seconds", type=float, default=30.0, help="of each kind")
    given = options.parse_args(argv)
    settings = TargetSettings(
        model=given.model,
        concurrency=given.concurrency,
        spawner=given.spawner,
        **({} if given.engine is None else {"engine": given.engine}),
    )
    target = targets.find_target(settings)
    bench = Evaluator(
        model=given.model,
        concurrency=given.concurrency,
        settings=MeasurementSettings(),
        launcher=target.launcher(settings, say=print),
    )
    with bench:
        served = bench.start()
        bench.send(target.payloads(settings, served, seed=0))
        twice = {"one": Configuration({}), "other": Configuration({})}
        kinds: dict[str, Found] = {}
        contenders = {
            role: Arm(launcher=bench.launcher, configuration=one) for role, one in twice.items()
        }
        with InterleavedRounds.open(bench, contenders, latency_s=0.0) as residents:
            for seconds in LENGTHS_S:
                residents.slices = TimeSlices(
                    seconds=seconds, dropped_s=DROPPED_S, quartets=QUARTETS
                )
                kinds[f"slices of {seconds:g} s"] = rounds_for(residents, given.seconds)
        kinds["fresh starts"] = rounds_for(
            verification.SequentialRounds(bench.evaluate_on_new_server, twice), 2 * given.seconds
        )
    fresh = kinds["fresh starts"].rate
    rows = [
        (
            name,
            f"{one.rounds}",
            f"{one.round_s:.2f}",
            f"{100 * one.sd:.1f} %",
            "-" if one.evaluation_sd is None else f"{100 * one.evaluation_sd:.1f} %",
            f"{100 * one.rate:.1f}",
            f"{(fresh / one.rate) ** 2:.1f}",
        )
        for name, one in kinds.items()
    ]
    head = ("", "rounds", "s each", "sd", "of launches", "% sqrt(s)", "times as quick")
    title = f"{given.model} at {given.concurrency}, {given.engine or given.spawner}"
    print(result.Table(title=title, head=head, rows=rows).text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
