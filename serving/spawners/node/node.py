"""One machine as the gateway sees it: the connection to its agent, and the replicas on it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import pathlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from serving.errors import LimitsUnavailable, NotReady, ServingError
from serving.settings.replica import AcceleratorSettings
from serving.spawners.base_replica import BaseReplica
from serving.spawners.exit_status import ExitStatus
from serving.spawners.node import artefacts, files, link, messages
from serving.spawners.node.artefacts import FileEntry
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.link import Link, Refused
from serving.spawners.node.seats import Address
from serving.system.cgroups.cgroup import Usage
from serving.system.remote_clock import RemoteClock

log = logging.getLogger(__name__)

_FIRST_PINGS = 4
_PING_PERIOD_S = 0.25


class NodeReplica(BaseReplica):
    """Replica on another machine. Not thread-safe."""

    def __init__(self, worker: int, node: Node, kind: str) -> None:
        super().__init__(worker)
        self.node = node
        self.node_name = node.name
        self.kind = kind
        self.clock = node.clock
        self.tls: ssl.SSLContext | None = None
        self.root: pathlib.Path | None = None
        """Folder on its machine below which its model's files have their paths."""

    def root_of(self, root: pathlib.Path | None) -> pathlib.Path | None:
        """Return where files that `NodeSpawner.stage` named `root` are on its machine."""
        return self.root if root is None else self.node.layouts.get(root, root)

    async def attach(self, make: Callable[[], asyncio.Protocol]) -> None:
        """See `Replica.attach`."""
        context = self.tls
        await asyncio.get_running_loop().create_connection(
            make,
            sock=self.sock,
            ssl=context,
            server_hostname=None if context is None else "luthier",
            ssl_handshake_timeout=None if context is None else link.CONNECT_S,
        )

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits and read them back.

        Raises:
            LimitsUnavailable: they are refused, or the machine cannot be asked.
        """
        try:
            told = await self.node.ask("limit", worker=self.worker, cpu=cpu, memory_mb=memory_mb)
        except ConnectionError as error:
            raise LimitsUnavailable(f"the machine {self.node.name} is lost: {error}") from error
        self.set_usage(told["usage"])

    def end(self, ended: ExitStatus) -> None:
        """Take note of its end."""
        if not self.ended.done():
            self.ended.set_result(ended)

    def set_usage(self, told: object) -> None:
        """Take note of the usage that the agent told."""
        self._last_usage = messages.usage_from_json(told) or self._last_usage

    def usage(self) -> Usage:
        """Return the last usage that the agent told, at most half a second old."""
        return self._last_usage

    def _request_end(self) -> None:
        self.node.kill(self)


class Node:
    """Connection to one agent. Not thread-safe."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        *,
        timeout_s: float,
        on_lost: Callable[[Node], None],
    ) -> None:
        """Prepare; `on_lost` is called once the machine is lost, before its replicas end."""
        self.name = address.node
        self.address = address
        self.replicas: dict[int, NodeReplica] = {}
        self.layouts: dict[pathlib.Path, pathlib.Path] = {}
        """Folders with the files of staged models, by the name that `stage` returned."""
        self.facts: Mapping[str, Any] = {}
        self.clock = RemoteClock()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._credentials = credentials
        self._context = credentials._replace(peer=address.certificate).context(server=False)
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._link: Link | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._probes: set[asyncio.Future[None]] = set()
        self._sending = asyncio.Lock()
        self._opened: dict[str, Mapping[str, Any]] = {}

    async def open(self) -> None:
        """Connect to the agent.

        Raises:
            NotReady: it cannot be reached, or refuses.
        """
        try:
            self._link = await self._dial("control")
            async with asyncio.timeout(link.CONNECT_S):
                hello, _ = await self._link.receive()
                self.facts = {name: hello.get(name) for name in ("version", "cores")}
            self._reading = asyncio.create_task(self._read(self._link), name=f"node {self.name}")
            for _ in range(_FIRST_PINGS):
                await self._probe()
        except (OSError, Refused, TimeoutError) as error:
            text = f"{error or 'it does not answer'}"
            self._lose(text)
            raise NotReady(
                f"the agent of {self.name} at {self.address.host}:{self.address.port} cannot be "
                f"used: {text}"
            ) from error
        except BaseException:
            self._lose("it was not wanted any more")
            raise
        if self.lost.done():
            raise NotReady(f"the agent of {self.name} cannot be used: {self.lost.result()}")
        self._beating = asyncio.create_task(self._beat(), name=f"beat {self.name}")

    async def close(self) -> None:
        """End the connection, and with it all replicas on the machine."""
        self._lose("the gateway has closed the connection")
        tasks = [task for task in (self._reading, self._beating) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ask(self, do: str, **facts: object) -> dict[str, Any]:
        """Send a request; return the answer.

        Raises:
            ServingError: what the agent has told.
            ConnectionError: the machine is lost.
        """
        if self._link is None or self.lost.done():
            raise ConnectionResetError(self.lost.result() if self.lost.done() else "not connected")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._link.send({"id": number, "do": do, **facts})
            answer: dict[str, Any] = await future
            return answer
        finally:
            self._waiting.pop(number, None)

    # Replicas

    async def open_kind(self, kind: str) -> Mapping[str, Any]:
        """Prepare the machine for a model kind; return its limits and image."""
        if kind not in self._opened:
            self._opened[kind] = await self.ask("open", kind=kind)
        return self._opened[kind]

    async def start(
        self,
        replica: NodeReplica,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        accelerator: AcceleratorSettings,
        gpu: str | None,
        spec: Mapping[str, Any] | None,
    ) -> None:
        """Start a replica and connect to it.

        Raises:
            ServingError: what the agent has told.
            ConnectionError, OSError: the machine is lost.
        """
        self.replicas[replica.worker] = replica
        told = await self.ask(
            "start",
            worker=replica.worker,
            kind=replica.kind,
            cpu=cpu,
            memory_mb=memory_mb,
            ready_timeout_s=ready_timeout_s,
            accelerator={"device": accelerator.device, "share": accelerator.share},
            gpu=gpu,
            spec=spec,
        )
        replica.pid = told["pid"]
        replica.features = tuple(told["features"])
        replica.tls = self._context
        purpose = f"replica {told['ticket']}"
        replica.set_socket(await self._socket(purpose))

    def forget(self, replica: NodeReplica) -> None:
        """Drop a replica whose start has failed."""
        self.replicas.pop(replica.worker, None)

    def kill(self, replica: NodeReplica) -> None:
        """Order the end of a replica; a machine that does not answer is lost."""
        if not self.lost.done() and self._link is not None:
            asked = replica.was_killed
            self._link.send({"do": "kill", "worker": replica.worker, "asked": asked})
            self.probe()

    def probe(self) -> None:
        """Ask the agent whether it lives; if it does not answer soon, the machine is lost."""
        if not self.lost.done():
            probing = asyncio.ensure_future(self._probe())
            self._probes.add(probing)
            probing.add_done_callback(self._probes.discard)

    async def _probe(self) -> None:
        """Ask the agent for its time; if it does not answer in time, the machine is lost."""
        try:
            async with asyncio.timeout(self._timeout_s):
                sent_s = time.monotonic()
                told = await self.ask("ping")
                self.clock.observe(sent_s, told["monotonic_ns"] * 1e-9, time.monotonic())
        except TimeoutError:
            self._lose(f"it did not answer within {self._timeout_s:g} s")
        except (ConnectionError, ServingError):
            pass  # it is lost, or lives
        except (KeyError, TypeError, ValueError) as error:
            self._lose(f"its agent sent what is malformed: {error!r}")

    # Files

    async def lay_out(self, manifest: Mapping[str, FileEntry]) -> pathlib.Path:
        """Send what the machine lacks of a manifest's files; return the folder with all of them.

        Raises:
            ServingError: the machine refuses, for example for lack of space.
            OSError: the machine is lost, or a file cannot be read.
        """
        wanted = artefacts.as_json(manifest)
        async with self._sending:
            lacking = set((await self.ask("lacking", files=wanted))["lacking"])
            if lacking:
                await self._send(
                    {
                        entry.digest: path
                        for path, entry in manifest.items()
                        if entry.digest in lacking
                    }
                )
            return pathlib.Path((await self.ask("lay", files=wanted))["root"])

    def release(self, root: pathlib.Path) -> None:
        """Tell the machine that a folder that `lay_out` returned is not used any more."""
        if self._link is not None and not self.lost.done():
            self._link.send({"do": "release", "root": str(root)})

    async def _send(self, paths: Mapping[str, str]) -> None:
        opened = await self._dial("files")

        def end(_lost: asyncio.Future[str]) -> None:
            opened.abort()

        self.lost.add_done_callback(end)
        try:
            await files.send(opened, paths)
        finally:
            self.lost.remove_done_callback(end)
            opened.abort()

    # The connection

    async def _socket(self, purpose: str) -> socket.socket:
        return await link.dial(
            self.address.host, self.address.port, purpose, timeout_s=self._timeout_s
        )

    async def _dial(self, purpose: str) -> Link:
        opened = await link.open_link(await self._socket(purpose), self._context, server=False)
        opened.send({"token": self._credentials.token})
        return opened

    async def _read(self, opened: Link) -> None:
        try:
            while True:
                message, _ = await opened.receive()
                self._hear(message)
        except (ConnectionError, Refused) as error:
            self._lose(str(error))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._lose(f"its agent sent what is malformed: {error!r}")

    async def _beat(self) -> None:
        """Ask for the time again and again, so that a cut is noticed and the offset stays right."""
        while not self.lost.done():
            await self._probe()
            await asyncio.sleep(min(_PING_PERIOD_S, self._timeout_s / 4))

    def _hear(self, message: Mapping[str, Any]) -> None:
        event = message.get("event")
        if event == "ended":
            replica = self.replicas.pop(message["worker"], None)
            if replica is not None:
                replica.set_usage(message["usage"])
                replica.end(ExitStatus(reason=message["reason"], text=str(message["text"])))
        elif event == "usage":
            for worker, usage in message["usage"].items():
                if int(worker) in self.replicas:
                    self.replicas[int(worker)].set_usage(usage)
        elif (waiting := self._waiting.get(message.get("id", 0))) and not waiting.done():
            if "error" in message:
                waiting.set_exception(messages.error_from_json(message["error"]))
            else:
                waiting.set_result(message["ok"])

    def _lose(self, reason: str) -> None:
        """End the connection; all replicas end together."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if self._link is not None:
            self._link.abort()
        for task in (self._reading, self._beating):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError(reason))
        self._on_lost(self)
        text = f"its machine {self.name} is lost: {reason}"
        together = tuple(self.replicas)
        replicas, self.replicas = self.replicas, {}
        for replica in replicas.values():
            is_asked = replica.was_killed
            ended = ExitStatus(reason="node", text=text, together=together)
            replica.end(ExitStatus(reason="killed", text="killed, as asked") if is_asked else ended)
