"""Realistic studies from a seeded toy model of a server, for reports, exports and comparisons.

The toy: N clients in a closed loop, replicas with a CPU quota, batches whose cost has a fixed and a
per-item part, a memory need that grows with batch and threads. Launches differ by 4 %, as on a
small machine. A study is the default configuration, a random initial design, guided trials (small
steps from the best so far), and the alternating re-measurement of default and best. Nothing here is
measured: figures are plausible, not true.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from serving.values import Signature, TensorSpec
from tuner.measurement.comparison import between_session_interval
from tuner.metrics import objective as objectives
from tuner.metrics import tail_latency
from tuner.values.configuration import Configuration, Value
from tuner.values.histogram import LatencyHistogram
from tuner.values.interval import Interval
from tuner.values.measurement import Block, HostNoise, Measurement
from tuner.values.request_records import RequestRecords
from tuner.values.round_evaluation import FailureCount
from tuner.values.sampler_comparison import ComparisonRecord, SamplerDifference, SamplerRun
from tuner.values.study_record import KnobInfo, StudyRecord
from tuner.values.trial import OK, Cause, Outcome, Trial
from tuner.values.verdict import Verdict, VerdictOutcome

LAUNCH_SD = 0.04
CORES = 4
STARTED_AT = 1_790_000_000.0  # Unix time of the first trial

KNOBS = (
    KnobInfo(name="replica.count", unit="replicas", scale="linear", values=(1, 2, 3, 4), default=1),
    KnobInfo(
        name="replica.cpu", unit="cores", scale="log", values=(0.25, 0.5, 1.0, 2.0), default=1.0
    ),
    KnobInfo(
        name="replica.memory_mb",
        unit="MiB",
        scale="log",
        values=(128, 256, 512, 1024, 2048),
        default=1024,
    ),
    KnobInfo(name="replica.threads", unit="threads", scale="log", values=(1, 2, 4), default=1),
    KnobInfo(
        name="batching.max_size",
        unit="items",
        scale="log",
        values=(1, 2, 4, 8, 16, 32, 64),
        default=8,
    ),
    KnobInfo(
        name="batching.timeout_us",
        unit="us",
        scale="log",
        values=(0, 100, 200, 500, 1000, 2000, 5000, 10_000),
        default=0,
    ),
    KnobInfo(
        name="routing.policy",
        unit="",
        scale="linear",
        values=("least-loaded", "round-robin"),
        default="least-loaded",
    ),
)

ENVIRONMENT: dict[str, Any] = {
    "host": {
        "system": "Linux 6.8.0",
        "cpu": "Toy CPU @ 2.80GHz",
        "cores": CORES,
        "memory_mb": 16_384,
    },
    "versions": {"python": "3.11.7", "luthier": "0.1.0", "onnxruntime": "1.31.1"},
    "limits": "enforced",
    "gpu": None,
}
SIGNATURE = Signature(
    inputs=(TensorSpec(name="image", datatype="UINT8", shape=(-1, 3, 32, 32)),),
    outputs=(TensorSpec(name="scores", datatype="FP32", shape=(-1, 10)),),
    platform="onnxruntime_onnx",
)
NOTES = (
    "The payloads are synthetic (random tensors in the model's shape); real inputs may differ.",
    "accelerator.clock_mhz left out: this machine has no GPU whose clock can be set.",
    "replica.count was narrowed to 1..4: this machine has 4 cores.",
)


def default() -> Configuration:
    """Every knob at its default."""
    return Configuration({knob.name: knob.default for knob in KNOBS})


def failure(configuration: Configuration) -> tuple[Cause, str] | None:
    """Why a configuration cannot work, if it cannot."""
    needed_mb = (
        110
        + 9 * int(configuration["batching.max_size"])
        + 40 * int(configuration["replica.threads"])
    )
    limit_mb = int(configuration["replica.memory_mb"])
    if needed_mb > limit_mb:
        return "oom", f"replica 0 was ended by the kernel at its memory limit of {limit_mb} MiB"
    if float(configuration["replica.cpu"]) <= 0.25 and int(configuration["replica.threads"]) >= 4:
        return "timeout", "no replica was ready after 30 s (replica.ready_timeout_s)"
    return None


def mean_ms(configuration: Configuration, concurrency: int) -> float:
    """Mean latency of the toy server, without noise."""
    count = int(configuration["replica.count"])
    threads = int(configuration["replica.threads"])
    cpu = min(float(configuration["replica.cpu"]), CORES / count, float(threads) + 0.2)
    batch = min(int(configuration["batching.max_size"]), math.ceil(concurrency / count))
    exec_ms = (3.0 + 2.2 * batch) / (cpu * threads ** (-0.15))
    wait_ms = 0.0
    if batch < int(configuration["batching.max_size"]):
        wait_ms = int(configuration["batching.timeout_us"]) / 1000 * 0.8
    uneven = 1.08 if configuration["routing.policy"] == "round-robin" and count > 1 else 1.0
    return 0.6 + uneven * (concurrency / (count * batch) * exec_ms) + wait_ms


def measurement(
    mean: float, rng: np.random.Generator, *, concurrency: int = 20, seconds: float = 2.0
) -> Measurement:
    """One launch whose true mean is `mean` ms, with launch noise and block intervals."""
    launch = mean * math.exp(rng.normal(0.0, LAUNCH_SD))
    throughput = concurrency / launch * 1000
    requests = max(1, int(throughput * seconds))
    count = max(1, int(seconds / 0.5))
    levels = launch * np.exp(rng.normal(0.0, 0.05, count))
    half = 2.0 * float(levels.std(ddof=1) if count > 1 else 0.05 * launch) / math.sqrt(count)
    blocks = tuple(
        Block(
            start_s=0.5 * index,
            seconds=0.5,
            requests=requests // count,
            mean_ms=float(level),
            p50_ms=float(level) * 0.95,
            p99_ms=float(level) * 2.0,
            throughput_per_s=concurrency / float(level) * 1000,
        )
        for index, level in enumerate(levels)
    )
    p99 = launch * 1.9
    # Log-normal with that median and that p99.
    normal = special.ndtri((np.arange(requests) + 0.5) / requests)
    took_ms = 0.95 * launch * np.exp(math.log(2) / 2.326 * normal)
    return Measurement(
        requests=requests,
        errors=0,
        seconds=seconds,
        mean_ms=launch,
        mean_interval=Interval(low=launch - half, high=launch + half),
        p50_ms=launch * 0.95,
        p50_interval=Interval(low=launch * 0.93, high=launch * 0.97),
        p95_ms=launch * 1.5,
        p95_interval=Interval(low=launch * 1.4, high=launch * 1.6),
        p99_ms=p99,
        p99_interval=Interval(low=p99 * 0.9, high=p99 * 1.2 if requests >= 510 else None),
        throughput_per_s=throughput,
        little_error=abs(float(rng.normal(0.0, 0.006))),
        warmup_s=0.5,
        blocks=blocks,
        spread_ms=launch * 0.9,
        spread_interval=Interval(low=launch * 0.8, high=launch * 1.1),
        p99_effective=0.9 * requests,
        histogram=LatencyHistogram.of(took_ms),
        noise=HostNoise(steal_s=0.01, throttled_s=0.2, client_cpu_s=0.3, peak_memory_mb=140.0),
    )


def request_records(
    mean: float, rng: np.random.Generator, *, concurrency: int = 20, seconds: float = 2.5
) -> RequestRecords:
    """A closed loop: each connection sends when its last was answered; the first are slow."""
    started: list[float] = []
    finished: list[float] = []
    connection: list[int] = []
    for index in range(concurrency):
        now = 0.0
        while now < seconds:
            took = mean / 1000 * float(rng.gamma(8.0, 1 / 8.0)) * (1 + 2.0 * math.exp(-now / 0.15))
            if rng.random() < 0.01:
                took += mean / 1000 * float(rng.exponential(1.5))
            started.append(now)
            finished.append(now + took)
            connection.append(index)
            now += took
    order = np.argsort(finished, kind="stable")
    status = np.full(len(order), 200, dtype=np.int16)
    status[rng.random(len(order)) < 0.0005] = 503
    return RequestRecords(
        intended_s=np.asarray(started)[order],
        started_s=np.asarray(started)[order],
        finished_s=np.asarray(finished)[order],
        status=status,
        connection=np.asarray(connection, dtype=np.int32)[order],
    )


def trial(
    number: int,
    configuration: Configuration,
    origin: str,
    rng: np.random.Generator,
    *,
    concurrency: int = 20,
    objective: str = "mean",
) -> Trial:
    """Launch the toy server once."""
    broken = failure(configuration)
    measured: Measurement | None = None
    outcome = OK
    if broken is not None:
        cause, reason = broken
        outcome = Outcome(status="infeasible", cause=cause, reason=reason)
    elif origin != "default" and rng.random() < 0.03:
        outcome = Outcome(
            status="failed",
            cause="errors",
            reason="31 of 512 requests were answered 500: the model raised",
        )
    else:
        measured = measurement(mean_ms(configuration, concurrency), rng, concurrency=concurrency)
        if objective == "p99" and not measured.has_p99:
            outcome = Outcome(status="failed", cause="short", reason=tail_latency.too_few(measured))
            measured = None
    return Trial(
        number=number,
        configuration=configuration,
        outcome=outcome,
        measurement=measured,
        origin=origin,
        objective=None
        if measured is None
        else objectives.find_objective(objective).to_minimise(measured),
        startup_s=float(rng.uniform(0.05, 0.6)),
        overhead_s=float(rng.uniform(0.1, 0.3)),
        started_at=STARTED_AT + 4.0 * number,
    )


def study(
    *,
    seed: int = 0,
    trials: int = 51,
    initial: int = 25,
    name: str = "resnet-20",
    concurrency: int = 20,
    objective: str = "mean",
    has_verdict: bool = True,
    has_records: bool = True,
    notes: tuple[str, ...] = NOTES,
) -> StudyRecord:
    """A whole study: `trials` launches, the default first; verification is not in that count."""
    rng = np.random.default_rng(seed)
    done: list[Trial] = []
    for number in range(trials):
        origin = "default" if number == 0 else "initial" if number <= initial else "guided"
        configuration = default() if number == 0 else _proposed(done, origin, rng)
        done.append(
            trial(number, configuration, origin, rng, concurrency=concurrency, objective=objective)
        )
    winner = _winner(done)
    best = None if winner is None else winner.configuration
    is_changed = best is not None and best != default()
    verdict = None
    if best is not None and is_changed and has_verdict:
        verdict = _verdict(best, objective, concurrency, rng)
    records = _records(best, concurrency, rng) if has_records and best else {}
    if verdict is not None and records:
        verdict = dataclasses.replace(
            verdict,
            default=(_fitted(verdict.default[0], records["default"]), *verdict.default[1:]),
            best=(_fitted(verdict.best[0], records["best"]), *verdict.best[1:]),
        )
    return StudyRecord(
        name=name,
        folder=f"/srv/runs/{name}",
        model="resnet",
        concurrency=concurrency,
        sampler="gp",
        objective=objective,
        knobs=KNOBS,
        trials=tuple(done),
        default=default(),
        best=best,
        verdict=verdict,
        failure_counts={}
        if verdict is None
        else {"default": FailureCount(evaluations=5), "best": FailureCount(evaluations=5)},
        notes=notes,
        environment=ENVIRONMENT,
        settings={"model": "resnet", "concurrency": concurrency, "trials": trials, "seed": seed},
        records=records,
        signature=SIGNATURE,
    )


def all_failed(*, trials: int = 8) -> StudyRecord:
    """A study in which no configuration works, the default included."""
    reason = "replica 0 was ended by the kernel at its memory limit of 64 MiB"
    whole = study(trials=trials, has_verdict=False, has_records=False)
    broken = tuple(
        dataclasses.replace(
            item,
            outcome=Outcome(status="infeasible", cause="oom", reason=reason),
            measurement=None,
            objective=None,
        )
        for item in whole.trials
    )
    return dataclasses.replace(whole, trials=broken, best=None)


def comparison(
    *,
    seed: int = 0,
    samplers: tuple[str, ...] = ("random", "gp"),
    repeats: int = 5,
    trials: int = 30,
    is_remeasured: bool = True,
) -> ComparisonRecord:
    """Searches with the toy server; "random" makes no guided trials."""
    runs: list[SamplerRun] = []
    for repeat in range(repeats):
        for index, sampler in enumerate(samplers):
            initial = trials if sampler == "random" else trials // 3
            record = study(
                seed=1000 * seed + 10 * repeat + index,
                trials=trials,
                initial=initial,
                name=f"compare-{sampler}-{repeat}",
                has_verdict=False,
                has_records=False,
            )
            runs.append(_run(record, sampler, repeat, is_remeasured=is_remeasured))
    pairs = [(first, second) for i, first in enumerate(samplers) for second in samplers[i + 1 :]]
    return ComparisonRecord(
        name="compare-resnet-20",
        model="resnet",
        concurrency=20,
        objective="mean",
        samplers=samplers,
        repeats=repeats,
        trials=trials,
        runs=tuple(runs),
        differences=tuple(_difference(runs, *pair) for pair in pairs) if is_remeasured else (),
        notes=NOTES[:1],
        environment=ENVIRONMENT,
        settings={"model": "resnet", "samplers": list(samplers), "repeats": repeats, "seed": seed},
    )


def _proposed(done: list[Trial], origin: str, rng: np.random.Generator) -> Configuration:
    def draw(knob: KnobInfo) -> Value:
        return knob.values[int(rng.integers(len(knob.values)))]

    winner = _winner(done)
    if origin == "initial" or winner is None:
        return Configuration({knob.name: draw(knob) for knob in KNOBS})
    values = dict(winner.configuration)
    for index in rng.choice(len(KNOBS), size=2, replace=False):
        values[KNOBS[index].name] = draw(KNOBS[index])
    return Configuration(values)


def _winner(done: list[Trial]) -> Trial | None:
    able = [item for item in done if item.objective is not None]
    return min(able, key=lambda item: item.objective or 0.0) if able else None


def _verdict(
    best: Configuration, objective: str, concurrency: int, rng: np.random.Generator
) -> Verdict:
    launches = [
        tuple(
            measurement(mean_ms(configuration, concurrency), rng, concurrency=concurrency)
            for _ in range(5)
        )
        for configuration in (default(), best)
    ]
    first, second = launches
    ratio, interval = _paired([m.mean_ms for m in second], [m.mean_ms for m in first])
    throughput, throughput_interval = 1 / ratio, _inverse(interval)
    shown, shown_interval = (
        (throughput, throughput_interval) if objective == "throughput" else (ratio, interval)
    )
    outcome = _outcome(interval)
    text = {
        "better": f"The best configuration is better than the default: {objective} x {shown:.2f}.",
        "worse": f"The best is worse than the default: {objective} x {shown:.2f}.",
        "no difference shown": "No difference between best and default could be shown.",
    }[outcome]
    return Verdict(
        outcome=outcome,
        ratio=shown,
        interval=shown_interval,
        between_session_interval=between_session_interval(shown, shown_interval),
        throughput_ratio=throughput,
        throughput_interval=throughput_interval,
        p99_ratio=ratio,
        p99_interval=interval,
        default=first,
        best=second,
        text=text,
    )


def _records(
    best: Configuration, concurrency: int, rng: np.random.Generator
) -> dict[str, RequestRecords]:
    return {
        "default": request_records(mean_ms(default(), concurrency), rng, concurrency=concurrency),
        "best": request_records(mean_ms(best, concurrency), rng, concurrency=concurrency),
    }


def _fitted(measured: Measurement, records: RequestRecords) -> Measurement:
    """The measurement with the count of the requests that were answered after its warm-up."""
    end = measured.warmup_s + measured.seconds
    is_inside = (records.finished_s >= measured.warmup_s) & (records.finished_s < end)
    return dataclasses.replace(measured, requests=int((is_inside & (records.status == 200)).sum()))


def _run(record: StudyRecord, sampler: str, repeat: int, *, is_remeasured: bool) -> SamplerRun:
    rng = np.random.default_rng([repeat, len(sampler)])
    objectives = tuple(item.objective for item in record.trials)
    best_so_far: list[float | None] = []
    for value in objectives:
        seen = [known for known in (*best_so_far[-1:], value) if known is not None]
        best_so_far.append(min(seen) if seen else None)
    winner = record.best
    remeasured: tuple[Measurement, ...] = ()
    if is_remeasured and winner is not None:
        remeasured = tuple(measurement(mean_ms(winner, 20), rng) for _ in range(3))
    return SamplerRun(
        sampler=sampler,
        repeat=repeat,
        seed=repeat,
        study=record.name,
        objectives=objectives,
        best_so_far=tuple(best_so_far),
        wall_s=float(rng.uniform(90, 140)),
        seconds=tuple(3.0 * count for count in range(1, len(objectives) + 1)),
        winner=winner,
        remeasured=remeasured,
    )


def _difference(runs: list[SamplerRun], first: str, second: str) -> SamplerDifference:
    by_sampler = {
        name: [m.mean_ms for run in runs if run.sampler == name for m in run.remeasured]
        for name in (first, second)
    }
    ratio, interval = _paired(by_sampler[first], by_sampler[second])
    outcome = _outcome(interval)
    text = (
        f"No difference between the winners of {first} and {second} could be shown."
        if outcome == "no difference shown"
        else f"The winners of {first} are {outcome} than those of {second}."
    )
    return SamplerDifference(
        first=first, second=second, outcome=outcome, ratio=ratio, interval=interval, text=text
    )


def _paired(numerators: list[float], denominators: list[float]) -> tuple[float, Interval]:
    logs = np.log(np.asarray(numerators) / np.asarray(denominators))
    half = 2.5 * float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    middle = float(logs.mean())
    return math.exp(middle), Interval(low=math.exp(middle - half), high=math.exp(middle + half))


def _inverse(interval: Interval) -> Interval:
    low, high = interval.low, interval.high
    return Interval(low=1 / high if high else None, high=1 / low if low else None)


def _outcome(interval: Interval) -> VerdictOutcome:
    if interval.high is not None and interval.high < 1:
        return "better"
    if interval.low is not None and interval.low > 1:
        return "worse"
    return "no difference shown"
