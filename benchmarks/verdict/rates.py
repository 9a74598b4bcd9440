"""How far measurements of the highest rate of one configuration differ from one another.

    python benchmarks/verdict/rates.py [--model resnet] [--slo-ms 50] [--measurements 10]

What `tune --find-rate` measures in a launch, so many times for the default and three other configurations, in turn,
each on new replicas. Told is the standard deviation of the logarithm. Ends with 1 where one is above `MOST`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import result

from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.workload import FIRST_RATE_PER_S
from tuner.load_generator.plan import OpenLoopPlan
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import MAX_IN_FLIGHT, RATE
from tuner.study import problem
from tuner.values.configuration import Configuration

MOST = 0.10
CONFIGURATIONS: Mapping[str, Configuration] = {
    "default": Configuration({}),
    "single items": Configuration({"batching.max_size": 1}),
    "two replicas": Configuration({"replica.count": 2}),
    "batches of 16, 2 ms": Configuration({"batching.max_size": 16, "batching.timeout_us": 2000}),
}


def measure(
    bench: Evaluator, configurations: Mapping[str, Configuration], count: int
) -> Mapping[str, list[float]]:
    """Measure the highest rate of each, in turn; returns all of them.

    Raises:
        SystemExit: one of them could not be measured.
    """
    found: dict[str, list[float]] = {name: [] for name in configurations}
    for stream in range(count):
        bench.stream = stream
        for name, configuration in configurations.items():
            launch = bench.evaluate(configuration)
            if launch.measurement is None or launch.measurement.rate_per_s is None:
                raise SystemExit(f"{name}: {launch.outcome.reason}")
            found[name].append(launch.measurement.rate_per_s)
            print(f"{name}: {found[name][-1]:.0f} requests/s", file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--model", default="resnet")
    options.add_argument("--slo-ms", type=float, default=50.0)
    options.add_argument("--measurements", type=int, default=10, help="of each configuration")
    given = options.parse_args(argv)
    target = TargetSettings(model=given.model, concurrency=MAX_IN_FLIGHT)
    bench = Evaluator(
        model=given.model,
        concurrency=MAX_IN_FLIGHT,
        settings=MeasurementSettings(objective=RATE, slo_ms=given.slo_ms),
        launcher=problem.launcher_of(target),
        open_load=OpenLoopPlan(rate_per_s=FIRST_RATE_PER_S),
    )
    with bench:
        served = bench.start()
        bench.send(problem.payloads_of(target, problem.find_spec(given.model), served, seed=0))
        found = measure(bench, CONFIGURATIONS, given.measurements)
    spread = {name: float(np.log(rates).std(ddof=1)) for name, rates in found.items()}
    rows = [
        (
            name,
            f"{np.median(rates):.0f}",
            f"{min(rates):.0f} to {max(rates):.0f}",
            f"{100 * spread[name]:.1f} %",
        )
        for name, rates in found.items()
    ]
    head = ("configuration", "requests/s", "lowest to highest", "sd of the logarithm")
    title = f"{given.model}, p99 within {given.slo_ms:g} ms, {given.measurements} launches each"
    print(result.Table(title=title, head=head, rows=rows).text())
    return 0 if max(spread.values()) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
