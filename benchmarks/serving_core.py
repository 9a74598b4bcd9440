"""Requests per second of the serving core against its peers, and the latency that it adds.

All serve "nothing": 3 KB of bytes in, the same bytes out, one process that runs the model, 20
keep-alive connections from `wrk`. So the figure is what a server costs, not what a model costs. How
they are compared: `comparison.py`. Latency: one connection, in alternating rounds with
`null_server.py`, a bare uvloop server that answers as many bytes; what we add is the difference of
the medians.

    apt-get install wrk
    python benchmarks/peers/install.py
    python benchmarks/serving_core.py [--write] [--json] [--peers mosec,triton] [--quick]

Ends with 1 when a target is missed, a peer is missing or any answer was wrong. Takes about nine
minutes with all peers.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator

import bodies
import candidates
import comparison
import result
import server_process
import wrk

TARGET = 1.3
TARGET_ADDED_MS = 0.3
LATENCY_ROUNDS = 5


@contextlib.contextmanager
def null_server(workload: candidates.Workload) -> Iterator[candidates.Measure]:
    """The bare server; takes the request that we take, and answers as many bytes as the model."""
    command = [sys.executable, str(candidates.FOLDER / "null_server.py")]
    command += ["--answer-bytes", str(len(workload.payload))]
    body = bodies.binary(workload.tensor, workload.shape, workload.payload)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())

            def measure(seconds: int, connections: int = 1) -> wrk.Load:
                return wrk.drive(
                    port,
                    "/",
                    body=body.data,
                    headers=body.headers,
                    connections=connections,
                    seconds=seconds,
                )

            yield measure
        finally:
            process.terminate()
            process.wait(server_process.STOP_TIMEOUT_S)


def latencies(
    workload: candidates.Workload, best: candidates.Candidate, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Median round trips at one connection, in ms, round by round: bare, by default, at our best."""
    default = candidates.luthier(workload, {})
    found: dict[str, list[float]] = {"bare": [], "default": [], "best": []}
    with (
        null_server(workload) as bare,
        default.open() as by_default,
        best.open() as at_best,
    ):
        pairs = (("bare", bare), ("default", by_default), ("best", at_best))
        for number in range(1 if options.quick else LATENCY_ROUNDS):
            shift = number % len(pairs)
            for name, measure in pairs[shift:] + pairs[:shift]:
                found[name].append(measure(1, connections=1).p50_ms)
    comparison.say(f"medians at one connection: {found}")
    return found


def main() -> int:
    """Sweep, alternate, conclude."""
    parser = argparse.ArgumentParser(description="requests per second against peers")
    comparison.add_options(parser)
    options = comparison.parsed(parser)
    workload = candidates.echo()
    mine = comparison.ours(workload, options)
    theirs = comparison.peers(workload, options)
    best = mine[0].candidate
    rounds = comparison.alternate([best, *comparison.near(theirs)], options)
    rest = comparison.others(theirs, rounds, options)
    trips = latencies(workload, best, options)

    ratios = comparison.ratio_to_peers(rounds, rest)
    ratio = statistics.median(ratios)
    medians = {name: statistics.median(values) for name, values in trips.items()}
    added_ms = medians["default"] - medians["bare"]
    settings = {
        tries[0].candidate.name: tries[0].candidate.setting
        for tries in (mine, *theirs.values())
        if tries
    }
    absent = comparison.missing(theirs, options)
    every = [*mine, *(tried for tries in theirs.values() for tried in tries)]
    found = result.Result(
        name="serving_core",
        question=(
            f"How many requests per second does one replica of `echo` answer, "
            f"{candidates.PAYLOAD_BYTES} bytes each way, at {candidates.CONNECTIONS} connections, "
            "and what does it add to the latency of one?"
        ),
        target=(
            f"at least {TARGET} x the requests/s of the best peer at its best settings; "
            f"added median latency at one connection under {TARGET_ADDED_MS} ms"
        ),
        verdict=(
            f"{ratio:.2f} x the best peer (rounds from {min(ratios):.2f} to {max(ratios):.2f}, "
            f"{len(rounds)} rounds); {added_ms:.3f} ms added"
        ),
        is_met=ratio >= TARGET and added_ms < TARGET_ADDED_MS and not absent,
        tables=(
            comparison.medians(settings, rounds, rest),
            result.Table(
                title="Median round trip at one connection (`wrk -t1 -c1`), medians of the rounds",
                head=("server", "p50 ms", "added ms"),
                rows=[
                    ("bare uvloop server, as many bytes", f"{medians['bare']:.3f}", ""),
                    ("luthier, default settings", f"{medians['default']:.3f}", f"{added_ms:.3f}"),
                    (
                        f"luthier, {best.setting}",
                        f"{medians['best']:.3f}",
                        f"{medians['best'] - medians['bare']:.3f}",
                    ),
                ],
            ),
            comparison.rounds_table(rounds, [("ours / best peer", ratios)]),
            comparison.sweep_table(every),
        ),
        figures={
            "ratio": ratio,
            "ratios": ratios,
            "added_ms": added_ms,
            "p50_ms_at_one_connection": trips,
            "missing": absent,
            **comparison.figures(every, rounds, rest),
        },
        versions=comparison.versions(theirs, options),
        notes=comparison.notes(theirs, options),
    )
    return result.conclude(found, options)


if __name__ == "__main__":
    sys.exit(main())
