"""Replicas on machines of a real Ray cluster."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
import pytest_asyncio

from serving.errors import ReplicaStartFailed
from serving.model_spec import ModelSpec
from serving.settings.cluster import ClusterSettings
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.ray_cluster import RayCluster
from serving.spawners.node.seats import Resources
from serving.spawners.node.spawner import Machines, NodeSpawner
from tests.fakes.ray_machines import CORES, ray_machines

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

WAIT_S = 60.0
ECHO = ModelSpec(name="e", version="1", kind="echo", path=None)


@pytest.fixture(name="machines", scope="module")
def _machines():
    with ray_machines() as machines, pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
            patch.setenv(name, machines.environment[name])
        yield machines


class Bench:
    """A spawner over the cluster."""

    def __init__(self, **settings):
        credentials = Credentials.make(tls=True)
        self.cluster = RayCluster(ClusterSettings(**settings), credentials, None)
        self.spawner = NodeSpawner(Machines(self.cluster, credentials, timeout_s=2.0))
        self._numbers = iter(range(1, 1000))

    async def __aenter__(self):
        await self.spawner.open("echo")
        return self

    async def __aexit__(self, *_exception):
        await self.spawner.close()

    async def start(self, cpu=None, within_s=WAIT_S):
        replica = await self.spawner.start(
            next(self._numbers), cpu=cpu, memory_mb=None, ready_timeout_s=within_s, spec=ECHO
        )
        await replica.attach(asyncio.Protocol)
        return replica


@pytest_asyncio.fixture(name="bench", scope="module", loop_scope="module")
async def _bench(machines):
    async with Bench() as bench:
        yield bench


async def _end(replicas):
    for replica in replicas:
        replica.kill()
    await asyncio.wait_for(asyncio.gather(*(r.ended for r in replicas)), WAIT_S)


async def test_replicas_that_start_together_are_spread(bench):
    """Each machine gets as many, and each replica can be used."""
    replicas = await asyncio.gather(*(bench.start() for _ in range(4)))
    names = [replica.node_name for replica in replicas]
    assert sorted(names.count(name) for name in set(names)) == [2, 2]
    await _end(replicas)


async def test_places_are_given_back(bench):
    """What has ended makes room on a full machine."""
    for _ in range(2):
        replicas = await asyncio.gather(*(bench.start(cpu=CORES) for _ in range(2)))
        assert len({replica.node_name for replica in replicas}) == 2
        await _end(replicas)


async def test_what_fits_nowhere_is_told(bench):
    """The reason is the cluster's, and the wait ends with the start's time."""
    with pytest.raises(ReplicaStartFailed, match=r"no machine .* has room .*99 CPU"):
        await bench.start(cpu=99.0, within_s=4.0)


async def test_a_steward_that_is_killed_is_replaced(bench):
    """Its replicas end with it; the next start asks a new one."""
    replica = await bench.start()
    os.kill(bench.cluster._steward.process.pid, signal.SIGKILL)
    ended = await asyncio.wait_for(replica.ended, WAIT_S)
    assert ended.reason == "node"
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            again = await bench.start()
            break
        except ReplicaStartFailed:
            assert time.monotonic() < until_s
    await _end([again])


async def test_gpus_are_shared_as_reserved(machines):
    """Halves fill one GPU after the other, none twice, and what is too much waits."""
    machines.add(num_cpus=1, num_gpus=2)
    try:
        async with Bench() as bench:
            wanted = Resources(cpu=0.1, memory_mb=None, gpu=0.5)
            seats = [await bench.cluster.seat(wanted, lambda _: None) for _ in range(4)]
            assert sorted(seat.gpu for seat in seats) == ["0", "0", "1", "1"]
            told = []
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(bench.cluster.seat(wanted, told.append), 6.0)
            assert "0.5 GPU" in told[0]
    finally:
        machines.kill()


async def test_a_machine_that_ray_drains_is_told(machines):
    """Its replicas are asked to leave."""
    machines.add(num_cpus=8)
    try:
        async with Bench() as bench:
            replica = await bench.start(cpu=6.0)  # only that machine has so many
            (seat,) = bench.cluster._seats.values()
            words = ("--node-id", seat.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION",
                "--reason-message", "spot", "--deadline-remaining-seconds", "60")  # fmt: skip
            command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", *words]
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                env=machines.environment,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            reason = await asyncio.wait_for(replica.leaving, WAIT_S)
            assert "drains" in reason
            await _end([replica])
    finally:
        machines.kill()


async def test_a_wrong_token_is_one_line(machines, monkeypatch):
    """Whoever has not the cluster's token gets nothing."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    bench = Bench()
    with pytest.raises(ReplicaStartFailed) as told:
        await bench.spawner.open("echo")
    assert "\n" not in str(told.value)
    assert "token" in str(told.value)


async def test_no_token_is_refused_before_anything(machines, monkeypatch):
    """A cluster in which everybody runs code is not used unasked."""
    monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(ReplicaStartFailed, match="RAY_AUTH_MODE=token"):
        await Bench().spawner.open("echo")
