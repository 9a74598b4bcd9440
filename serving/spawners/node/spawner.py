"""Spawner of replicas on other machines, for one gateway and model kind.

An engine (`seats`) reserves a place; the machine's agent starts the replica there, as on one
machine; the gateway dials it. A machine that is lost takes all its replicas along at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import pathlib
import weakref

from serving.errors import NotReady, ReplicaStartFailed, ServingError
from serving.model_spec import ModelSpec
from serving.settings.replica import AcceleratorSettings
from serving.spawners import handshake
from serving.spawners.exit_status import ExitStatus
from serving.spawners.node import artefacts, messages
from serving.spawners.node.artefacts import FileEntry, Manifest, ManifestMaker
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.node import Node, NodeReplica
from serving.spawners.node.seats import Address, Cluster, Resources, Seat
from serving.system.daemon_threads import run_in_daemon_thread

log = logging.getLogger(__name__)

_WHOLE_GPU = 100


@dataclasses.dataclass(slots=True)
class _Staged:
    """Files that models in shared replicas use."""

    manifest: Manifest
    users: int = 0


class Machines:
    """One gateway's machines, shared by its spawners; open as long as one of them is."""

    def __init__(self, cluster: Cluster, credentials: Credentials, *, timeout_s: float) -> None:
        """`timeout_s` is the time after which a machine that is not heard is lost."""
        self.cluster = cluster
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._nodes: dict[Address, Node] = {}
        self._users = 0
        self._changing = asyncio.Lock()
        self._manifests = ManifestMaker()
        self._staged: dict[pathlib.Path, _Staged] = {}
        self._connecting = weakref.WeakValueDictionary[Address, asyncio.Lock]()
        """Held by whoever connects to an agent, or lays out staged files there."""

    async def enter(self) -> None:
        """Connect to the engine for the first spawner."""
        async with self._changing:
            if not self._users:
                await self.cluster.open()
            self._users += 1

    async def leave(self) -> None:
        """Close everything after the last spawner."""
        async with self._changing:
            self._users -= 1
            if not self._users:
                nodes, self._nodes = list(self._nodes.values()), {}
                await asyncio.gather(*(node.close() for node in nodes))
                await self.cluster.close()

    def nodes(self) -> list[Node]:
        """Return the machines that are connected."""
        return list(self._nodes.values())

    async def node_of(self, seat: Seat) -> Node:
        """Return the connected machine of a seat.

        Raises:
            ServingError, OSError: it cannot be used.
        """
        address = seat.address
        async with self._lock_of(address):
            node = self._nodes.get(address)
            if node is None:
                node = Node(
                    address, self._credentials, timeout_s=self._timeout_s, on_lost=self._lost
                )
                await node.open()
                if not self._users:
                    await node.close()
                    raise NotReady("the machines are no longer used")
                self._nodes[address] = node
                log.info("machine connected", extra={"node": node.name, **node.facts})
            for root in list(self._staged):
                await self._lay_out(node, root)
            return node

    def _lock_of(self, address: Address) -> asyncio.Lock:
        return self._connecting.setdefault(address, asyncio.Lock())

    async def _lay_out(self, node: Node, root: pathlib.Path) -> None:
        """Have a staged model's files on a machine; loads there fail without them."""
        staged = self._staged.get(root)
        if staged is None or root in node.layouts:
            return
        try:
            folder = await node.lay_out(staged.manifest)
        except (OSError, ServingError) as error:
            log.warning("staged files are missing", extra={"node": node.name, "reason": str(error)})
            return
        if root in self._staged:
            node.layouts[root] = folder
        else:
            node.release(folder)

    def _lost(self, node: Node) -> None:
        if self._nodes.get(node.address) is not node:
            return
        del self._nodes[node.address]
        if self._users:
            log.warning("machine lost", extra={"node": node.name, "reason": node.lost.result()})
            self.cluster.avoid(node.address)

    async def manifest_of(self, spec: ModelSpec) -> dict[str, FileEntry]:
        """Return the files that replicas of a model read.

        Raises:
            ReplicaStartFailed: one cannot be read.
        """
        try:
            return await run_in_daemon_thread(self._manifests.make, spec.files)
        except (OSError, artefacts.ArtefactError) as error:
            text = f"the files of {spec.label} cannot be sent to other machines: {error}"
            raise ReplicaStartFailed("load", text) from error

    async def stage(self, spec: ModelSpec) -> pathlib.Path:
        """Send a model's files to all machines, also later ones; return the name of the folder."""
        manifest = await self.manifest_of(spec)
        content = repr(sorted(manifest.items())).encode()
        root = pathlib.Path("/", hashlib.sha256(content).hexdigest()[:32])
        staged = self._staged.setdefault(root, _Staged(manifest))
        staged.users += 1

        async def lay_out(node: Node) -> None:
            async with self._lock_of(node.address):
                await self._lay_out(node, root)

        try:
            await asyncio.gather(*map(lay_out, self.nodes()))
        except BaseException:
            self.unstage(root)
            raise
        return root

    def unstage(self, root: pathlib.Path) -> None:
        """Forget a staged model that nobody else uses; machines keep its files while there is space."""
        staged = self._staged[root]
        staged.users -= 1
        if staged.users:
            return
        del self._staged[root]
        for node in self.nodes():
            folder = node.layouts.pop(root, None)
            if folder is not None:
                node.release(folder)


class NodeSpawner:
    """Spawner of replicas on other machines for one model kind. Not thread-safe."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._kind: str | None = None
        self._replicas: dict[int, NodeReplica] = {}
        self._seats: dict[int, Seat] = {}
        self._limits_text = "not enforced: no machine has been used"
        self.image_id = ""

    @property
    def limits_text(self) -> str:
        """Whether limits hold on the machine that was used last."""
        return self._limits_text

    async def open(self, kind: str) -> None:
        """Connect to the engine, or raise ReplicaStartFailed."""
        await self._machines.enter()
        self._kind = kind

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        spec: ModelSpec | None,
        accelerator: AcceleratorSettings | None = None,
        may_wait: bool = False,
    ) -> NodeReplica:
        """Start a replica (see `Spawner.start`); if cancelled, end it."""
        if self._kind is None:
            raise NotReady("the spawner is not open")
        accelerator = accelerator or AcceleratorSettings()
        wanted = _resources(cpu, memory_mb, accelerator)
        seat = await self._seat(wanted, None if may_wait else ready_timeout_s)
        if seat.gpu is None:  # those of the machine may be reserved for others
            accelerator = dataclasses.replace(accelerator, device="cpu")
        replica: NodeReplica | None = None
        try:
            node = await self._machines.node_of(seat)
            replica = self._replicas[worker] = NodeReplica(worker, node, self._kind)
            replica.leaving = seat.leaving
            replica.ended.add_done_callback(lambda _: self._ended(replica, seat))
            relocated = None
            if spec is not None:  # large files take long, however soon a replica is ready
                replica.root = await node.lay_out(await self._machines.manifest_of(spec))
                relocated = messages.relocated(spec, replica.root)
            async with handshake.ready_within(replica, ready_timeout_s):
                told = await node.open_kind(self._kind)
                self._limits_text, self.image_id = told["limits"], told["image"]
                await node.start(
                    replica,
                    cpu=cpu,
                    memory_mb=memory_mb,
                    ready_timeout_s=ready_timeout_s,
                    accelerator=accelerator,
                    gpu=seat.gpu,
                    spec=relocated,
                )
        except BaseException as error:
            if isinstance(error, Exception):  # else nobody wants it any more
                self._machines.cluster.avoid(seat.address)
            if replica is None:
                seat.give_back()
            elif not replica.ended.done():
                replica.node.forget(replica)
                replica.end(ExitStatus(reason="crash", text="it was never started"))
            if isinstance(error, OSError):
                text = f"a replica cannot be started on {seat.address.node}: {error}"
                raise ReplicaStartFailed("node", text) from error
            if isinstance(error, ServingError) and not isinstance(
                error, ReplicaStartFailed | NotReady
            ):
                raise ReplicaStartFailed("node", str(error)) from error
            raise
        self._machines.cluster.trust(seat.address)
        return replica

    async def _seat(self, wanted: Resources, timeout_s: float | None) -> Seat:
        reasons = ["the engine gave no place for a replica"]

        def wait(reason: str) -> None:
            reasons.append(reason)
            log.warning("a replica waits for a place", extra={"reason": reason})

        try:
            async with asyncio.timeout(timeout_s):
                return await self._machines.cluster.seat(wanted, wait)
        except TimeoutError:
            text = f"{reasons[-1]} within {timeout_s:g} s (replica.ready_timeout_s)"
            raise ReplicaStartFailed("place", text) from None

    async def stage(self, spec: ModelSpec) -> pathlib.Path | None:
        """Stage a model's files on all machines (see `Spawner.stage`)."""
        return await self._machines.stage(spec)

    async def unstage(self, root: pathlib.Path | None) -> None:
        """See `Spawner.unstage`."""
        if root is not None:
            self._machines.unstage(root)

    async def close(self) -> None:
        """End all replicas and clean up. May be called again."""
        if self._kind is None:
            return
        self._kind = None
        replicas = list(self._replicas.values())
        for replica in replicas:
            replica.kill()
        if replicas:
            await asyncio.wait([replica.ended for replica in replicas], timeout=10.0)
        await self._machines.leave()

    def _ended(self, replica: NodeReplica, seat: Seat) -> None:
        self._replicas.pop(replica.worker, None)
        if replica.root is not None:
            replica.node.release(replica.root)
        seat.give_back()


def _resources(
    cpu: float | None, memory_mb: int | None, accelerator: AcceleratorSettings
) -> Resources:
    gpu = 0.0
    if accelerator.device == "cuda":
        gpu = (accelerator.share or _WHOLE_GPU) / _WHOLE_GPU
    return Resources(cpu=cpu or 1.0, memory_mb=memory_mb, gpu=gpu)
