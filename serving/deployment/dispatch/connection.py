"""The gateway's end of a replica's socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol, cast

from serving import wire
from serving.values import Buffer

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Receiver of the messages."""

    def on_message(self, worker: int, kind: wire.MessageType, body: memoryview) -> None:
        """Handle a message.

        Raises:
            WireError: replicas may not send it.
        """
        ...

    def connection_lost(self, worker: int, fault: str | None) -> None:
        """Handle a connection lost by the replica's fault or its end (`fault` is None)."""
        ...


class ReplicaConnection(asyncio.Protocol):
    """The gateway's end of a replica's socket."""

    def __init__(
        self,
        dispatcher: Receiver,
        worker: int,
        max_message_bytes: int = wire.MAX_RESULT_BYTES,
    ) -> None:
        """Prepare the protocol; a message longer than `max_message_bytes` ends the replica."""
        self.worker = worker
        self._dispatcher = dispatcher
        self.max_message_bytes = max_message_bytes
        self._parser = wire.MessageParser(max_message_bytes=max_message_bytes)
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Parse bytes; garbage ends the connection and the replica."""
        if self._is_lost:
            return
        try:
            for kind, body in self._parser.feed(data):
                self._dispatcher.on_message(self.worker, kind, body)
        except wire.WireError as error:
            self._is_lost = True
            log.error(
                "invalid bytes from a replica", extra={"worker": self.worker, "error": str(error)}
            )
            self._dispatcher.connection_lost(self.worker, f"invalid bytes on its socket: {error}")

    def connection_lost(self, _error: Exception | None) -> None:
        """Report the end of the replica."""
        self._transport = None
        self.ended.set()
        self._dispatcher.connection_lost(self.worker, None)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue one message."""
        if self._transport is not None:
            self._transport.writelines(buffers)

    def close(self) -> None:
        """Abort the connection without sending the rest."""
        if self._transport is not None:
            self._transport.abort()
