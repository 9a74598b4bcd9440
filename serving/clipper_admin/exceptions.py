"""Exceptions of Clipper's Python API.

ClipperException          what was asked for cannot be done; `msg` says why
└── UnconnectedException  neither `connect` nor `start_clipper` was called
"""

from __future__ import annotations


class ClipperException(Exception):  # Clipper's name
    """Something was wrong with a call, or with the server's answer to it."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg


class UnconnectedException(ClipperException):
    """A call that needs a server came before there was one."""

    def __init__(
        self,
        msg: str = "No connection to Clipper cluster. Call ClipperConnection.connect to connect to "
        "an existing cluster or ClipperConnection.start_clipper to create a new one",
    ) -> None:
        super().__init__(msg)
