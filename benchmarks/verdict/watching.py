"""What it costs to watch the machine while two servers are compared, and whether it moves what is measured.

    python benchmarks/verdict/watching.py [--model resnet] [--concurrency 20] [--seconds 60]

The same configuration twice, both up at once, loaded in slices that alternate, as a verdict does. The slices of the
one are watched: processor times of the machine, of the servers and of the load generator are read on both sides of
each. Those of the other are not. Told are the CPU time of reading over the time of the watched slices, and the ratio
of the mean round trips, watched over not. Ends with 1 where it takes `MOST` of a core, or the interval leaves out 1.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import result

from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.interleaving import Arm, InterleavedRounds
from tuner.measurement import comparison, host
from tuner.measurement.host import HostReading
from tuner.measurement.outcome import EvaluationRequirements
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import problem, verification
from tuner.values.configuration import Configuration

MOST = 0.01
ROLES = ("watched", "not")


class Watch:
    """Reads for the first server that it is asked for, and tells what that took; nothing for the second one."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        """CPU time."""
        self._servers: list[int] = []

    def read(self, pids: Iterable[int] = (), beside: Iterable[int] = ()) -> HostReading:
        """In the place of `host.read`."""
        pids = tuple(pids)
        if pids and pids[0] not in self._servers:
            self._servers.append(pids[0])
        if pids and pids[0] != self._servers[0]:
            return HostReading(steal_s=None, cpu_s={})
        before_s = time.thread_time()
        found = _READ(pids, beside)
        self.spent_s += time.thread_time() - before_s
        return found


_READ = host.read


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--model", default="resnet")
    options.add_argument("--concurrency", type=int, default=20)
    options.add_argument("--seconds", type=float, default=60.0)
    given = options.parse_args(argv)
    target = TargetSettings(model=given.model, concurrency=given.concurrency)
    bench = Evaluator(
        model=given.model,
        concurrency=given.concurrency,
        settings=MeasurementSettings(),
        launcher=problem.launcher_of(target),
    )
    settings = bench.settings
    watch = Watch()
    with bench:
        served = bench.start()
        bench.send(problem.payloads_of(target, problem.find_spec(given.model), served, seed=0))
        bench.stop_engine()
        contenders = {
            role: Arm(launcher=bench.launcher, configuration=Configuration({})) for role in ROLES
        }
        with (
            mock.patch.object(host, "read", watch.read),
            InterleavedRounds.open(bench, contenders, latency_s=0.0) as residents,
        ):
            begun_s = time.monotonic()
            rounds = verification.alternate(
                residents,
                rounds=1000,
                needs=EvaluationRequirements.of(settings),
                report=lambda *_: None,
                is_enough=lambda _: time.monotonic() - begun_s > given.seconds,
            )
    ratio, interval = comparison.ratio_interval(
        [one.mean_ms for one in rounds.measurements["watched"]],
        [one.mean_ms for one in rounds.measurements["not"]],
    )
    measured_s = sum(one.seconds for one in rounds.measurements["watched"])
    share = watch.spent_s / measured_s
    rows = [
        (
            str(rounds.complete_rounds),
            f"{100 * share:.2f} %",
            f"x {ratio:.4f}",
            f"{interval.low:.4f} to {interval.high:.4f}",
        )
    ]
    head = ("rounds", "of a core", "watched over not", "95 %")
    title = f"{given.model} at {given.concurrency}"
    print(result.Table(title=title, head=head, rows=rows, left=0).text())
    assert interval.low is not None
    assert interval.high is not None
    return 0 if share < MOST and interval.low <= 1 <= interval.high else 1


if __name__ == "__main__":
    sys.exit(main())
