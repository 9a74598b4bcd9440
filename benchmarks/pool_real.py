"""Fifty models on one real worker whose memory holds ten: three schedulers, below and beyond what it can do.

    python benchmarks/pool_real.py [--seconds 10] [--rounds 3] [--quick] [--write] [--json]

Copies of `resnet` and `gan`, asked for as functions in a cloud are (`benchmarks/scenarios/real.yaml`: few are hot,
many cold, some are called by timers), eight items a request, 100 ms for each, in an open loop of the same arrivals
for all three:

- clockwork: the pool as it is served;
- fifo: the same pool, replicas, budget and wire under a bare FIFO (`benchmarks/peers/serve_fifo.py`);
- adaptive: a replica for each model, all fifty in memory at all times. It needs five times the memory and never
  loads; what it answers is what the budget costs the others.

Replicas run on one core, the gateway and the load generator on another one. Capacity is what the worker answers
where nothing has to be loaded: the rate of one model of each kind in a closed loop of eight clients, warm, in the same
run and under the better of both policies. Rates are given as multiples of it, so at one the pool has to be overloaded,
since loads take the worker's time as well. In each round every scheduler is started anew and is sent all rates, in an
order that is drawn. A request's time counts from when it was due, and goodput is over the time in which requests come.

Ends with 1 when a target is missed. Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence

import result

from tuner.evaluation.scenarios import arrivals, emulated, files, served
from tuner.evaluation.scenarios.results import Counts, ScenarioResult
from tuner.evaluation.scenarios.served import ScenarioRun
from tuner.evaluation.scenarios.values import Deadline, Scenario, Stream
from tuner.launching.engine_process import SERVER, LuthierProcess

HERE = pathlib.Path(__file__).resolve().parent
SHARES = (0.5, 0.75, 1.0, 1.5, 2.0)
ASKED = (0.5, 1.0, 2.0)
"""Of these the target speaks; the others show where the peak is."""
TWICE = 2.0
LEAST_OF_PEAK = 0.95
CLIENTS, WARM_S, MEASURED_S = 8, 1.0, 3.0
LEAST_CORES = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """How the server is started."""

    name: str
    program: Sequence[str] = SERVER
    policy: str = "clockwork"
    is_ours: bool = True


SCHEDULERS = (
    Scheduler(name="clockwork"),
    Scheduler(name="fifo", program=(str(HERE / "peers" / "serve_fifo.py"),), is_ours=False),
    Scheduler(name="adaptive", policy="adaptive"),
)
Runs = dict[tuple[str, float], list[ScenarioRun]]


def main() -> int:
    """Serve, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run; default 10")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    options = result.parsed(parser, seconds=2.0, rounds=1)
    base = files.read(HERE / "scenarios" / "real.yaml")
    base = dataclasses.replace(base, seconds=options.seconds)
    with _apart():
        capacity = _capacity(base)
        result.say(f"capacity {capacity:.0f} requests/s")
        runs, memory = _measured(base, capacity, options.rounds)
    return result.conclude(_result(base, capacity, runs, memory, options.rounds), options)


def _measured(base: Scenario, capacity: float, rounds: int) -> tuple[Runs, Mapping[str, float]]:
    """Results by scheduler and share of the capacity, and the replicas' memory in MiB."""
    runs: Runs = collections.defaultdict(list)
    memory = {}
    order = random.Random(base.seed)
    for number in range(rounds):
        for scheduler in order.sample(SCHEDULERS, len(SCHEDULERS)):
            with _opened(base, scheduler) as engine:
                for share in order.sample(SHARES, len(SHARES)):
                    found = served.drive(_at(base, share * capacity, seed=number), engine)
                    result.say(
                        f"round {number + 1}, {scheduler.name} at {share:g} x: "
                        f"{_in_time(found) / base.seconds:.0f}/s in time"
                    )
                    runs[scheduler.name, share].append(found)
                memory[scheduler.name] = sum(map(_memory_mb, _below(engine.facts.pid)))
    return runs, memory


def _at(base: Scenario, rate: float, *, seed: int) -> Scenario:
    """The scenario at a rate of all requests together."""
    given = sum(stream.rate_per_s for stream in base.streams)
    streams = tuple(
        dataclasses.replace(stream, rate_per_s=stream.rate_per_s * rate / given)
        for stream in base.streams
    )
    return dataclasses.replace(base, streams=streams, seed=seed)


def _capacity(base: Scenario) -> float:
    """Requests/s of the worker where nothing is loaded, in the mixture of the streams."""
    times_s = [
        stream.rate_per_s / max(_alone(base, stream, one) for one in SCHEDULERS if one.is_ours)
        for stream in base.streams
    ]
    return sum(stream.rate_per_s for stream in base.streams) / sum(times_s)


def _alone(base: Scenario, stream: Stream, scheduler: Scheduler) -> float:
    """Requests/s of one model that is always there, in a closed loop."""
    group = dataclasses.replace(base.group(stream.group), copies=1)
    clients = Stream(
        name=stream.name,
        group=group.name,
        deadline=Deadline(first_s=1.0),
        clients=CLIENTS,
        items=stream.items,
    )
    alone = dataclasses.replace(base, groups=(group,), streams=(clients,), seconds=WARM_S)
    with _opened(alone, scheduler) as engine:
        served.drive(alone, engine)
        return served.drive(dataclasses.replace(alone, seconds=MEASURED_S), engine).goodput_per_s


@contextlib.contextmanager
def _opened(scenario: Scenario, scheduler: Scheduler) -> Iterator[LuthierProcess]:
    """A server whose replicas have a core of their own: the first of those that this process was given."""
    replicas_core = _cores()[0]
    settings = {"scheduling.policy": scheduler.policy}
    with served.open_server(scenario, settings=settings, program=scheduler.program) as engine:
        for pid in _below(engine.facts.pid):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, {replicas_core})
        yield engine


# The machine


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """This process, and the gateways that it starts, on one core; replicas are put on another one."""
    cores = _cores()
    if len(cores) < LEAST_CORES:
        raise SystemExit(f"{len(cores)} core, expected {LEAST_CORES}: one is the replicas'")
    os.sched_setaffinity(0, {cores[-1]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@functools.cache
def _cores() -> tuple[int, ...]:
    """Those that this process was given at the beginning."""
    return tuple(sorted(os.sched_getaffinity(0)))


def _below(pid: int) -> list[int]:
    """All processes that a process has started, and theirs."""
    parents: dict[int, list[int]] = collections.defaultdict(list)
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (path / "stat").read_text().rpartition(")")[2].split()
                parents[int(words[1])].append(int(path.name))
    found, left = [], [pid]
    while left:
        children = parents[left.pop()]
        found += children
        left += children
    return found


def _memory_mb(pid: int) -> float:
    """Memory of a process, what it shares divided by those that share it."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return float(line.split()[1]) / 1024
    return 0.0


# The page


def _result(
    base: Scenario, capacity: float, runs: Runs, memory: Mapping[str, float], rounds: int
) -> result.Result:
    goodput = {
        key: sum(_in_time(one) for one in some) / len(some) / base.seconds
        for key, some in runs.items()
    }
    peaks = {
        one.name: max(goodput[one.name, share] for share in SHARES if share != TWICE)
        for one in SCHEDULERS
    }
    of_peak = {one.name: goodput[one.name, TWICE] / peaks[one.name] for one in SCHEDULERS}
    ours = [_all(runs["clockwork", share]) for share in SHARES]
    far_late = sum(one.far_late for one in ours)
    admitted, in_time = sum(one.admitted for one in ours), sum(one.in_time for one in ours)
    is_counted = _is_counted(base, capacity, runs, rounds)
    lag_ms = max(
        found.send_lag_ms for (name, _), some in runs.items() if name != "fifo" for found in some
    )
    return result.Result(
        name="pool_real",
        question=(
            "Fifty models on one worker whose memory holds ten, below and beyond what it can do: how many requests "
            "are answered within 100 ms, by three schedulers."
        ),
        target=(
            f"goodput of clockwork at {TWICE:g} x at least {LEAST_OF_PEAK:.0%} of its peak at other rates; every "
            "request counted once, and those that were answered more than 5 ms after their deadline told"
        ),
        verdict=(
            f"Goodput at {TWICE:g} x was {of_peak['clockwork']:.1%} of its peak (fifo {of_peak['fifo']:.1%}, adaptive "
            f"{of_peak['adaptive']:.1%}). Of {admitted:,} requests that clockwork admitted at all rates "
            f"{in_time / admitted:.2%} were in time, and {far_late} were answered more than 5 ms late; "
            f"{'all' if is_counted else 'NOT ALL'} that were due are counted. At 1 x clockwork answered "
            f"{goodput['clockwork', 1.0]:.0f}/s in time, the FIFO {goodput['fifo', 1.0]:.0f}/s, with the same memory."
        ),
        is_met=of_peak["clockwork"] >= LEAST_OF_PEAK and is_counted,
        tables=_tables(base, capacity, runs, memory, rounds),
        figures={
            "capacity_per_s": capacity,
            "goodput_per_s": {
                f"{name} {share:g}": value for (name, share), value in goodput.items()
            },
            "of_peak": of_peak,
            "far_late": far_late,
            "memory_mb": dict(memory),
        },
        packages=("numpy", "onnxruntime"),
        notes=(
            f"{rounds} rounds of {base.seconds:g} s at each rate; behind a goodput, the least and the most of them.",
            "p50 and p99.9 are of the answers, from when a request was due, and those of the worst stream and round.",
            (
                f"99 % of the requests of each run were sent within {lag_ms:.1f} ms of when they were due; to the FIFO "
                "beyond its capacity they wait for one of the 500 connections, and the wait counts."
            ),
            (
                "The emulation has the profile of the scenario's file, not of this run, and no gateway: a message "
                "takes 0.2 ms."
            ),
        ),
    )


def _is_counted(base: Scenario, capacity: float, runs: Runs, rounds: int) -> bool:
    """Whether every request that was due has an end, with every scheduler and at every rate."""
    due = {
        share: sum(
            len(arrivals.draw_arrivals(_at(base, share * capacity, seed=seed)).at_s)
            for seed in range(rounds)
        )
        for share in SHARES
    }
    return all(
        sum(found.requests for found in some) == due[share] for (_, share), some in runs.items()
    )


def _emulated_per_s(base: Scenario, rate: float, rounds: int) -> float:
    """Requests in time of the same arrivals with an emulated worker."""
    found = (emulated.run(_at(base, rate, seed=seed))[0] for seed in range(rounds))
    return sum(map(_in_time, found)) / (rounds * base.seconds)


def _tables(
    base: Scenario, capacity: float, runs: Runs, memory: Mapping[str, float], rounds: int
) -> tuple[result.Table, ...]:
    return (
        result.Table(
            title=f"Requests in time per second; capacity {capacity:.0f}/s without loads",
            head=("asked for", *(one.name for one in SCHEDULERS), "clockwork, emulated"),
            rows=[
                (
                    f"{share:g} x",
                    *(_spread(runs[one.name, share], base.seconds) for one in SCHEDULERS),
                    f"{_emulated_per_s(base, share * capacity, rounds):.0f}",
                )
                for share in SHARES
            ],
        ),
        result.Table(
            title="What became of all requests",
            head=("", *HEAD),
            rows=[
                (f"{one.name}, {share:g} x", *_cells(_all(runs[one.name, share])))
                for one in SCHEDULERS
                for share in ASKED
            ],
        ),
        result.Table(
            title="Memory of the replicas together, and what they load at 1 x",
            head=("", "MiB", "loads/s"),
            rows=[
                (
                    one.name,
                    f"{memory[one.name]:.0f}",
                    f"{_loads_per_s(runs[one.name, 1.0]):.0f}",
                )
                for one in SCHEDULERS
            ],
        ),
    )


def _in_time(found: ScenarioResult) -> int:
    return sum(one.in_time for one in found.streams.values())


def _spread(some: Sequence[ScenarioRun], seconds: float) -> str:
    """Mean of the rounds, and the least and the most."""
    each = [_in_time(one) / seconds for one in some]
    return f"{sum(each) / len(each):.0f} ({min(each):.0f} to {max(each):.0f})"


HEAD = ("requests", "in time", "not answered", "late", "by over 5 ms", "p50 ms", "p99.9 ms")


def _cells(one: Counts) -> tuple[str, ...]:
    trips = [f"{value:.0f}" for value in one.latencies_ms] or ["-"] * 4
    return (
        f"{one.requests:,}",
        f"{one.in_time / one.requests:.1%}",
        f"{1.0 - (one.in_time + one.late) / one.requests:.1%}",
        f"{one.late / one.requests:.1%}",
        f"{one.far_late:,}",
        trips[0],
        trips[2],
    )


def _loads_per_s(some: Sequence[ScenarioRun]) -> float:
    return sum(one.server.loads for one in some) / sum(one.seconds for one in some)


def _all(some: Sequence[ScenarioResult]) -> Counts:
    """Streams and rounds together; percentiles are those of the worst round and stream."""
    counts = [one for found in some for one in found.streams.values()]
    trips = [one.latencies_ms for one in counts if one.latencies_ms]
    return Counts(
        requests=sum(one.requests for one in counts),
        in_time=sum(one.in_time for one in counts),
        late=sum(one.late for one in counts),
        far_late=sum(one.far_late for one in counts),
        refused_at_once=_added(one.refused_at_once for one in counts),
        dropped=_added(one.dropped for one in counts),
        latencies_ms=tuple(max(values) for values in zip(*trips, strict=True)),
    )


def _added(some: Iterator[Mapping[str, int]]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for one in some:
        total.update(one)
    return dict(total)


if __name__ == "__main__":
    sys.exit(main())
