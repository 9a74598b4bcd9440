"""Two client processes of the load generator against one, at the same open-loop rate.

    python benchmarks/load_clients.py [--rounds 7] [--seconds 2] [--write] [--json]

A server of `resnet` gets half the rate that it reaches in a closed loop. Each round launches one
client twice and two clients once, in turn. Ends with 1 when the target is missed: the median ratio
of two clients to one, for p50 and for p99, lies within the ratios of the two launches of one
client, and the arrivals of two clients are the schedule to 1 ms. Use a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from typing import Any

import numpy as np
import open_loop
import result
import server_process

from tuner.load_generator.client_group import make_load_generator
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import PhasePlan

MODEL = "resnet"
CONNECTIONS = 40
SHARE = 0.5
MOST_OFF_S = 1e-3
PERCENTILES = (50, 99)


def launch(clients: int, plan: PhasePlan, sent: Payloads) -> dict[str, float]:
    """Percentiles in us of a fresh load generator, and how far arrivals are off the schedule."""
    with make_load_generator(clients) as generator:
        generator.set_payloads(sent)
        phase = generator.run(plan)
    records = phase.records
    assert np.all(records.status == 200)
    measured = (records.finished_s > phase.warmup_end_s) & (
        records.finished_s <= phase.measured_end_s
    )
    took_us = 1e6 * (records.finished_s - records.intended_s)[measured]
    intended_s = np.sort(records.intended_s)
    schedule = plan.arrivals
    due_s = np.array([schedule.due_s(number, 0, 0.0) for number in range(len(intended_s))])
    found = {f"p{q}_us": float(np.percentile(took_us, q)) for q in PERCENTILES}
    late = float(np.percentile((records.started_s - records.intended_s)[measured], 99))
    cpu_s = phase.client_cpu_s / phase.measured_s
    off_s = float(np.max(np.abs(intended_s - due_s)))
    return {**found, "late_p99_us": 1e6 * late, "cores": cpu_s, "off_s": off_s}


def measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    results = []
    with server_process.luthier(MODEL, {}) as port:
        sent = open_loop.images(port, MODEL)
        with LoadGenerator() as generator:
            generator.set_payloads(sent)
            rate = SHARE * open_loop.closed(generator, port, CONNECTIONS // 2, seconds)
        for number in range(rounds):
            plan = PhasePlan(
                host="127.0.0.1",
                port=port,
                concurrency=CONNECTIONS,
                rate_per_s=rate,
                seed=number,
                seconds=seconds,
            )
            order = [("one", 1), ("two", 2), ("again", 1)]
            turned = order[number % 3 :] + order[: number % 3]
            results.append({name: launch(clients, plan, sent) for name, clients in turned})
            results[-1]["rate_per_s"] = rate
    return results


def concluded(results: list[dict[str, Any]]) -> result.Result:
    """The rounds as a table, and whether the targets are met."""
    ratios, is_met, told = {}, True, []
    for q in PERCENTILES:
        name = f"p{q}_us"
        among = [abs(math.log(one["again"][name] / one["one"][name])) for one in results]
        two = [
            one["two"][name] / math.sqrt(one["again"][name] * one["one"][name]) for one in results
        ]
        ratios[name] = {"two over one": statistics.median(two), "one over one": max(among)}
        is_met &= abs(math.log(statistics.median(two))) <= max(among)
        told.append(
            f"p{q} of two clients {statistics.median(two):.3g} x that of one "
            f"(two launches of one differ by up to {math.exp(max(among)):.3g} x)"
        )
    off_s = max(one["two"]["off_s"] for one in results)
    is_met &= off_s <= MOST_OFF_S
    told.append(f"arrivals off the schedule by at most {1e6 * off_s:.0f} us")
    rows = [
        (
            str(number),
            *(
                f"{one[which][f'p{q}_us']:.0f}"
                for q in PERCENTILES
                for which in ("one", "again", "two")
            ),
            f"{one['one']['cores']:.2f}",
            f"{one['two']['cores']:.2f}",
        )
        for number, one in enumerate(results, start=1)
    ]
    head = ("round", "p50 us", "again", "two", "p99 us", "again", "two", "cores", "two")
    return result.Result(
        name="load_clients",
        question="Do two clients of the load generator measure what one does? A server of "
        f"`{MODEL}`, Poisson arrivals at {results[0]['rate_per_s']:,.0f} requests/s, half of what "
        "it can do.",
        target="p50 and p99 of two clients as near to those of one as two launches of one are to "
        f"each other, arrivals within {1e3 * MOST_OFF_S:g} ms of the schedule",
        verdict=f"{'; '.join(told)} (medians of {len(results)} rounds)",
        is_met=is_met,
        tables=(result.Table(title="Rounds", head=head, rows=rows),),
        figures={"rounds": results, "ratios": ratios},
        packages=("uvloop",),
    )


def main() -> int:
    """Measure in turn, and compare."""
    parser = argparse.ArgumentParser(description="Two clients of the load generator against one.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured, per launch")
    result.add_options(parser)
    options = parser.parse_args()
    return result.conclude(concluded(measure(options.rounds, options.seconds)), options)


if __name__ == "__main__":
    sys.exit(main())
