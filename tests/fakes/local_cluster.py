"""A cluster of this machine alone: real node agents on loopback, without an engine."""

import asyncio

from serving.spawners.node.credentials import Credentials
from serving.spawners.node.seats import Address
from serving.spawners.node.spawner import Machines, NodeSpawner
from serving.system.control_channel import ControlledProcess

AGENT_S = 30.0


class LocalSeat:
    """A place on one of the agents; there is always room."""

    gpu = None

    def __init__(self, address):
        self.address = address
        self.is_given_back = False
        self.leaving = asyncio.get_running_loop().create_future()

    def give_back(self):
        self.is_given_back = True


class LocalCluster:
    """Some agents, which take turns."""

    def __init__(self, credentials, folder, *, count=1, spawner="process", timeout_s=2.0):
        self.agents = []
        self.seats = []
        self.avoided = []
        self.trusted = []
        self._first = {
            "credentials": credentials.public(),
            "host": "127.0.0.1",
            "spawner": spawner,
            "image": None,
            "timeout_s": timeout_s,
            "folder": str(folder),
        }
        self._count = count
        self._told = []
        self._able = list(range(count))

    async def open(self):
        self._told = [await asyncio.to_thread(self.start) for _ in range(self._count)]

    def start(self):
        """Start an agent; return its port and certificate."""
        agent = ControlledProcess.start("serving.spawners.node.agent")
        self.agents.append(agent)
        agent.send(self._first)
        told, _ = agent.receive(timeout_s=AGENT_S)
        return told["port"], told["certificate"]

    async def seat(self, wanted, on_waiting):
        number = self._able[len(self.seats) % len(self._able)]
        seat = LocalSeat(Address(f"node-{number}", "127.0.0.1", *self._told[number]))
        self.seats.append(seat)
        return seat

    def use_only(self, *numbers):
        """Give places on these agents only, from now on."""
        self._able = list(numbers)

    def avoid(self, address):
        self.avoided.append(address.node)

    def trust(self, address):
        self.trusted.append(address.node)

    async def close(self):
        for agent in self.agents:
            await asyncio.to_thread(agent.end, AGENT_S)


def node_spawner(folder, *, tls, count=1):
    """A spawner of replicas behind agents of this machine."""
    credentials = Credentials.make(tls=tls)
    cluster = LocalCluster(credentials, folder, count=count)
    return NodeSpawner(Machines(cluster, credentials, timeout_s=2.0))
