"""Measures what the study's figures show; `draw.py` draws them from what is kept in `data/`.

    python benchmarks/study/measure.py --figure b --model resnet
    python benchmarks/study/draw.py

Figures, each with the launches or searches of `points.py` and `searches.py`:

    a         round trips one by one at 5 and 20 concurrent requests
    b         mean round trip at 1 to 60 concurrent requests
    c, e      one random and one guided search at 20, winners re-measured
    d         the same at each concurrency from 1 to 60
    batch     100,000 queries at 20 concurrent, by the size of a batch (the Clipper review)
    replicas  the same, by the number of replicas
    slo       the same, by the latency objective of adaptive batching

What is in `data/` is not measured again, so that a killed run goes on where it was; a larger
`--rounds` adds rounds. `--spawner docker` runs replicas in containers (`replica.spawner`). Progress goes
to stderr. Nothing else may run beside it.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import result
from points import CONCURRENCIES, QUERIES, SEARCHED, Point, points
from records import DATA, Records
from searches import Order, SearchFailed, searched

from tuner.errors import TunerError
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.launching import machine
from tuner.launching.engine_process import LuthierLauncher
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import problem
from tuner.values.configuration import Configuration

SEARCHES = {"c": (SEARCHED,), "e": (SEARCHED,), "d": CONCURRENCIES}
REVIEW = ("batch", "replicas", "slo")
MOST_KEPT = 1_500
"""Single round trips that are kept of a launch."""


def default_of(model: str) -> Configuration:
    """The default configuration of the model's bundled space on this machine."""
    target = TargetSettings(model=model, concurrency=1)
    card = problem.find_spec(model)
    file = problem.find_space(target, card)
    if file is None:
        raise TunerError(f"{model} has no bundled search space")
    environment = problem.environment_of(target, machine.read(), card)
    return problem.bind_space(file.space, environment, limits="enforced").default()


def row_of(point: Point, round_: int, launch: Evaluation) -> dict[str, Any]:
    """What is kept of one launch."""
    row: dict[str, Any] = {
        "key": {**point.key, "round": round_},
        "configuration": dict(point.configuration),
        "status": launch.outcome.status,
        "reason": launch.outcome.reason,
    }
    measured = launch.measurement
    if measured is None:
        return row
    names = ("mean_ms", "p50_ms", "p95_ms", "p99_ms", "spread_ms", "throughput_per_s", "seconds")
    row |= {name: round(getattr(measured, name), 4) for name in names}
    row |= {"requests": measured.requests, "errors": measured.errors}
    row["peak_memory_mb"] = measured.noise.peak_memory_mb
    if point.is_sampled and launch.records is not None:
        records = launch.records
        is_kept = (records.finished_s > measured.warmup_s) & (records.status == 200)
        begun_s = records.started_s[is_kept][:MOST_KEPT]
        took_ms = 1e3 * (records.finished_s[is_kept][:MOST_KEPT] - begun_s)
        row["begun_s"] = [round(float(value), 4) for value in begun_s - measured.warmup_s]
        row["took_ms"] = [round(float(value), 3) for value in took_ms]
    return row


def measure_points(options: argparse.Namespace, records: Records) -> None:
    """Launch every point in every round that is not kept yet; rounds alternate their order."""
    every = points(records.figure, default_of(options.model))
    wanted = [
        (point, round_)
        for round_ in range(options.rounds)
        for point in (every if round_ % 2 == 0 else every[::-1])
        if not records.has({**point.key, "round": round_})
    ]
    if not wanted:
        return
    requests = options.requests if records.figure in REVIEW else None
    settings = MeasurementSettings(
        requests=requests, seconds=options.seconds, warmup_s=options.warmup
    )
    target = TargetSettings(model=options.model, concurrency=SEARCHED)
    card = problem.find_spec(options.model)
    facts = result.machine_facts(())
    bench = Evaluator(
        model=options.model,
        concurrency=SEARCHED,
        settings=settings,
        launcher=LuthierLauncher(options.model, options.spawner),
    )
    with bench:
        bench.send(problem.payloads_of(target, card, bench.start(), seed=0))
        for number, (point, round_) in enumerate(wanted, start=1):
            bench.concurrency = point.concurrency
            begun_s = time.monotonic()
            launch = bench.evaluate(Configuration(point.configuration))
            records.append(row_of(point, round_, launch), facts)
            told = launch.outcome.reason or f"{records.rows[-1]['mean_ms']:.3g} ms mean"
            took_s = time.monotonic() - begun_s
            name = f"{records.figure} {records.name} {number}/{len(wanted)}"
            result.say(f"{name} {dict(point.key)} round {round_}: {told} ({took_s:.1f} s)")


def measure_searches(options: argparse.Namespace, records: Records) -> None:
    """Search at every concurrency, with every seed, that is not kept yet."""
    for seed in range(options.seed, options.seed + options.repeats):
        for concurrency in options.at or SEARCHES[options.figure]:
            if records.has({"concurrency": concurrency, "seed": seed}):
                continue
            order = Order(
                model=options.model,
                spawner=options.spawner,
                concurrency=concurrency,
                guided=options.guided,
                trials=options.trials,
                seed=seed,
                rounds=options.rounds,
                measurement=MeasurementSettings(seconds=options.seconds, warmup_s=options.warmup),
            )
            result.say(f"search of {records.name} at {concurrency}, seed {seed}")
            records.append(searched(order), result.machine_facts(()))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Measure what a figure of the study shows.", allow_abbrev=False
    )
    parser.add_argument("--figure", required=True, choices=("a", "b", *SEARCHES, *REVIEW))
    parser.add_argument("--model", default="resnet", help="bundled model; default resnet")
    parser.add_argument("--spawner", choices=("process", "docker"), default="process")
    parser.add_argument(
        "--rounds", type=int, help="launches of each point; default 5, review 1, winners 10"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="measured in a launch; default 2"
    )
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds; default 0.5")
    parser.add_argument("--requests", type=int, default=QUERIES, help="of a launch of the review")
    parser.add_argument("--trials", type=int, default=50, help="of each search; default 50")
    parser.add_argument("--guided", default="gp", help="sampler beside random; default gp")
    parser.add_argument("--repeats", type=int, default=1, help="searches, each with its seed")
    parser.add_argument("--seed", type=int, default=0, help="of the first search; default 0")
    parser.add_argument(
        "--at", type=int, nargs="+", help="concurrencies of figure d; default: the study's eight"
    )
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder of the data")
    options = parser.parse_args()
    if options.at and options.figure != "d":
        parser.error(
            f"--at: figure {options.figure} has its own concurrencies; only d has a choice"
        )
    if options.rounds is None:
        options.rounds = 10 if options.figure in SEARCHES else 1 if options.figure in REVIEW else 5
    return options


def main() -> int:
    """Measure what is missing."""
    options = parsed()
    kind = "search" if options.figure in SEARCHES else options.figure
    records = Records(kind, options.model, options.spawner, options.data)
    begun_s = time.monotonic()
    try:
        (measure_searches if kind == "search" else measure_points)(options, records)
    except (TunerError, SearchFailed) as error:
        print(f"measure.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; {len(records.rows)} rows are in {records.path}", file=sys.stderr)
        return 130
    result.say(f"{records.path}: {len(records.rows)} rows, {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
