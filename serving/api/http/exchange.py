"""Interfaces between a connection of the inference port and the routes of a protocol."""

from __future__ import annotations

from typing import Protocol

from serving.api.http.messages import RequestHead, Response
from serving.values import Buffer


class ResponseWriter(Protocol):
    """Response writer of one request; exactly one of its methods is called, once."""

    def respond(self, response: Response) -> None:
        """Send a response."""
        ...

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """Send a response whose head lacks the connection's own headers.

        `head` may include the beginning of the body; `body` is the rest, which may be reused
        once this returns.
        """
        ...


class Exchange(Protocol):
    """Request in progress; it responds through its `ResponseWriter`."""

    def cancel(self) -> object:
        """Stop, because the client disconnected."""
        ...


class Routes(Protocol):
    """Request handler behind a listener."""

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Return a response, or an exchange that later calls its `ResponseWriter` exactly once.

        Raises:
            ServingError: the request fails; the listener sends the error.
        """
        ...
