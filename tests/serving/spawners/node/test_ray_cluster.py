"""Machines of a Ray cluster as the gateway sees them, beside a steward that the test plays."""

import asyncio
import contextlib
import socket

from hypothesis import given
from hypothesis import strategies as st

from serving.settings.cluster import ClusterSettings
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.ray_cluster import RayCluster
from serving.spawners.node.seats import Resources
from serving.system.control_channel import ControlChannel

NODES = ("a", "b")


class Played(ControlChannel):
    """The gateway's end of the channel to a steward that is no process."""

    def end(self, _within_s):
        self.sock.close()


@contextlib.asynccontextmanager
async def _played():
    """Yield a cluster, and the steward's end of the channel."""
    ours, theirs = socket.socketpair()
    cluster = RayCluster(ClusterSettings(), Credentials.make(tls=False), None)
    cluster._steward = Played(ours)
    asyncio.get_running_loop().add_reader(ours, cluster._read)
    try:
        with theirs:
            yield cluster, ControlChannel(theirs)
            await cluster.close()
    finally:
        ours.close()


async def _take(cluster):
    return await cluster.seat(Resources(cpu=1.0, memory_mb=None, gpu=0.0), lambda _: None)


def _seat(number, node):
    where = {"name": node, "host": "127.0.0.1", "port": number, "certificate": None}
    return {"event": "seat", "seat": number, "node": node, "gpu": None, **where}


@given(st.permutations([*NODES, *NODES, None]))
def test_a_seat_of_a_machine_that_is_drained_is_told(events):
    """Whether it was given before the machine began to drain (None), or after that."""

    async def play():
        async with _played() as (cluster, steward):
            taking = [asyncio.create_task(_take(cluster)) for node in events if node]
            await asyncio.sleep(0)
            for node in events:
                if node is None:
                    steward.send({"event": "leaving", "node": "a", "text": "drained"})
                else:
                    steward.send(_seat(steward.receive()[0]["seat"], node))
            for seat in await asyncio.gather(*taking):
                assert seat.leaving.done() == (seat.node_id == "a")

    asyncio.run(play())


async def test_the_steward_is_told_what_to_make_of_a_machine():
    """By the engine's id."""
    async with _played() as (cluster, steward):
        taking = asyncio.create_task(_take(cluster))
        await asyncio.sleep(0)
        steward.send(_seat(steward.receive()[0]["seat"], "a"))
        seat = await taking
        cluster.avoid(seat.address)
        cluster.trust(seat.address)
        assert [steward.receive()[0] for _ in range(2)] == [
            {"do": "avoid", "node": "a"},
            {"do": "trust", "node": "a"},
        ]
