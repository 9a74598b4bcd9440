"""Requests per second of two gateways on one machine over those of one, and the CPU time of each part.

    apt-get install wrk
    python benchmarks/gateways.py [--rounds 8] [--seconds 3] [--quick] [--write] [--json]

`echo` answers 3 KB on 128 keep-alive connections of `wrk`, in rounds that take turns: one gateway, and two
that share its port. Both have two replicas: two of one gateway, or one of each. On two cores a second
gateway has nothing to gain, as wrk, gateways and replicas share them: what is asked is what it costs. The
CPU time per request of each part says what a machine with more cores can answer: gateways and replicas
share nothing but the port, so a part's cores grow with its load.

Ends with 1 when the mean ratio is below 0.85. Takes two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import resource
import statistics
import sys
from collections.abc import Mapping, Sequence

import bodies
import candidates
import cpu_per_request
import ratio
import result
import server_process
import wrk

CONNECTIONS = 128
"""A server that needs a second gateway has many clients: enough for full batches in each."""
REPLICAS = 2
BATCHING = {"batching.max_size": 16, "batching.timeout_us": 1000}
"""Batches of one size in both: a gateway that has time to spare would else send smaller ones."""
LEAST_RATIO = 0.85
MANY_CORES = 16
CALCULATED = (
    "Calculated, not measured: memory bandwidth, caches and the network of a larger machine are not in it, "
    "nor clients that spread their connections unevenly."
)
INFER = "/v2/models/echo/infer"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: how fast it went, and microseconds of CPU per request of each part."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    gateways_us: float
    """All gateways, and their parent."""
    replicas_us: float
    client_us: float

    @property
    def server_us(self) -> float:
        """CPU time of a request in the server."""
        return self.gateways_us + self.replicas_us


def measured(where: server_process.Served, body: bodies.Body, seconds: int) -> Round:
    """One round of load."""
    root, below = cpu_per_request.processes(where.pid)
    gateways = {root, *where.gateways}
    replicas = [pid for pid in below if pid not in gateways]
    parts = [sorted(gateways), replicas]
    before = [sum(map(cpu_per_request.cpu_ns, pids)) for pids in parts]
    client_s = _client_s()
    load = wrk.drive(
        where.port,
        INFER,
        body=body.data,
        headers=body.headers,
        connections=CONNECTIONS,
        seconds=seconds,
    )
    client_s = _client_s() - client_s
    spent = [
        (sum(map(cpu_per_request.cpu_ns, pids)) - ns) * 1e-3 / load.requests
        for pids, ns in zip(parts, before, strict=True)
    ]
    return Round(
        requests_per_s=load.requests_per_s,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        gateways_us=spent[0],
        replicas_us=spent[1],
        client_us=client_s * 1e6 / load.requests,
    )


def _client_s() -> float:
    """CPU time of children that have ended: of wrk."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rounds(options: argparse.Namespace) -> dict[int, list[Round]]:
    """Rounds by the number of gateways, side by side; who goes first changes from round to round."""
    workload = candidates.echo()
    body = bodies.binary(workload.tensor, workload.shape, workload.payload)
    found: dict[int, list[Round]] = {1: [], 2: []}
    with contextlib.ExitStack() as servers:
        started = []
        for count in found:
            settings = {"server.gateways": count, "replica.count": REPLICAS, **BATCHING}
            where = servers.enter_context(server_process.served("echo", settings))
            measured(where, body, 1)  # warm
            started.append((count, where))
        for number in range(options.rounds):
            turn = number % len(started)
            for count, where in started[turn:] + started[:turn]:
                found[count].append(measured(where, body, options.seconds))
            pair = (found[1][-1].requests_per_s, found[2][-1].requests_per_s)
            result.say(f"round {number + 1}: {pair[0]:,.0f} and {pair[1]:,.0f} requests/s")
    return found


def _median(found: Sequence[Round], part: str) -> float:
    return statistics.median(getattr(one, part) for one in found)


def measured_table(found: Mapping[int, Sequence[Round]]) -> result.Table:
    """Medians of the rounds."""
    parts = ("requests_per_s", "p50_ms", "p99_ms", "gateways_us", "replicas_us", "client_us")
    forms = (",.0f", ".2f", ".2f", ".1f", ".1f", ".1f")
    return result.Table(
        title="Medians of the rounds; CPU time per request of each part",
        head=(
            "gateways",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "gateways us",
            "replicas us",
            "wrk us",
        ),
        rows=[
            (
                str(count),
                *(
                    format(_median(each, part), form)
                    for part, form in zip(parts, forms, strict=True)
                ),
            )
            for count, each in found.items()
        ],
    )


def many_cores(found: Sequence[Round], cores: int) -> tuple[int, int, float]:
    """Gateways, replicas and requests per second with which so many cores are busy.

    Whole processes, each of at most one core; the clients are elsewhere.
    """
    gateway_us, replica_us = _median(found, "gateways_us"), _median(found, "replicas_us")
    return max(
        (
            (count, cores - count, min(count / gateway_us, (cores - count) / replica_us) * 1e6)
            for count in range(1, cores)
        ),
        key=lambda one: one[2],
    )


def concluded(found: Mapping[int, Sequence[Round]]) -> result.Result:
    """Tables and verdict."""
    one, two = ([each.requests_per_s for each in found[count]] for count in (1, 2))
    paired = ratio.paired(two, one)
    gateways, replicas, rate = many_cores(found[2], MANY_CORES)
    alone = 1e6 / _median(found[1], "gateways_us")
    return result.Result(
        name="gateways",
        question=(
            "What does a second gateway cost on a machine of two cores, and what do sixteen cores answer "
            f"by the CPU time of a request? `echo`, {candidates.PAYLOAD_BYTES} bytes each way, "
            f"{CONNECTIONS} connections."
        ),
        target=f"two gateways answer at least {LEAST_RATIO} x the requests/s of one",
        verdict=paired.text(),
        is_met=paired.mean >= LEAST_RATIO,
        tables=(
            measured_table(found),
            result.Table(
                title=f"{MANY_CORES} cores, calculated from the CPU time of two gateways",
                head=("what", "figure"),
                rows=[
                    ("gateways", str(gateways)),
                    ("replicas", str(replicas)),
                    ("requests/s", f"{rate:,.0f}"),
                    ("requests/s of one gateway, with any number of cores", f"{alone:,.0f}"),
                ],
            ),
        ),
        figures={
            str(count): [dataclasses.asdict(one) for one in each] for count, each in found.items()
        },
        notes=(CALCULATED,),
    )


def main() -> int:
    """Measure and conclude."""
    parser = argparse.ArgumentParser(description="two gateways on one machine against one")
    parser.add_argument("--rounds", type=int, default=8, help="of each (default 8)")
    parser.add_argument("--seconds", type=int, default=3, help="of a round (default 3)")
    options = result.parsed(parser, rounds=1, seconds=1)
    if problem := wrk.is_missing():
        print(problem, file=sys.stderr)
        return 2
    return result.conclude(concluded(rounds(options)), options)


if __name__ == "__main__":
    sys.exit(main())
