"""Events from an HTTP/2 session to its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from serving.api.http2.fields import Fields


class Request(NamedTuple):
    """A complete request."""

    stream: int
    fields: Fields
    body: bytes


class Gone(NamedTuple):
    """The client no longer wants the response."""

    stream: int


class TooLarge(NamedTuple):
    """A body exceeded the limit; the rest is dropped."""

    stream: int
    fields: Fields


class NoRoom(NamedTuple):
    """No buffer space for a head, body or stream; the rest is dropped."""

    stream: int


class Opened(NamedTuple):
    """A streaming request began."""

    stream: int
    fields: Fields


class Arrived(NamedTuple):
    """A streaming request may have a message or have ended, or all that was sent was taken."""

    stream: int


Event = Request | Gone | TooLarge | NoRoom | Opened | Arrived

Opens = Callable[[Fields], bytes | bool]
"""Classifies a head: whether it streams messages, or the block of an immediate response."""


class Mark(NamedTuple):
    """A moment of a connection."""

    stream: int
    """The newest stream."""
    refreshes: int
