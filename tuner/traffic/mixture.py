"""What is sent where every request has a model of its own: heads, bodies, and which of each, in order.

In: paths and headers, bodies, pairs of both. Out: `Mixture`, which the load generator takes in place of `Payloads`.
A head and a body are put together when the request is sent, so that a thousand models share the bodies of one.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping, Sequence

PAIR = "i"
"""Type code of the places of heads and bodies, as they travel."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a request goes."""

    path: str
    headers: Mapping[str, str]
    """Host and Content-Length are added by the client."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """Requests in the order they are sent; after the last one comes the first again."""

    heads: tuple[Head, ...]
    bodies: tuple[bytes, ...]
    order: Sequence[tuple[int, int]]
    """Places of a head and a body, for each request."""

    def __post_init__(self) -> None:
        if not len(self.order):
            raise ValueError("a mixture of no requests: expected at least one")

    def order_bytes(self) -> bytes:
        """The order as it travels."""
        return array(PAIR, [place for pair in self.order for place in pair]).tobytes()


class Mixed(Sequence[bytes]):
    """Whole requests, put together when they are asked for."""

    def __init__(self, heads: Sequence[bytes], bodies: Sequence[bytes], order: bytes) -> None:
        """Keep what is given.

        Args:
            heads: up to the length of the body, which is the last header.
            bodies: of any of them.
            order: see `Mixture.order_bytes`.
        """
        self._heads = heads
        self._bodies = bodies
        self._order = array(PAIR)
        self._order.frombytes(order)

    def __len__(self) -> int:
        return len(self._order) // 2

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]
        """The request of a place; slices are not asked for."""
        body = self._bodies[self._order[2 * place + 1]]
        return b"%b%d\r\n\r\n%b" % (self._heads[self._order[2 * place]], len(body), body)
