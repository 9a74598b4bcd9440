"""A connected replica: its socket, the models that it has loaded, and its unfinished actions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from serving import wire
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec
from serving.errors import ServingError
from serving.scheduling.interface import Action, ActionType
from serving.system.remote_clock import RemoteClock
from serving.values import Buffer, ModelId

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Receiver of a replica's messages."""

    def on_message(
        self, replica: ReplicaConnection, kind: wire.MessageType, body: memoryview
    ) -> None:
        """Handle a message.

        Raises:
            WireError: a replica must not send such a message.
        """
        ...

    def connection_lost(self, replica: ReplicaConnection, fault: str | None) -> None:
        """Handle a lost connection; `fault` is None if the replica only closed its socket."""
        ...


class ReplicaConnection(asyncio.Protocol):
    """The gateway's end of a replica's socket."""

    def __init__(
        self,
        dispatcher: Receiver,
        worker: int,
        *,
        wanted: Callable[[ModelId], LoadSpec],
        on_loaded: Callable[[ModelId, LoadReport | ServingError], None],
        on_lost: Callable[[str | None], None],
        max_message_bytes: int = wire.MAX_RESULT_BYTES,
        clock: RemoteClock | None = None,
    ) -> None:
        """Prepare the protocol; a message longer than `max_message_bytes` ends the replica.

        `wanted` returns how to load a model. `on_loaded` is called after each load, and `on_lost`
        with the replica's fault, if any, once the connection is lost.
        """
        self.worker = worker
        self.wanted = wanted
        self.on_loaded = on_loaded
        self.on_lost = on_lost
        self.max_message_bytes = max_message_bytes
        self.clock = clock or RemoteClock()
        """Clock of the replica's machine, by which its times and its windows are told."""
        self.loaded: set[ModelId] = set()
        self.labels: dict[int, str] = {}
        self.sent: dict[int, tuple[Action, float]] = {}
        """Unfinished actions by id, each with its sending time."""
        self.last_result_s = 0.0
        self.has_answered = False
        self.ended = asyncio.Event()
        self._dispatcher = dispatcher
        self._parser = wire.MessageParser(max_message_bytes=max_message_bytes)
        self._transport: asyncio.Transport | None = None
        self._is_lost = False

    @property
    def is_loading(self) -> bool:
        """Whether the replica's current action is a model load."""
        return bool(self.sent) and next(iter(self.sent.values()))[0].kind is ActionType.LOAD

    @property
    def oldest_sent_s(self) -> float | None:
        """Earliest time at which the oldest unfinished action can have started, if any."""
        if not self.sent:
            return None
        return max(self.last_result_s, next(iter(self.sent.values()))[1])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; if they are invalid, end the connection and the replica."""
        if self._is_lost:
            return
        try:
            for kind, body in self._parser.feed(data):
                self._dispatcher.on_message(self, kind, body)
        except wire.WireError as error:
            self._is_lost = True
            log.error(
                "invalid bytes from a replica", extra={"worker": self.worker, "error": str(error)}
            )
            self._dispatcher.connection_lost(self, f"invalid bytes on its socket: {error}")

    def connection_lost(self, _error: Exception | None) -> None:
        """Report that the replica has ended."""
        self._transport = None
        self.ended.set()
        self._dispatcher.connection_lost(self, None)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue one message for sending."""
        if self._transport is not None:
            self._transport.writelines(buffers)

    def close(self) -> None:
        """Abort the connection, dropping unsent data, and forget its actions."""
        self.sent.clear()
        if self._transport is not None:
            self._transport.abort()
