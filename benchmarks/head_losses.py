"""Loses Ray's head under load: requests must go on as if nothing had happened.

    python benchmarks/head_losses.py [--rounds 3] [--quick] [--write] [--json]

Two machines (network namespaces with a Ray node each) run two replicas of `resnet` each; 20 clients ask the
server, which is on a machine of its own, without a pause (closed loop). All processes of the head's machine get
SIGKILL, and it is started again after 50 s; Ray waits 60 s for it by default. Then it is away for 120 s, where
Ray's processes were started with RAY_gcs_rpc_server_reconnect_timeout_s=600. Its state is in a Redis server.
Throughput is compared between the time that the head is away and the same time before it. At the end of each
round a replica is killed and must be replaced, as the head's state is known again.

Ends with 1 when a target is missed. Needs root, iproute2, redis-server and the extra `ray`. Takes 20 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from unittest import mock

import machine_losses
import numpy as np
import open_loop
import ray_machines
import replica_kills
import result
import server_process

from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan

AWAY_S = (50.0, 120.0)
WAITS_S = {50.0: 60, 120.0: 600}
LEAST = 0.95
SETTLE_S = 3.0
REDIS_PORT = 6398


@contextlib.contextmanager
def redis() -> Iterator[None]:
    """A Redis server on `ray_machines.HERE`."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("--bind", ray_machines.HERE, "--port", str(REDIS_PORT), "--protected-mode", "no")
        server = subprocess.Popen(
            ["redis-server", *words, "--save", "", "--dir", folder, "--daemonize", "no"],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            server.kill()
            server.wait()


class HeadLoser(threading.Thread):
    """Loses the head again and again."""

    def __init__(
        self, cluster: ray_machines.Cluster, admin_port: int, *, away_s: float, rounds: int
    ) -> None:
        super().__init__(name="head loser")
        self._cluster = cluster
        self._admin_port = admin_port
        self._away_s = away_s
        self._rounds = rounds
        self.lost_s: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """So many rounds of a time with the head, one without, and a replacement."""
        try:
            for _ in range(self._rounds):
                time.sleep(SETTLE_S + self._away_s)
                self.lost_s.append(time.monotonic())
                self._cluster.head.kill()
                time.sleep(self._away_s)
                self._cluster.head.start_head()
                self._replace()
        except BaseException as error:
            self.error = error

    def _replace(self) -> None:
        """Kill a replica; return once another one is ready."""
        first = replica_kills.replicas(self._admin_port)[0]
        os.kill(int(str(first["pid"])), signal.SIGKILL)
        until_s = time.monotonic() + machine_losses.BACK_S
        while True:
            rows = replica_kills.replicas(self._admin_port)
            ready = [row["worker"] for row in rows if row["state"] == "ready"]
            if len(ready) == machine_losses.REPLICAS and first["worker"] not in ready:
                return
            if time.monotonic() > until_s:
                raise server_process.ServerFailed(f"{len(ready)} replicas after the head came back")
            time.sleep(0.1)


def measured(away_s: float, rounds: int) -> tuple[list[PhaseResult], list[float]]:
    """Load, and lose the head."""
    cores = machine_losses.CORES
    environment = {
        "RAY_REDIS_ADDRESS": f"{ray_machines.HERE}:{REDIS_PORT}",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(WAITS_S.get(away_s, 60)),
    }
    with ray_machines.cluster(2, cores=cores, environment=environment, beside=redis()) as cluster:
        settings = {"replica.spawner": "ray", "replica.count": machine_losses.REPLICAS}
        with (
            mock.patch.dict("os.environ", cluster.environment),
            server_process.served(machine_losses.MODEL, settings) as where,
            LoadGenerator() as generator,
        ):
            generator.set_payloads(open_loop.images(where.port, machine_losses.MODEL))
            loser = HeadLoser(cluster, where.admin_port, away_s=away_s, rounds=rounds)
            loser.start()
            plan = PhasePlan(
                host="127.0.0.1",
                port=where.port,
                concurrency=machine_losses.CLIENTS,
                seconds=machine_losses.SLICE_S,
                timeout_s=machine_losses.TIMEOUT_S,
            )
            phases = []
            while loser.is_alive():
                phases.append(generator.run(plan))
    if loser.error is not None:
        raise loser.error
    return phases, loser.lost_s


def concluded(found: dict[float, tuple[list[PhaseResult], list[float]]]) -> result.Result:
    """Table and verdict."""
    rows, figures, requests, failed = [], {}, 0, 0
    for away_s, (phases, lost_s) in found.items():
        status = np.concatenate([phase.records.status for phase in phases])
        at_s = np.concatenate([phase.origin_s + phase.records.finished_s for phase in phases])
        requests, failed = requests + len(status), failed + int(np.count_nonzero(status != 200))
        ratios = []
        for begun_s in lost_s:
            without = np.count_nonzero((at_s >= begun_s) & (at_s < begun_s + away_s))
            before = np.count_nonzero((at_s < begun_s) & (at_s >= begun_s - away_s))
            ratios.append(float(without / before))
        figures[f"{away_s:g}"] = {"ratios": ratios, "median": statistics.median(ratios)}
        rows.append(
            (
                f"{away_s:g} s",
                str(len(lost_s)),
                f"{np.count_nonzero(status != 200)} of {len(status):,}",
                f"{statistics.median(ratios):.3f}",
                ", ".join(f"{ratio:.3f}" for ratio in ratios),
            )
        )
    medians = [statistics.median(row["ratios"]) for row in figures.values()]
    title = f"`{machine_losses.MODEL}`, {machine_losses.CLIENTS} clients"
    head = ("head away", "times", "failed", "throughput without over with", "each time")
    return result.Result(
        name="head_losses",
        question="Does a request fail, or does throughput fall, while the head of the Ray cluster is away?",
        target=f"no failed request; throughput at least {LEAST:g} of that with the head",
        verdict=f"{failed} of {requests:,} requests failed; throughput without the head over that with it: "
        + ", ".join(f"{median:.3f}" for median in medians),
        is_met=not failed and min(medians) >= LEAST,
        tables=(result.Table(title=title, head=head, rows=rows),),
        figures={"requests": requests, "failed": failed, "away": figures},
        packages=("onnxruntime", "ray"),
        notes=(machine_losses.NOTE,),
    )


def main() -> int:
    """Lose the head, and count."""
    parser = argparse.ArgumentParser(description="losses of Ray's head under load")
    parser.add_argument("--rounds", type=int, default=3, help="of each length (default 3)")
    options = result.parsed(parser, rounds=1)
    pathlib.Path("/run/netns").mkdir(exist_ok=True)
    away_s = (8.0,) if options.quick else AWAY_S
    return result.conclude(concluded({s: measured(s, options.rounds) for s in away_s}), options)


if __name__ == "__main__":
    sys.exit(main())
