"""Starts on another machine: what their time is for."""

import asyncio
import pathlib

from serving.model_spec import ModelSpec
from serving.spawners.node.seats import Address
from serving.spawners.node.spawner import NodeSpawner
from serving.system.remote_clock import RemoteClock
from tests.fakes.local_cluster import LocalSeat

READY_S = 0.05
ECHO = ModelSpec(name="e", version="1", kind="echo", path=None)


class SlowMachine:
    """A cluster of one machine, which takes longer for files than a replica may take for its start."""

    name = "node-0"

    def __init__(self):
        self.clock = RemoteClock()
        self.cluster = self
        self.laid = []

    async def enter(self):
        pass

    async def leave(self):
        pass

    def avoid(self, _address):
        pass

    trust = avoid

    async def seat(self, _wanted, _wait):
        return LocalSeat(Address(self.name, "127.0.0.1", 1))

    async def node_of(self, _seat):
        await asyncio.sleep(2 * READY_S)  # files of staged models
        return self

    async def manifest_of(self, _spec):
        await asyncio.sleep(2 * READY_S)
        return {}

    async def lay_out(self, manifest):
        await asyncio.sleep(2 * READY_S)
        self.laid.append(manifest)
        return pathlib.Path("/layouts/x")

    async def open_kind(self, _kind):
        return {"limits": "enforced", "image": ""}

    async def start(self, replica, **_wanted):
        replica.pid = 7

    def kill(self, replica):
        pass


async def test_files_do_not_count_towards_the_time_of_a_start():
    """They may be large, and the next try would send them again."""
    machine = SlowMachine()
    spawner = NodeSpawner(machine)
    await spawner.open("echo")
    replica = await spawner.start(1, cpu=None, memory_mb=None, ready_timeout_s=READY_S, spec=ECHO)
    assert replica.pid == 7
    assert machine.laid == [{}]
