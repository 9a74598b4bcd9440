"""Requests per second of the serving core against its peers, and the latency that it adds.

All serve "nothing": 3 KB of bytes in, the same bytes out, one process that runs the model, 20
keep-alive connections from `wrk`. So the figure is what a server costs, not what a model costs. Both forms
of our request path are compared with the same peers in the same rounds: the plain one, which
`pip install .` gives, and the compiled one of `LUTHIER_COMPILE=1 pip install .`. How: `comparison.py`.

`wrk` repeats one request byte for byte, and our server remembers heads that it has read. Further rounds have
requests that differ: in a field of the head, and in the protocol's own id, too.

Latency: one connection, in alternating rounds with `null_server.py`, a bare uvloop server that answers as
many bytes; what we add is the difference of the medians.

    apt-get install wrk
    python benchmarks/peers/install.py
    make compile
    python benchmarks/serving_core.py [--write] [--json] [--peers mosec,triton] [--quick]

Ends with 1 when a target is missed, a peer is missing or any answer was wrong. Takes about twenty
minutes with all peers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import bodies
import candidates
import comparison
import ratio
import result
import server_process
import wrk

TARGETS = {candidates.PLAIN: (1.2, 1.0), candidates.COMPILED: (1.5, 1.2)}
"""Form -> what its mean ratio to the best peer must reach, and what the interval must lie above."""
TARGET_ADDED_MS = 0.3
LATENCY_ROUNDS = 5
STARTS_WHERE_REQUESTS_DIFFER = 2


def trees(parser: argparse.ArgumentParser, compiled: pathlib.Path) -> dict[str, pathlib.Path]:
    """Where each form of our server lies; ends the program with one line where one is not there."""
    found = {candidates.PLAIN: server_process.ROOT, candidates.COMPILED: compiled.resolve()}
    for name, tree in found.items():
        form = server_process.form(tree) if (tree / "serving").is_dir() else "missing"
        if form != candidates.FORMS[name]:
            parser.error(
                f"the request path in {tree} is {form}, expected {candidates.FORMS[name]}: run "
                "`make compile` in the checkout, and this script without PYTHONPATH=build/compiled"
            )
    plain, other = found.values()
    for path in sorted((plain / "serving").rglob("*.py")):
        copy = other / path.relative_to(plain)
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            parser.error(f"{copy} is not what the checkout has: run `make compile` again")
    return found


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
    workload: candidates.Workload,
    found: Mapping[str, pathlib.Path],
    options: argparse.Namespace,
) -> dict[str, list[float]]:
    """Median round trips at one connection, in ms, round by round: bare, and each form by default."""
    with contextlib.ExitStack() as stack:
        servers = [("bare", stack.enter_context(null_server(workload)))]
        for name, tree in found.items():
            default = candidates.luthier(workload, {}, name=name, tree=tree)
            servers.append((name, stack.enter_context(default.open())))
        trips: dict[str, list[float]] = {name: [] for name, _ in servers}
        for number in range(1 if options.quick else LATENCY_ROUNDS):
            shift = number % len(servers)
            for name, measure in servers[shift:] + servers[:shift]:
                trips[name].append(measure(1, connections=1).p50_ms)
    comparison.say(f"medians at one connection: {trips}")
    return trips


def latency_table(medians: Mapping[str, float]) -> result.Table:
    """What each form adds to the bare server's round trip."""
    rows = [("bare uvloop server, as many bytes", f"{medians['bare']:.3f}", "")]
    rows += [
        (
            f"{name}, default settings",
            f"{medians[name]:.3f}",
            f"{medians[name] - medians['bare']:.3f}",
        )
        for name in TARGETS
    ]
    return result.Table(
        title="Median round trip at one connection (`wrk -t1 -c1`), medians of the rounds",
        head=("server", "p50 ms", "added ms"),
        rows=rows,
    )


def difference_table(
    differing: Mapping[candidates.Sent, Sequence[comparison.Round]],
    rest: dict[str, list[wrk.Load]],
) -> result.Table:
    """The rounds of each way in which requests differ: medians, and the ratios."""
    names = list(next(iter(differing.values()))[0])
    rows = []
    for sent, rounds in differing.items():
        rates = [statistics.median(each[name].requests_per_s for each in rounds) for name in names]
        ratios = [comparison.ratio_to_peers(rounds, rest, name).text() for name in TARGETS]
        rows.append((sent.value, *(f"{rate:,.0f}" for rate in rates), *ratios))
    return result.Table(
        title="Where requests differ: medians of the rounds, and ours over the best peer's",
        head=(
            "requests differ in",
            *(f"{name} /s" for name in names),
            *(f"{name} / best peer" for name in TARGETS),
        ),
        rows=rows,
    )


def main() -> int:
    """Sweep, alternate, conclude."""
    parser = argparse.ArgumentParser(description="requests per second against peers")
    comparison.add_options(parser)
    parser.add_argument(
        "--compiled",
        type=pathlib.Path,
        default=server_process.ROOT / "build" / "compiled",
        help="where the compiled form is (default: build/compiled)",
    )
    options = comparison.parsed(parser)
    forms = trees(parser, options.compiled)
    workload = candidates.echo()
    mine = {
        name: comparison.ours(workload, options, name=name, tree=tree)
        for name, tree in forms.items()
    }
    theirs = comparison.peers(workload, options)
    contenders = [*(tries[0].candidate for tries in mine.values()), *comparison.near(theirs)]
    rounds = comparison.alternate(contenders, options)
    starts = min(options.starts, STARTS_WHERE_REQUESTS_DIFFER)
    differing = {
        sent: comparison.alternate(contenders, options, starts=starts, sent=sent)
        for sent in (candidates.Sent.NUMBERED, candidates.Sent.NAMED)
    }
    rest = comparison.others(theirs, rounds, options)
    trips = latencies(workload, forms, options)

    ratios = {name: comparison.ratio_to_peers(rounds, rest, name) for name in forms}
    words = {
        name: ratios[name].outcome(least=least, above=above)
        for name, (least, above) in TARGETS.items()
    }
    medians = {name: statistics.median(values) for name, values in trips.items()}
    added_ms = medians[candidates.PLAIN] - medians["bare"]
    absent = comparison.missing(theirs, options)
    is_quick_enough = added_ms < TARGET_ADDED_MS and not absent
    is_met = is_quick_enough and all(word == ratio.MET for word in words.values())
    worst = min(words.values(), key=ratio.WORDS.index) if is_quick_enough else ratio.MISSED
    every = [tried for tries in (*mine.values(), *theirs.values()) for tried in tries]
    found = result.Result(
        name="serving_core",
        question=(
            f"How many requests per second does one replica of `echo` answer, "
            f"{candidates.PAYLOAD_BYTES} bytes each way, at {candidates.CONNECTIONS} connections, "
            "and what does it add to the latency of one? Plain as `pip install .` gives it, and compiled as "
            "`LUTHIER_COMPILE=1 pip install .` does."
        ),
        target=(
            "of the requests/s of the best peer at its best settings "
            + " and ".join(
                f"at least {least} x with the 95 % interval of the rounds above {above} ({name})"
                for name, (least, above) in TARGETS.items()
            )
            + f"; added median latency at one connection under {TARGET_ADDED_MS} ms"
        ),
        verdict="; ".join(
            (
                *(f"{name}: {words[name]}, {ratios[name].text()}" for name in forms),
                f"{added_ms:.3f} ms added",
            )
        ),
        is_met=is_met,
        outcome=worst,
        tables=(
            comparison.medians(comparison.best_settings(mine, theirs), rounds, rest),
            difference_table(differing, rest),
            latency_table(medians),
            comparison.rounds_table(
                rounds, [(f"{name} / best peer", ratios[name].rounds) for name in forms]
            ),
            comparison.sweep_table(every),
        ),
        figures={
            "ratios": {name: dataclasses.asdict(one) for name, one in ratios.items()},
            "added_ms": added_ms,
            "p50_ms_at_one_connection": trips,
            "missing": absent,
            "differing": {
                sent.value: comparison.rounds_figures(found) for sent, found in differing.items()
            },
            **comparison.figures(every, rounds, rest),
        },
        versions=comparison.versions(theirs, options),
        notes=comparison.notes(theirs, options),
        form=" and ".join(candidates.FORMS.values()),
        needs=("python benchmarks/peers/install.py", "make compile"),
    )
    return result.conclude(found, options)


if __name__ == "__main__":
    sys.exit(main())
