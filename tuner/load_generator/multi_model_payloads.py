"""Payloads for many models: heads, bodies, and the pair for each request.

They are joined when sent, so that a thousand models can share bodies.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping, Sequence

PAIR = "i"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestRoute:
    """Path and headers of a request."""

    path: str
    headers: Mapping[str, str]
    """The client adds Host and Content-Length."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultiModelPayloads:
    """Requests in the order they are sent, again and again."""

    heads: tuple[RequestRoute, ...]
    bodies: tuple[bytes, ...]
    order: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        if not len(self.order):
            raise ValueError("a mixture of no requests: expected at least one")

    def order_bytes(self) -> bytes:
        """Order as bytes."""
        return array(PAIR, [place for pair in self.order for place in pair]).tobytes()


class LazyRequests(Sequence[bytes]):
    """Whole requests, built on access."""

    def __init__(self, heads: Sequence[bytes], bodies: Sequence[bytes], order: bytes) -> None:
        """Store the arguments.

        Args:
            heads: up to the value of Content-Length, their last header.
            order: see `MultiModelPayloads.order_bytes`.
        """
        self._heads = heads
        self._bodies = bodies
        self._order = array(PAIR)
        self._order.frombytes(order)

    def __len__(self) -> int:
        return len(self._order) // 2

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]
        """One request; slices are not supported."""
        body = self._bodies[self._order[2 * place + 1]]
        return b"%b%d\r\n\r\n%b" % (self._heads[self._order[2 * place]], len(body), body)
