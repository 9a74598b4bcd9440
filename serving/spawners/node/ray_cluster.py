"""Machines of a Ray cluster, through a steward process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.errors import ReplicaStartFailed
from serving.settings.cluster import ClusterSettings
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.seats import Address, Resources
from serving.system.control_channel import Closed, ControlledProcess
from serving.system.daemon_threads import run_in_daemon_thread

log = logging.getLogger(__name__)

_READY_S = 60.0
_ORDER_S = 5.0
_END_S = 10.0
_AWAY = {"RAY_gcs_rpc_server_reconnect_timeout_s": "86400"}
"""How long the steward waits for a head that is away: its replicas serve meanwhile."""

UNREACHED = "is it there, and are RAY_AUTH_MODE=token and its token (RAY_AUTH_TOKEN, ~/.ray/auth_token) set here?"
"""What to look at when Ray cannot be reached."""


class RaySeat:
    """Reserved place of a Ray cluster."""

    def __init__(self, number: int, cluster: RayCluster) -> None:
        self._number = number
        self._cluster = cluster
        self.address = Address("", "", 0)
        self.node_id = ""
        self.gpu: str | None = None
        self.leaving: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def give_back(self) -> None:
        """Give the place back."""
        self._cluster.give_back(self._number)


class RayCluster:
    """Machines of a Ray cluster. Not thread-safe."""

    def __init__(
        self, settings: ClusterSettings, credentials: Credentials, image: str | None
    ) -> None:
        self._settings = settings
        self._agent = {
            "credentials": credentials.public(),
            "spawner": settings.spawner,
            "image": image,
            "timeout_s": settings.node_timeout_s,
        }
        self._steward: ControlledProcess | None = None
        self._numbers = itertools.count(1)
        self._seats: dict[int, RaySeat] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._on_waiting: dict[int, Callable[[str], None]] = {}
        self._ready: asyncio.Future[None] | None = None
        self._node_ids: dict[Address, str] = {}
        self._leaving: dict[str, str] = {}
        """Why machines are to be emptied, by node id."""
        self._is_open = False
        self._connecting = asyncio.Lock()
        self._endings: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Start the steward and connect to Ray.

        Raises:
            ReplicaStartFailed: Ray cannot be reached, or has no authentication.
        """
        check_token(is_open=self._settings.access == "open")
        self._is_open = True
        try:
            await self._ensure_steward()
        except BaseException:
            await self.close()
            raise

    async def _ensure_steward(self) -> None:
        """Start a steward if there is none, or if it has ended."""
        async with self._connecting:
            if self._steward is None:
                if not self._is_open:
                    raise ReplicaStartFailed("engine", "the cluster is closed")
                steward = ControlledProcess.start(
                    "serving.spawners.node.ray_steward", environment={**os.environ, **_AWAY}
                )
                try:
                    await self._connect(steward)
                except BaseException:
                    await self._end_steward()
                    raise

    async def _connect(self, steward: ControlledProcess) -> None:
        loop = asyncio.get_running_loop()
        self._steward = steward
        self._ready = loop.create_future()
        loop.add_reader(steward.sock, self._read)
        first = {"address": self._settings.address, "strategy": self._settings.strategy}
        try:
            steward.send({**first, "agent": self._agent}, timeout_s=_ORDER_S)
            async with asyncio.timeout(_READY_S):
                await self._ready
        except (Closed, TimeoutError) as error:
            text = f"Ray at {_named(self._settings.address)} did not answer within {_READY_S:g} s; {UNREACHED}"
            raise ReplicaStartFailed("engine", text) from error

    async def seat(self, wanted: Resources, on_waiting: Callable[[str], None]) -> RaySeat:
        """See `Cluster.seat`."""
        await self._ensure_steward()
        number = next(self._numbers)
        seat = RaySeat(number, self)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._seats[number] = seat
        self._on_waiting[number] = on_waiting
        self._order({"do": "seat", "seat": number, **wanted._asdict()})
        try:
            await future
        except BaseException:
            self.give_back(number)
            raise
        finally:
            self._waiting.pop(number, None)
            self._on_waiting.pop(number, None)
        return seat

    def give_back(self, number: int) -> None:
        """Give a place back."""
        if self._seats.pop(number, None) is not None:
            self._order({"do": "give_back", "seat": number})

    def avoid(self, address: Address) -> None:
        """See `Cluster.avoid`."""
        self._order({"do": "avoid", "node": self._node_ids[address]})

    def trust(self, address: Address) -> None:
        """See `Cluster.trust`."""
        self._order({"do": "trust", "node": self._node_ids[address]})

    async def close(self) -> None:
        """End the steward, and with it all reservations and agents. May be called again."""
        self._is_open = False
        await self._end_steward()

    async def _end_steward(self) -> None:
        steward, self._steward = self._steward, None
        if steward is not None:
            asyncio.get_running_loop().remove_reader(steward.sock)
            await run_in_daemon_thread(steward.end, _END_S)

    def _order(self, order: Mapping[str, object]) -> None:
        if self._steward is None:
            return  # what it had reserved ended with it
        try:
            self._steward.send(order, timeout_s=_ORDER_S)
        except (Closed, TimeoutError):
            self._lose("its steward does not listen")

    def _read(self) -> None:
        assert self._steward is not None
        try:
            events = self._steward.receive_all()
        except Closed:
            self._lose("its steward has ended; its error output has the reason")
            return
        for event in events:
            self._hear(event)

    def _lose(self, text: str) -> None:
        """Give up the steward; the next place is asked of a new one."""
        self._fail(text)
        ending = asyncio.ensure_future(self._end_steward())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _hear(self, event: Mapping[str, Any]) -> None:
        kind, number = event["event"], event.get("seat", 0)
        waiting = self._waiting.get(number)
        if kind == "ready" and self._ready is not None and not self._ready.done():
            log.info("connected to Ray", extra={"version": event["version"]})
            self._ready.set_result(None)
        elif kind == "seat" and waiting is not None and not waiting.done():
            seat = self._seats[number]
            seat.address = Address(
                event["name"], event["host"], event["port"], event["certificate"]
            )
            seat.node_id = self._node_ids[seat.address] = event["node"]
            seat.gpu = event["gpu"]
            self._tell_leaving(seat)
            waiting.set_result(None)
        elif kind == "waiting" and number in self._on_waiting:
            self._on_waiting[number](event["text"])
        elif kind == "leaving":
            self._leaving[event["node"]] = event["text"]
            for seat in self._seats.values():
                self._tell_leaving(seat)
        elif kind == "failed" and number:
            if waiting is not None and not waiting.done():
                waiting.set_exception(ReplicaStartFailed("engine", f"Ray: {event['text']}"))
        elif kind == "failed":
            self._fail(event["text"])

    def _tell_leaving(self, seat: RaySeat) -> None:
        text = self._leaving.get(seat.node_id)
        if text is not None and not seat.leaving.done():
            seat.leaving.set_result(text)

    def _fail(self, text: str) -> None:
        error = ReplicaStartFailed("engine", f"Ray at {_named(self._settings.address)}: {text}")
        for future in (self._ready, *self._waiting.values()):
            if future is not None and not future.done():
                future.set_exception(error)


def check_token(*, is_open: bool = False) -> None:
    """Raise ReplicaStartFailed unless Ray asks for a token, or need not."""
    if not is_open and os.environ.get("RAY_AUTH_MODE") != "token":
        raise ReplicaStartFailed(
            "engine",
            "Ray runs code for everybody who reaches it: set RAY_AUTH_MODE=token and a token on all "
            "machines (docs/machines.md); a server may have cluster.access=open instead",
        )


def _named(address: str) -> str:
    """Return where Ray is looked for."""
    return os.environ.get("RAY_ADDRESS", address) if address == "auto" else address


def own_address(head: str) -> str | None:
    """Return this machine's address on the way to the head, or None if Ray is to find out.

    Ray asks the way to the internet, and takes part as the head's machine if that fails; it would
    then end with the head.
    """
    if head == "auto":
        head = os.environ.get("RAY_ADDRESS", "")
    host, _, port = head.rpartition(":")
    if not host or not port.isdecimal():
        return None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(address)  # sends nothing
            return str(way.getsockname()[0])
    except OSError:
        return None


def node_name(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return how a node of `ray.nodes()` is called: by the first of its names that is its own."""
    alive = [one for one in nodes if one["Alive"]]
    for key in ("NodeManagerHostname", "NodeManagerAddress"):
        if sum(one[key] == node[key] for one in alive) <= 1:
            return str(node[key])
    return f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
