"""Machines of one gateway: one connection to each, staged files on each, and which are to be avoided."""

import asyncio
import socket
import threading

import pytest

from serving.errors import NotReady
from serving.model_spec import ModelSpec
from serving.spawners.node.agent import Agent
from serving.spawners.node.artefacts import ArtefactStore
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.seats import Address
from serving.spawners.node.spawner import Machines, NodeSpawner
from tests.fakes.local_cluster import LocalCluster, LocalSeat

TIMEOUT_S = 20.0
CREDENTIALS = Credentials.make(tls=False)


class Store(ArtefactStore):
    """Says how often it was asked, and does what it is told before it answers."""

    def __init__(self, folder):
        super().__init__(folder)
        self.folder = folder
        self.before = lambda: None
        self.asked = threading.Event()
        self.layouts = 0

    def lacking(self, manifest):
        self.asked.set()
        self.before()
        return super().lacking(manifest)

    def lay_out(self, manifest):
        self.layouts += 1
        return super().lay_out(manifest)

    def unused(self):
        """Files that another server's agent would remove for lack of space."""
        before = set((self.folder / "contents").iterdir())
        ArtefactStore(self.folder, max_bytes=0).trim()
        return before - set((self.folder / "contents").iterdir())


class Site:
    """A machine: a node agent within this process."""

    def __init__(self, folder):
        self.store = Store(folder)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        port = self.listener.getsockname()[1]
        self.seat = LocalSeat(Address(folder.name, "127.0.0.1", port))
        self._agent = Agent(CREDENTIALS, self._no_replicas, self.store, timeout_s=TIMEOUT_S)
        self._running = None

    def _no_replicas(self):
        pytest.fail("a replica is started")

    def start(self):
        self._running = asyncio.create_task(self._agent.run(self.listener))

    def end(self):
        self._running.cancel()

    async def close(self):
        if self._running is not None:
            self.end()
            await asyncio.wait({self._running})
        self.listener.close()


@pytest.fixture(name="sites")
async def _sites(tmp_path):
    sites = [Site(tmp_path / f"node-{number}") for number in range(2)]
    yield sites
    await asyncio.gather(*(site.close() for site in sites))


@pytest.fixture(name="machines")
async def _machines(sites, tmp_path):
    """Those of the sites that a test starts can be connected."""
    cluster = LocalCluster(CREDENTIALS, tmp_path, count=0)
    machines = Machines(cluster, CREDENTIALS, timeout_s=TIMEOUT_S)
    await machines.enter()
    yield machines
    await machines.leave()


@pytest.fixture(name="spec")
def _spec(tmp_path):
    file = tmp_path / "m.onnx"
    file.write_bytes(b"weights")
    return ModelSpec(name="m", version="1", kind="onnx", path=file)


async def _connect(machines, sites):
    for site in sites:
        site.start()
    return [await machines.node_of(site.seat) for site in sites]


async def _settled(site, is_it):
    async with asyncio.timeout(TIMEOUT_S):
        while not is_it(site.store):
            await asyncio.sleep(0.001)


async def test_one_connection_is_made_though_the_first_fails(machines, sites):
    """An agent ends the session of the first one when a second one comes."""
    site = sites[0]
    first = asyncio.create_task(machines.node_of(site.seat))
    refused, _ = await asyncio.get_running_loop().sock_accept(site.listener)
    second = asyncio.create_task(machines.node_of(site.seat))
    await asyncio.sleep(0)
    refused.close()
    with pytest.raises(NotReady):
        await first
    third = asyncio.create_task(machines.node_of(site.seat))
    site.start()
    node = await second
    assert await third is node
    assert not node.lost.done()


async def test_a_machine_that_is_lost_while_a_model_is_staged_is_left_out(machines, sites, spec):
    """The model is staged on the others."""
    nodes = await _connect(machines, sites)
    loop = asyncio.get_running_loop()
    sites[0].store.before = lambda: loop.call_soon_threadsafe(sites[0].end)
    root = await machines.stage(spec)
    assert machines.nodes() == nodes[1:]
    assert list(nodes[1].layouts) == [root]
    machines.unstage(root)
    await _settled(sites[1], Store.unused)


async def test_files_are_staged_once_by_who_comes_at_once(machines, sites, spec):
    """By a start and the staging, of which the second would use them for ever."""
    site, let = sites[0], threading.Event()
    (node,) = await _connect(machines, [site])
    site.store.before = lambda: let.wait(TIMEOUT_S)
    staging = asyncio.create_task(machines.stage(spec))
    await _settled(site, lambda store: store.asked.is_set())
    starting = asyncio.create_task(machines.node_of(site.seat))
    await asyncio.sleep(0)
    let.set()
    assert await starting is node
    root = await staging
    assert site.store.layouts == 1
    assert list(node.layouts) == [root]
    machines.unstage(root)
    await _settled(site, Store.unused)


async def test_a_staging_that_is_given_up_leaves_nothing(machines, sites, spec):
    """Machines that come later do not get the files."""
    (near, late), let = sites, threading.Event()
    (node,) = await _connect(machines, [near])
    near.store.before = lambda: let.wait(TIMEOUT_S)
    staging = asyncio.create_task(machines.stage(spec))
    await _settled(near, lambda store: store.asked.is_set())
    staging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staging
    let.set()
    (other,) = await _connect(machines, [late])
    assert not late.store.asked.is_set()
    assert not node.layouts
    assert not other.layouts


async def test_what_is_unstaged_while_it_is_sent_is_not_kept(machines, sites, spec):
    """A machine that connects just then keeps it as long as there is space, as the others do."""
    (late, _), let = sites, threading.Event()
    root = await machines.stage(spec)
    late.store.before = lambda: let.wait(TIMEOUT_S)
    connecting = asyncio.create_task(_connect(machines, [late]))
    await _settled(late, lambda store: store.asked.is_set())
    machines.unstage(root)
    let.set()
    (node,) = await connecting
    assert not node.layouts
    await _settled(late, Store.unused)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_machine_on_which_a_start_fails_is_avoided(machines, sites, is_cancelled):
    """One that cannot be dialled, too; but not if the replica is no longer wanted."""
    cluster, site = machines.cluster, sites[0]

    async def seat(_wanted, _on_waiting):
        return site.seat

    cluster.seat = seat
    spawner = NodeSpawner(machines)
    await spawner.open("echo")
    limits = {"cpu": None, "memory_mb": None, "ready_timeout_s": TIMEOUT_S}
    starting = asyncio.create_task(spawner.start(1, **limits, spec=None))
    dialled, _ = await asyncio.get_running_loop().sock_accept(site.listener)
    if is_cancelled:
        starting.cancel()
    dialled.close()
    with pytest.raises(asyncio.CancelledError if is_cancelled else NotReady):
        await starting
    assert cluster.avoided == ([] if is_cancelled else ["node-0"])
    assert site.seat.is_given_back
    await spawner.close()
