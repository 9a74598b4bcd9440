"""What the bytes of a client mean, and what the owner of its session is asked: values.

In: what a session has read. Out: what its owner acts upon. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from serving.protocol.http2.fields import Fields


class Request(NamedTuple):
    """A request has arrived whole."""

    stream: int
    fields: Fields
    body: bytes


class Gone(NamedTuple):
    """The client does not want the answer any more."""

    stream: int


class TooLarge(NamedTuple):
    """A body passed the limit; what else comes of it is dropped."""

    stream: int
    fields: Fields


class NoRoom(NamedTuple):
    """There is no room for a head, a body, or a series among those of all connections; the rest of it is dropped."""

    stream: int


class Opened(NamedTuple):
    """A request has begun whose body is a series of messages."""

    stream: int
    fields: Fields


class Arrived(NamedTuple):
    """Of a series there may be another message, or no more; or the client has taken all that was sent."""

    stream: int


Event = Request | Gone | TooLarge | NoRoom | Opened | Arrived

Opens = Callable[[Fields], bytes | bool]
"""What the fields of a request say: whether its body is a series of messages, or the block that answers it at once."""


class Mark(NamedTuple):
    """A moment in the life of a connection."""

    stream: int
    """The newest."""
    refreshes: int
