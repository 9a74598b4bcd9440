"""The gateway's end of one replica's socket: bytes in, messages out, and the other way round."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol, cast

from serving.replica import wire
from serving.values import Buffer

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Who gets the messages."""

    def received(self, worker: int, kind: wire.MessageType, body: memoryview) -> None:
        """One message from a replica.

        Raises:
            WireError: it is none that a replica may send.
        """
        ...

    def broken(self, worker: int, fault: str | None) -> None:
        """A connection cannot be used any more, by the replica's fault or because it ended."""
        ...


class Connection(asyncio.Protocol):
    """The gateway's end of one replica's socket."""

    def __init__(
        self,
        dispatcher: Receiver,
        worker: int,
        max_message_bytes: int = wire.MAX_RESULT_BYTES,
    ) -> None:
        """Nothing is connected yet.

        Args:
            dispatcher: who gets the messages.
            worker: number of the replica.
            max_message_bytes: longest message that is taken; a longer one ends the replica.
        """
        self.worker = worker
        self._dispatcher = dispatcher
        self.max_message_bytes = max_message_bytes
        self._parser = wire.Parser(max_message_bytes=max_message_bytes)
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        """The replica has sent what is no message."""
        self.ended = asyncio.Event()
        """Set when everything that the replica sent has been read, and its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is in the loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Bytes from the replica; garbage ends the connection, and with it the replica."""
        if self._is_lost:  # what follows is no message, and says nothing of what was wrong
            return
        try:
            for kind, body in self._parser.feed(data):
                self._dispatcher.received(self.worker, kind, body)
        except wire.WireError as error:
            self._is_lost = True
            log.error("garbage from a replica", extra={"worker": self.worker, "error": str(error)})
            self._dispatcher.broken(self.worker, f"garbage on its socket: {error}")

    def connection_lost(self, _error: Exception | None) -> None:
        """The replica closed the socket, which it only does when it ends."""
        self._transport = None
        self.ended.set()
        self._dispatcher.broken(self.worker, None)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue one message."""
        if self._transport is not None:
            self._transport.writelines(buffers)

    def close(self) -> None:
        """End the connection without waiting for what is unsent."""
        if self._transport is not None:
            self._transport.abort()
