"""Single flight: equal requests in flight share one execution.

The first request of a key is sent; later ones wait for its response. It is cancelled when its last
handler leaves. If its deadline passes, handlers with a later one are sent again. Executions are
shared within a flow key only, as queueing depends on it; cached responses are for all.

Event loop's thread only; knows the engine only as `send`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from serving.cache.response_cache import Key, PredictionCache
from serving.errors import DeadlineExceeded, ServingError
from serving.response_handler import Batch, Ticket, Timed, Waiter, answer, refuse

Lane = tuple[str, int]
"""Application and priority, which besides the deadline determine the queue position."""
Send = Callable[[Waiter, float], Ticket]
"""Send a request for this handler, with this deadline."""


class _Place:
    """A request handler's membership in a flight."""

    __slots__ = ("deadline_s", "flight", "lane", "waiter")

    def __init__(self, waiter: Waiter, deadline_s: float, lane: Lane) -> None:
        self.lane = lane
        self.waiter = waiter
        self.deadline_s = deadline_s
        self.flight: _Flight | None = None

    def released(self) -> Waiter:
        """Return and drop the handler, to break its reference cycle."""
        waiter = self.waiter
        del self.waiter
        return waiter

    def cancel(self) -> None:
        """Cancel this handler's request."""
        if self.flight is not None:
            self.flight.leave(self)

    def batch(self) -> Batch | None:
        """See `waiter.Timed`."""
        return None if self.flight is None else self.flight.batch()


class _Hit:
    """Request handle of a cache hit."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: Waiter) -> None:
        self._waiter: Waiter | None = waiter

    def cancel(self) -> None:
        """Drop the response."""
        self._waiter = None

    def answer(self, kept: bytes) -> None:
        """Deliver the response."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            answer(waiter, memoryview(kept))


class _Flight:
    """One execution and its waiting handlers."""

    __slots__ = ("_key", "_owner", "_places", "_send", "_ticket", "deadline_s", "lane")

    def __init__(self, owner: SingleFlight, key: Key, send: Send, place: _Place) -> None:
        self._owner = owner
        self._key = key
        self._send = send
        self.deadline_s = place.deadline_s
        self.lane = place.lane
        self._places = {place: None}
        """In order of arrival."""
        place.flight = self
        self._ticket = send(self, place.deadline_s)

    def join(self, place: _Place) -> None:
        place.flight = self
        self._places[place] = None

    def leave(self, place: _Place) -> None:
        place.flight = None
        if place in self._places:
            del self._places[place], place.waiter
            if not self._places:
                self._owner.landed(self._key, self)
                self._ticket.cancel()

    def batch(self) -> Batch | None:
        return self._ticket.batch() if isinstance(self._ticket, Timed) else None

    def answer(self, frame: memoryview) -> None:
        kept = bytes(frame)
        self._owner.landed(self._key, self, kept)
        for place in self._land():
            answer(place.released(), memoryview(kept))

    def refuse(self, error: ServingError) -> None:
        self._owner.landed(self._key, self)
        is_late = isinstance(error, DeadlineExceeded)
        for place in self._land():
            if is_late and place.deadline_s > self.deadline_s:
                self._owner.board(self._key, place, self._send)
            else:
                refuse(place.released(), error)

    def _land(self) -> Iterator[_Place]:
        """Yield remaining members; a response may cancel others meanwhile."""
        places, self._places = self._places, {}
        for place in places:
            if place.flight is self:
                yield place


class SingleFlight:
    """Response cache and the flights that fill it."""

    def __init__(self, capacity_bytes: int) -> None:
        self.cache = PredictionCache(capacity_bytes)
        self.shared = 0
        """Requests that joined another."""
        self._flights: dict[tuple[Key, Lane], _Flight] = {}
        self._loop = asyncio.get_running_loop()

    def submit(
        self, key: Key, waiter: Waiter, deadline_s: float, send: Send, lane: Lane = ("", 0)
    ) -> Ticket:
        """Respond from the cache, join an equal request, or send it."""
        kept = self.cache.get(key)
        if kept is not None:
            hit = _Hit(waiter)
            self._loop.call_soon(hit.answer, kept)
            return hit
        place = _Place(waiter, deadline_s, lane)
        if self.board(key, place, send):
            self.shared += 1
        return place

    def board(self, key: Key, place: _Place, send: Send) -> bool:
        """Join the flight of this key and flow key, or start one; return True if one existed."""
        flight = self._flights.get((key, place.lane))
        if flight is not None and flight.deadline_s <= place.deadline_s:
            flight.join(place)
            return True
        self._flights[key, place.lane] = _Flight(self, key, send, place)
        return False

    def landed(self, key: Key, flight: _Flight, kept: bytes | None = None) -> None:
        """Remove an ended flight and cache its response, if it is from after the last reset."""
        if self._flights.get((key, flight.lane)) is flight:
            del self._flights[key, flight.lane]
            if kept is not None:
                self.cache.put(key, kept)

    def reset(self, capacity_bytes: int) -> None:
        """Clear the cache, and do not cache requests in flight."""
        self.cache.clear()
        self.cache.resize(capacity_bytes)
        self._flights = {}
