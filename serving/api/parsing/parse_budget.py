"""Parse budget: how much of one request may be read element by element.

Each JSON string, array or object, protobuf field and BYTES element takes about a microsecond of the
event loop.
"""

from __future__ import annotations

from serving.errors import InvalidRequest

MAX_VALUES = 2**16
"""Maximum number of such elements, about 50 ms of the event loop."""
MAX_NUMBERS = 2**18
"""Maximum number of plain values in JSON, which parse faster."""


class ParseBudget:
    """Parse budget for one request."""

    __slots__ = ("_max", "_what", "left")

    def __init__(self, most: int = MAX_VALUES, what: str = "fields") -> None:
        self._max = most
        self._what = what
        self.left = most

    def spend(self, count: int) -> None:
        """Spend budget before elements are read, or raise InvalidRequest if too little is left."""
        self.left -= count
        if self.left < 0:
            raise self.make_error()

    def make_error(self) -> InvalidRequest:
        """Return the error for an exceeded budget."""
        return InvalidRequest(
            f"the request has more than {self._max} {self._what}; send less per request"
        )
