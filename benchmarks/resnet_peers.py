"""The zoo's `resnet` at 20 connections: against a bare ONNX Runtime loop, and against the peers.

All serve the same ONNX file through ONNX Runtime; the client is `wrk` with one real image of 3 KB.
The bare loop (`ort_loop.py`) runs on all cores without any serving, at its best batch size, in the
same alternating rounds: no server can be faster, and the client's CPU time comes on top. How they are
compared: `comparison.py`.

    apt-get install wrk
    python benchmarks/peers/install.py
    python benchmarks/resnet_peers.py [--write] [--json] [--peers mosec,triton] [--quick]

Ends with 1 when a target is missed, a peer is missing or any answer was wrong. Takes about nine
minutes with all peers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

import candidates
import comparison
import ratio
import result
import wrk

TARGET = 0.8
LOOP = "bare ONNX Runtime loop"
LOOPS = ((2, 1, 1), (2, 1, 4), (2, 1, 8), (2, 1, 16), (2, 1, 32), (1, 2, 8), (1, 2, 20))
"""Processes, threads inside an operator, images per call."""


@contextlib.contextmanager
def open_loop(arguments: Sequence[str]) -> Iterator[candidates.Measure]:
    """The loop as a candidate: a run starts its processes, and counts once all of them are warm."""

    def measure(seconds: int, **_load: object) -> wrk.Load:  # it has no client
        done = subprocess.run(
            [*arguments, "--seconds", str(seconds)], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        return wrk.Load(
            requests=round(found["images_per_s"] * seconds),
            requests_per_s=found["images_per_s"],
            p50_ms=found["p50_ms"],
            p99_ms=found["p99_ms"],
        )

    yield measure


def loop(processes: int, threads: int, batch: int) -> candidates.Candidate:
    """The loop at one setting."""
    command = [sys.executable, str(candidates.FOLDER / "ort_loop.py")]
    command += ["--processes", str(processes), "--threads", str(threads), "--batch", str(batch)]
    return candidates.Candidate(
        name=LOOP,
        setting=f"processes {processes}, threads {threads}, batch {batch}",
        open=functools.partial(open_loop, command),
    )


def main() -> int:
    """Sweep, alternate, conclude."""
    parser = argparse.ArgumentParser(description="resnet against a bare loop and the peers")
    comparison.add_options(parser)
    options = comparison.parsed(parser)
    workload = candidates.resnet()
    bare = comparison.sweep(
        [loop(*each) for each in LOOPS[: 2 if options.quick else None]], options
    )
    mine = comparison.ours(workload, options)
    theirs = comparison.peers(workload, options)
    best = (mine[0].candidate, bare[0].candidate)
    rounds = comparison.alternate([*best, *comparison.near(theirs)], options)
    rest = comparison.others(theirs, rounds, options)

    absent = comparison.missing(theirs, options)
    share = comparison.ratio_to(LOOP, rounds)
    to_peers = comparison.ratio_to_peers(rounds, rest)
    against = to_peers.outcome(least=1.0)
    is_met = share.mean >= TARGET and against == ratio.MET and not absent
    settings = comparison.best_settings({candidates.PLAIN: mine, LOOP: bare}, theirs)
    every = [*bare, *mine, *(tried for tries in theirs.values() for tried in tries)]
    found = result.Result(
        name="resnet_peers",
        question=(
            f"How many images per second does `resnet` answer at {candidates.CONNECTIONS} connections "
            "of `wrk`, one image of 3 KB a request?"
        ),
        target=(
            f"at least {TARGET:.0%} of a bare ONNX Runtime loop on all cores, "
            "and above every peer that serves the same file: the 95 % interval above 1"
        ),
        verdict=(
            f"{share.mean:.1%} of the loop [{share.low:.1%}, {share.high:.1%}]; "
            f"against the best peer {against}: {to_peers.text()}"
        ),
        is_met=is_met,
        outcome=against if share.mean >= TARGET and not absent and not is_met else "",
        tables=(
            comparison.medians(settings, rounds, rest),
            comparison.rounds_table(
                rounds, [("ours / loop", share.rounds), ("ours / best peer", to_peers.rounds)]
            ),
            comparison.sweep_table(every),
        ),
        figures={
            "share": dataclasses.asdict(share),
            "ratio": dataclasses.asdict(to_peers),
            "missing": absent,
            **comparison.figures(every, rounds, rest),
        },
        packages=("onnxruntime",),
        needs=("apt-get install wrk", "python benchmarks/peers/install.py"),
        versions=comparison.versions(theirs, options),
        notes=(
            *comparison.notes(theirs, options),
            f"The {LOOP} has no requests: images/s, and the times are those of a batch.",
        ),
    )
    return result.conclude(found, options)


if __name__ == "__main__":
    sys.exit(main())
