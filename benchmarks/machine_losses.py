"""Loses machines under load: no request may fail, whether a machine is killed or its link is cut.

    python benchmarks/machine_losses.py [--losses 20] [--quick] [--write] [--json]

Two machines (network namespaces with a Ray node each) run two replicas of `resnet` each; 20 clients ask the
server, which is on a third, without a pause (closed loop). In turn a machine is lost and comes back: all its
processes get SIGKILL, or its link is taken away for some seconds. The gap of a loss is the longest time
without any answer in the two seconds after it.

Ends with 1 when a target is missed. Needs root, iproute2 and the extra `ray`. Takes half an hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from unittest import mock

import numpy as np
import numpy.typing as npt
import open_loop
import ray_machines
import replica_kills
import result
import server_process

from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan

CLIENTS = 20
REPLICAS = 4
CORES = 4
"""Cores that a machine offers: room for all replicas while the other one is away."""
MODEL = "resnet"
TIMEOUT_S = 10.0
CUT_S = 6.0
CALM_S = 2.0
BACK_S = 120.0
LOOK_S = 2.0
SLICE_S = 60.0
"""Length of one run of the load generator: losses happen within and between them."""
MEDIAN_GAP_S, LONGEST_GAP_S, LONGEST_CUT_S = 0.1, 0.6, 3.0
KINDS = ("killed", "cut")
NOTE = "Machines are network namespaces of one machine: they share its cores, and no way is long."


@dataclasses.dataclass(slots=True)
class Losses:
    """What was lost, when, and when all replicas were back."""

    at_s: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {k: [] for k in KINDS})
    back_s: dict[str, list[float]] = dataclasses.field(
        default_factory=lambda: {k: [] for k in KINDS}
    )
    error: BaseException | None = None


class Loser(threading.Thread):
    """Loses one machine after the other."""

    def __init__(self, cluster: ray_machines.Cluster, admin_port: int, count: int) -> None:
        super().__init__(name="loser")
        self._cluster = cluster
        self._admin_port = admin_port
        self._count = count
        self.losses = Losses()

    def run(self) -> None:
        """Until each kind has happened so often."""
        try:
            for number in range(len(KINDS) * self._count):
                self._wait_for_all()
                time.sleep(CALM_S)
                self._lose(self._cluster.machines[number // len(KINDS) % 2], KINDS[number % 2])
            self._wait_for_all()
            time.sleep(CALM_S)
        except BaseException as error:
            self.losses.error = error

    def _lose(self, machine: ray_machines.Machine, how: str) -> None:
        begun_s = time.monotonic()
        self.losses.at_s[how].append(begun_s)
        if how == "killed":
            machine.kill()
        else:
            machine.cut()
            time.sleep(CUT_S)
        self._wait_for_all(gone=machine.address)
        self.losses.back_s[how].append(time.monotonic() - begun_s)
        if how == "killed":
            machine.start()
        else:
            machine.join()
        self._spread()

    def _spread(self) -> None:
        """Let each machine have as many replicas, once the server uses both again."""
        until_s = time.monotonic() + BACK_S
        while self._counts() != [REPLICAS // 2] * 2:
            if time.monotonic() > until_s:
                raise server_process.ServerFailed(f"replicas are spread as {self._counts()}")
            time.sleep(1.0)
            for count in (REPLICAS // 2, REPLICAS):  # new ones go where there are few
                body = json.dumps({"settings": {"replica.count": count}}).encode()
                server_process.administer(self._admin_port, "PATCH", "/admin/settings", body)

    def _counts(self) -> list[int]:
        rows = replica_kills.replicas(self._admin_port)
        return [sum(row["node"] == one.address for row in rows) for one in self._cluster.machines]

    def _wait_for_all(self, gone: str = "") -> None:
        until_s = time.monotonic() + BACK_S
        while True:
            rows = replica_kills.replicas(self._admin_port)
            ready = sum(row["state"] == "ready" for row in rows)
            if ready >= REPLICAS and (not gone or all(row["node"] != gone for row in rows)):
                return
            if time.monotonic() > until_s:
                raise server_process.ServerFailed(
                    f"{ready} of {REPLICAS} replicas after {BACK_S:g} s"
                )
            time.sleep(0.05)


def measured(count: int) -> tuple[list[PhaseResult], Losses]:
    """Load, and lose."""
    with ray_machines.cluster(2, cores=CORES) as cluster:
        settings = {"replica.spawner": "ray", "replica.count": REPLICAS}
        with (
            mock.patch.dict("os.environ", cluster.environment),
            server_process.served(MODEL, settings) as where,
            LoadGenerator() as generator,
        ):
            sent = open_loop.images(where.port, MODEL)
            generator.set_payloads(sent)
            loser = Loser(cluster, where.admin_port, count)
            loser.start()
            phases = list(_slices(generator, where.port, loser))
    if loser.losses.error is not None:
        raise loser.losses.error
    return phases, loser.losses


def _slices(generator: LoadGenerator, port: int, loser: Loser) -> Iterator[PhaseResult]:
    while loser.is_alive():
        plan = PhasePlan(
            host="127.0.0.1",
            port=port,
            concurrency=CLIENTS,
            seconds=SLICE_S,
            timeout_s=TIMEOUT_S,
        )
        yield generator.run(plan)


def gaps_s(at_s: list[float], finished_s: npt.NDArray[np.float64]) -> list[float]:
    """The longest time without an answer after each loss."""
    found = []
    for begun_s in at_s:
        within = finished_s[(finished_s >= begun_s) & (finished_s <= begun_s + LOOK_S)]
        found.append(float(np.diff(np.concatenate([[begun_s], within])).max()))
    return found


def longest_s(
    at_s: list[float], sent_s: npt.NDArray[np.float64], finished_s: npt.NDArray[np.float64]
) -> float:
    """The longest round trip of the requests that were under way or came soon after a loss."""
    touched = np.zeros(len(sent_s), dtype=bool)
    for begun_s in at_s:
        touched |= (finished_s >= begun_s) & (sent_s <= begun_s + CUT_S)
    return float((finished_s - sent_s)[touched].max())


def concluded(phases: list[PhaseResult], losses: Losses) -> result.Result:
    """Table and verdict."""
    status = np.concatenate([phase.records.status for phase in phases])
    sent_s = np.concatenate([phase.origin_s + phase.records.intended_s for phase in phases])
    finished_s = np.concatenate([phase.origin_s + phase.records.finished_s for phase in phases])
    failed = int(np.count_nonzero(status != 200))
    rows, figures = [], {}
    for kind in KINDS:
        gap_s = gaps_s(losses.at_s[kind], np.sort(finished_s))
        figures[kind] = {
            "losses": len(gap_s),
            "gap_median_s": statistics.median(gap_s),
            "gap_longest_s": max(gap_s),
            "round_trip_longest_s": longest_s(losses.at_s[kind], sent_s, finished_s),
            "back_median_s": statistics.median(losses.back_s[kind]),
            "back_longest_s": max(losses.back_s[kind]),
        }
        row = figures[kind]
        rows.append(
            (
                kind,
                str(row["losses"]),
                f"{1e3 * row['gap_median_s']:.0f}",
                f"{1e3 * row['gap_longest_s']:.0f}",
                f"{1e3 * row['round_trip_longest_s']:.0f}",
                f"{row['back_median_s']:.1f}",
                f"{row['back_longest_s']:.1f}",
            )
        )
    killed, cut = figures["killed"], figures["cut"]
    is_met = (
        not failed
        and killed["gap_median_s"] <= MEDIAN_GAP_S
        and killed["gap_longest_s"] <= LONGEST_GAP_S
        and cut["round_trip_longest_s"] <= LONGEST_CUT_S
    )
    head = ("machine is", "times", "gap median ms", "gap longest ms", "round trip longest ms",
        "all back, median s", "longest s")  # fmt: skip
    return result.Result(
        name="machine_losses",
        question=f"Does a request fail when one of two machines with {REPLICAS // 2} replicas each is "
        "lost, and how long does nobody get an answer?",
        target=f"no failed request; killed: median gap {1e3 * MEDIAN_GAP_S:.0f} ms, longest "
        f"{1e3 * LONGEST_GAP_S:.0f} ms; cut: longest round trip {LONGEST_CUT_S:g} s",
        verdict=f"{failed} of {len(status):,} requests failed; killed: median gap "
        f"{1e3 * killed['gap_median_s']:.0f} ms, longest {1e3 * killed['gap_longest_s']:.0f} ms; cut: "
        f"longest round trip {cut['round_trip_longest_s']:.2f} s",
        is_met=is_met,
        tables=(result.Table(title=f"`{MODEL}`, {CLIENTS} clients", head=head, rows=rows),),
        figures={
            "requests": len(status),
            "failed": failed,
            **figures,
        },
        packages=("onnxruntime", "ray"),
        notes=(NOTE,),
    )


def main() -> int:
    """Lose, and count."""
    parser = argparse.ArgumentParser(description="losses of machines under load")
    parser.add_argument("--losses", type=int, default=20, help="of each kind (default 20)")
    options = result.parsed(parser, losses=2)
    return result.conclude(concluded(*measured(options.losses)), options)


if __name__ == "__main__":
    sys.exit(main())
