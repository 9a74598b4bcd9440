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
    """Reset of a stream whose response the client no longer wants."""

    stream: int


class RequestRefused(NamedTuple):
    """A request that is too large or finds no buffer space; its remaining bytes are dropped."""

    stream: int
    error: ServingError


class StreamOpened(NamedTuple):
    """Start of a streaming request."""

    stream: int
    fields: HeaderFields


class MessageReady(NamedTuple):
    """A streaming request that may have a message, have ended, or have sent all waiting data."""

    stream: int


Event = RequestReady | StreamReset | RequestRefused | StreamOpened | MessageReady

Opens = Callable[[HeaderFields], bytes | bool]
"""Classifier of a head: returns whether it streams, or the block of an immediate response."""
