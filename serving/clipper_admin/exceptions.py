"""Exceptions of Clipper's Python API.

ClipperException          a call failed; `msg` has the reason
└── UnconnectedException  neither `connect` nor `start_clipper` was called
"""

from __future__ import annotations


class ClipperException(Exception):  # Clipper's name
    """An invalid call, or an error on the server."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg


class UnconnectedException(ClipperException):
    """A call without a connection."""

    def __init__(
        self,
        msg: str = "No connection to Clipper cluster. Call ClipperConnection.connect to connect to "
        "an existing cluster or ClipperConnection.start_clipper to create a new one",
    ) -> None:
        super().__init__(msg)
