"""Events from an HTTP/2 session to its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from serving.api.http2.fields import HeaderFields
from serving.errors import ServingError


class RequestReady(NamedTuple):
    """A complete request."""

    stream: int
    fields: HeaderFields
    body: bytes


class StreamReset(NamedTuple):
    """The client no longer wants the response."""

    stream: int


class RequestRefused(NamedTuple):
    """A request is too large, or there is no buffer space for it; the rest of it is dropped."""

    stream: int
    error: ServingError


class StreamOpened(NamedTuple):
    """A streaming request began."""

    stream: int
    fields: HeaderFields


class MessageReady(NamedTuple):
    """A streaming request may have a message, have ended, or have had all its data taken."""

    stream: int


Event = RequestReady | StreamReset | RequestRefused | StreamOpened | MessageReady

Opens = Callable[[HeaderFields], bytes | bool]
"""Classifies a head: whether it streams, or the block of an immediate response."""
