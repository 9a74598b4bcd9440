"""How much of one request is read piece by piece, in every protocol.

The thread that reads a request serves everybody. What lies packed (numbers in raw bytes, one long text, an array
of numbers that a replica reads) passes at the speed of memory, however large it is. What has to be looked at
one by one takes a microsecond each: texts, arrays and objects of JSON, fields of protobuf's messages, elements
of BYTES. Of these a request has so many, and what has more is refused before it is read.

In: counts. Out: `InvalidRequest` for what is too much. Pure.
"""

from __future__ import annotations

from serving.errors import InvalidRequest

MAX_VALUES = 2**16
"""Of one request: some 50 ms, while nobody else is served."""
MAX_NUMBERS = 2**18
"""Numbers and other plain values of a JSON text, which a parser reads at a fraction of that."""


class Budget:
    """What may still be read of a request: of all its messages and tensors, however they are nested."""

    __slots__ = ("_most", "_what", "left")

    def __init__(self, most: int = MAX_VALUES, what: str = "fields") -> None:
        """Nothing is spent.

        Args:
            most: how many.
            what: they are, for people.
        """
        self._most = most
        self._what = what
        self.left = most

    def spend(self, count: int) -> None:
        """So many are going to be read.

        Raises:
            InvalidRequest: they are more than are left.
        """
        self.left -= count
        if self.left < 0:
            raise self.spent()

    def spent(self) -> InvalidRequest:
        """What refuses a request that has more."""
        return InvalidRequest(
            f"the request has more than {self._most} {self._what}; send less in one request"
        )
