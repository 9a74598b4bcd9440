"""What it costs to have a replica behind a node agent: the hop, a long way, and another clock.

    apt-get install wrk
    python benchmarks/node_agents.py [--rounds 10] [--quick] [--write] [--json]

Three questions, each answered in alternating rounds against the same server with the replica on its own Unix
socket. The hop: the median round trip of 3 KB through the model `echo` at one connection, by TCP and by mutual TLS
on loopback. The way: answers per second of a model of 1 ms a batch, one request each, to 20 clients, if each byte
takes 2 ms to the replica and as long back. The clock: requests in time under Clockwork with `resnet`, at 0.8 of
what the server can do, if the clock of the replica's machine is a day ahead (a time namespace).

Ends with 1 when a target is missed. Needs root, for the time namespace, and the package cryptography. Takes four
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable, Mapping

import bodies
import candidates
import local_nodes
import numpy as np
import open_loop
import result
import server_process
import wrk
from local_nodes import Facts

from tuner.load_generator.client_process import LoadGenerator

HOP_US = {"TCP": 25.0, "mutual TLS": 90.0}
WAY_S = 0.002
WAY_LEAST = 0.95
DAY_S = 86_400
CLOCK_POINTS = 0.5
CLIENTS = 20
OBJECTIVE_S = 0.025
LOAD = 0.8
ROUND_S = {"hop": 1, "way": 2.0, "clock": 8.0}
HERE = "Unix socket"

Servers = Mapping[str, server_process.Served]


def opened(
    stack: contextlib.ExitStack,
    model: str,
    settings: Mapping[str, object],
    machines: Mapping[str, Facts],
) -> Servers:
    """A server of this machine alone, and one for each kind of machine."""
    found = {HERE: stack.enter_context(server_process.served(model, settings))}
    for name, facts in machines.items():
        program = local_nodes.program(facts)
        found[name] = stack.enter_context(server_process.served(model, settings, program=program))
    return found


def alternated(
    servers: Servers, rounds: int, measure: Callable[[server_process.Served], float]
) -> dict[str, list[float]]:
    """Measure all in rounds, in an order that turns."""
    names = list(servers)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(measure(servers[name]))
    return found


def hop(rounds: int) -> dict[str, list[float]]:
    """Median round trips in us."""
    echo = candidates.echo()
    body = bodies.binary(echo.tensor, echo.shape, echo.payload)

    def measure(where: server_process.Served) -> float:
        path, seconds = "/v2/models/echo/infer", ROUND_S["hop"]
        load = wrk.drive(where.port, path, body=body.data, headers=body.headers, connections=1,
            seconds=int(seconds))  # fmt: skip
        return 1e3 * load.p50_ms

    with contextlib.ExitStack() as stack:
        machines = {"TCP": Facts(tls=False), "mutual TLS": Facts(tls=True)}
        return alternated(opened(stack, "echo", {}, machines), rounds, measure)


def way(rounds: int) -> dict[str, list[float]]:
    """Answers per second."""
    model = f"{open_loop.MODELS / 'brief.py'}:Model"
    with contextlib.ExitStack() as stack:
        machines = {f"{1e3 * WAY_S:g} ms each way": Facts(tls=False, way_s=WAY_S)}
        servers = opened(stack, model, {"batching.max_size": 1}, machines)
        generator = stack.enter_context(LoadGenerator())

        def measure(where: server_process.Served) -> float:
            generator.set_payloads(open_loop.images(where.port, "brief"))
            return open_loop.closed(generator, where.port, CLIENTS, ROUND_S["way"])

        return alternated(servers, rounds, measure)


def clock(rounds: int) -> dict[str, list[float]]:
    """Shares of requests in time, in percent."""
    with contextlib.ExitStack() as stack:
        settings = {"scheduling.policy": "clockwork"}
        machines = {"a day ahead": Facts(clock_s=DAY_S)}
        servers = opened(stack, "resnet", settings, machines)
        generator = stack.enter_context(LoadGenerator())
        here = servers[HERE].port
        generator.set_payloads(open_loop.images(here, "resnet"))
        rate = LOAD * open_loop.closed(generator, here, CLIENTS, ROUND_S["way"])

        def measure(where: server_process.Served) -> float:
            sent = open_loop.images(where.port, "resnet", timeout_s=0.8 * OBJECTIVE_S)
            generator.set_payloads(sent)
            seen = open_loop.drive(generator, where.port, rate, ROUND_S["clock"])
            return 100 * seen.answered(OBJECTIVE_S) / len(seen.took_s)

        return alternated(servers, rounds, measure)


def concluded(found: Mapping[str, dict[str, list[float]]]) -> result.Result:
    """Tables and verdict."""
    trips, rates, shares = found["hop"], found["way"], found["clock"]
    added = {
        name: statistics.median(np.subtract(trips[name], trips[HERE]).tolist()) for name in HOP_US
    }
    (far,) = set(rates) - {HERE}
    left = statistics.median(np.divide(rates[far], rates[HERE]).tolist())
    (ahead,) = set(shares) - {HERE}
    lost = statistics.mean(shares[HERE]) - statistics.mean(shares[ahead])
    is_met = (
        all(added[name] <= most for name, most in HOP_US.items())
        and left >= WAY_LEAST
        and lost <= CLOCK_POINTS
    )
    tables = (
        result.Table(
            title="The hop: 3 KB through `echo`, one connection",
            head=("replica by", "median round trip us", "added us"),
            rows=[
                (
                    name,
                    f"{statistics.median(each):.0f}",
                    f"{added[name]:.0f}" if name in added else "",
                )
                for name, each in trips.items()
            ],
        ),
        result.Table(
            title=f"The way: a model of 1 ms, {CLIENTS} clients",
            head=("replica by", "answers/s", "ratio"),
            rows=[
                (name, f"{statistics.median(each):.0f}", f"{left:.3f}" if name == far else "")
                for name, each in rates.items()
            ],
        ),
        result.Table(
            title=f"The clock: `resnet` under Clockwork, {1e3 * OBJECTIVE_S:g} ms",
            head=("replica by", "in time %"),
            rows=[(name, f"{statistics.mean(each):.2f}") for name, each in shares.items()],
        ),
    )
    return result.Result(
        name="node_agents",
        question="What does it cost to have a replica behind a node agent?",
        target=f"added by TCP at most {HOP_US['TCP']:g} us, by mutual TLS {HOP_US['mutual TLS']:g} us; at "
        f"least {WAY_LEAST:g} of the throughput over a way of {1e3 * WAY_S:g} ms; in time within "
        f"{CLOCK_POINTS:g} points with another clock",
        verdict=f"TCP adds {added['TCP']:.0f} us, mutual TLS {added['mutual TLS']:.0f} us; {left:.3f} of the "
        f"throughput; {lost:+.2f} points fewer in time",
        is_met=is_met,
        tables=tables,
        figures=dict(found),
    )


def main() -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="of each question (default 10)")
    options = result.parsed(parser, rounds=2)
    if missing := wrk.is_missing():
        parser.error(missing)
    found = {}
    for name, measure in {"hop": hop, "way": way, "clock": clock}.items():
        result.say(name)
        found[name] = measure(options.rounds)
    return result.conclude(concluded(found), options)


if __name__ == "__main__":
    sys.exit(main())
