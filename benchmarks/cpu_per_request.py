"""CPU time that one request costs the gateway and its replica, for one checkout or for several in turn.

A rate says little on a machine that does other work as well; the CPU time that the kernel counts for a
process says nearly the same either way. A model answers 3 KB of bytes at 20 keep-alive connections from
`wrk`. The checkouts are loaded in alternating rounds; the figures are medians over the rounds, and what each
later checkout costs and gives over the first one, of rounds side by side, with the 95 % interval.

    apt-get install wrk
    python benchmarks/cpu_per_request.py [--tree DIR]... [--model resnet] [--differing] [--rounds 5]

Ends with 1 when any answer was wrong. It has no target: it is for comparing changes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import statistics
import sys

import bodies
import candidates
import ratio
import result
import server_process
import wrk

WORKLOADS = {"echo": candidates.echo, "resnet": candidates.resnet}
SETTINGS = {
    "echo": {},
    "resnet": {"replica.count": 2, "replica.threads": 1},
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a round cost: microseconds of CPU per request, and how fast it went."""

    gateway_us: float
    replica_us: float
    requests_per_s: float
    p50_ms: float

    @property
    def us(self) -> float:
        """CPU time of gateway and replica together, per request."""
        return self.gateway_us + self.replica_us


def processes(root: int) -> tuple[int, list[int]]:
    """The gateway, and everything below it."""
    parents: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    below: list[int] = []
    waiting = [root]
    while waiting:
        children = parents.get(waiting.pop(), [])
        below += children
        waiting += children
    return root, below


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process so far."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def measured(port: int, pid: int, body: bodies.Body, options: argparse.Namespace) -> Cost:
    """One round."""
    gateway, others = processes(pid)
    before = cpu_ns(gateway), sum(map(cpu_ns, others))
    load = wrk.drive(
        port,
        f"/v2/models/{options.model}/infer",
        body=body.data,
        headers=body.headers,
        connections=options.connections,
        seconds=options.seconds,
    )
    spent = cpu_ns(gateway) - before[0], sum(map(cpu_ns, others)) - before[1]
    return Cost(
        gateway_us=spent[0] / load.requests * 1e-3,
        replica_us=spent[1] / load.requests * 1e-3,
        requests_per_s=load.requests_per_s,
        p50_ms=load.p50_ms,
    )


def rounds(trees: list[pathlib.Path], options: argparse.Namespace) -> dict[str, list[Cost]]:
    """Rounds over every checkout, one after another; the order turns from round to round."""
    settings = {"batching.max_size": options.max_size, **SETTINGS[options.model]}
    workload = WORKLOADS[options.model]()
    body = bodies.binary(workload.tensor, workload.shape, workload.payload)
    if options.differing:
        body.headers["X-Request-Id"] = wrk.NUMBERED
    found: dict[str, list[Cost]] = {str(tree): [] for tree in trees}
    with contextlib.ExitStack() as servers:
        started = []
        for tree in trees:
            where = servers.enter_context(server_process.served(options.model, settings, tree=tree))
            measured(where.port, where.pid, body, options)  # to warm up
            started.append((tree, where.port, where.pid, body))
        for number in range(options.rounds):
            turn = number % len(started)
            for tree, port, pid, body in started[turn:] + started[:turn]:
                found[str(tree)].append(measured(port, pid, body, options))
    return found


def table(found: dict[str, list[Cost]]) -> result.Table:
    """Medians, the range of the gateway's, and both ratios to the first checkout."""
    rows = []
    first = next(iter(found.values()))
    for number, costs in enumerate(found.values(), 1):
        gateway = [cost.gateway_us for cost in costs]
        replica = [cost.replica_us for cost in costs]
        rows.append(
            (
                str(number),
                f"{statistics.median(gateway):.1f}",
                f"{min(gateway):.1f} to {max(gateway):.1f}",
                f"{statistics.median(replica):.1f}",
                f"{statistics.median(cost.requests_per_s for cost in costs):,.0f}",
                f"{statistics.median(cost.p50_ms for cost in costs):.2f}",
                ""
                if costs is first
                else ratio.paired([one.us for one in costs], [one.us for one in first]).text(),
                ""
                if costs is first
                else ratio.paired(
                    [one.requests_per_s for one in costs], [one.requests_per_s for one in first]
                ).text(),
            )
        )
    return result.Table(
        title="CPU time per request, medians of the rounds",
        head=(
            "tree",
            "gateway us",
            "range",
            "replica us",
            "requests/s",
            "p50 ms",
            "CPU / first",
            "requests/s / first",
        ),
        rows=rows,
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="CPU time per request of gateway and replica")
    parser.add_argument(
        "--tree",
        type=pathlib.Path,
        action="append",
        help="checkout to measure; may be repeated (default: this one)",
    )
    parser.add_argument(
        "--model", choices=WORKLOADS, default="echo", help="what is asked (default echo)"
    )
    parser.add_argument(
        "--differing", action="store_true", help="each request has an X-Request-Id of its own"
    )
    parser.add_argument("--connections", type=int, default=20, help="of wrk (default 20)")
    parser.add_argument("--max-size", type=int, default=20, help="batching.max_size (default 20)")
    parser.add_argument("--rounds", type=int, default=5, help="per checkout (default 5)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a round (default 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    options = parser.parse_args()
    if problem := wrk.is_missing():
        print(problem, file=sys.stderr)
        return 2
    trees = [tree.resolve() for tree in options.tree or [server_process.ROOT]]
    found = rounds(trees, options)
    if options.json:
        print(
            json.dumps([[dataclasses.asdict(cost) for cost in costs] for costs in found.values()])
        )
    else:
        print(table(found).text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
