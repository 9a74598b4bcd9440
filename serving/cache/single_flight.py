"""Single flight: equal requests in flight share one execution.

The first request with a key is sent, and it is cancelled when its last handler leaves. If its
deadline passes, it is sent again for handlers with later deadlines. Only requests with the same
flow key share executions, but all share the cache. Call only from the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from serving.cache.response_cache import CacheKey, ResponseCache
from serving.errors import DeadlineExceeded, ServingError
from serving.response_handler import (
    BatchInfo,
    HasBatch,
    RequestHandle,
    ResponseHandler,
    deliver_error,
    deliver_result,
)

FlowKey = tuple[str, int]
"""A request's application and priority."""
Send = Callable[[ResponseHandler, float], RequestHandle]


class _FlightMember:
    __slots__ = ("deadline_s", "flight", "handler", "lane")

    def __init__(self, handler: ResponseHandler, deadline_s: float, lane: FlowKey) -> None:
        self.lane = lane
        self.handler = handler
        self.deadline_s = deadline_s
        self.flight: _Flight | None = None

    def take_handler(self) -> ResponseHandler:
        """Return the handler and drop it, to break its reference cycle."""
        handler = self.handler
        del self.handler
        return handler

    def cancel(self) -> None:
        if self.flight is not None:
            self.flight.leave(self)

    def batch(self) -> BatchInfo | None:
        return None if self.flight is None else self.flight.batch()


class _Hit:
    __slots__ = ("_handler",)

    def __init__(self, handler: ResponseHandler) -> None:
        self._handler: ResponseHandler | None = handler

    def cancel(self) -> None:
        self._handler = None

    def respond(self, kept: bytes) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            deliver_result(handler, memoryview(kept))


class _Flight:
    __slots__ = ("_key", "_owner", "_places", "_send", "_ticket", "deadline_s", "lane")

    def __init__(
        self, owner: SingleFlight, key: CacheKey, send: Send, place: _FlightMember
    ) -> None:
        self._owner = owner
        self._key = key
        self._send = send
        self.deadline_s = place.deadline_s
        self.lane = place.lane
        self._places = {place: None}
        place.flight = self
        self._ticket = send(self, place.deadline_s)

    def join(self, place: _FlightMember) -> None:
        place.flight = self
        self._places[place] = None

    def leave(self, place: _FlightMember) -> None:
        place.flight = None
        if place in self._places:
            del self._places[place], place.handler
            if not self._places:
                self._owner.end_flight(self._key, self)
                self._ticket.cancel()

    def batch(self) -> BatchInfo | None:
        return self._ticket.batch() if isinstance(self._ticket, HasBatch) else None

    def on_result(self, frame: memoryview) -> None:
        kept = bytes(frame)
        self._owner.end_flight(self._key, self, kept)
        for place in self._land():
            deliver_result(place.take_handler(), memoryview(kept))

    def on_error(self, error: ServingError) -> None:
        self._owner.end_flight(self._key, self)
        is_late = isinstance(error, DeadlineExceeded)
        for place in self._land():
            if is_late and place.deadline_s > self.deadline_s:
                self._owner.board(self._key, place, self._send)
            else:
                deliver_error(place.take_handler(), error)

    def _land(self) -> Iterator[_FlightMember]:
        places, self._places = self._places, {}
        for place in places:
            if place.flight is self:
                yield place


class SingleFlight:
    """A response cache and the flights that fill it."""

    def __init__(self, capacity_bytes: int) -> None:
        self.cache = ResponseCache(capacity_bytes)
        self.shared = 0
        self._flights: dict[tuple[CacheKey, FlowKey], _Flight] = {}
        self._loop = asyncio.get_running_loop()

    def submit(
        self,
        key: CacheKey,
        handler: ResponseHandler,
        deadline_s: float,
        send: Send,
        lane: FlowKey = ("", 0),
    ) -> RequestHandle:
        """Respond from the cache, join an equal request in flight, or send the request."""
        kept = self.cache.get(key)
        if kept is not None:
            hit = _Hit(handler)
            self._loop.call_soon(hit.respond, kept)
            return hit
        place = _FlightMember(handler, deadline_s, lane)
        if self.board(key, place, send):
            self.shared += 1
        return place

    def board(self, key: CacheKey, place: _FlightMember, send: Send) -> bool:
        """Join a flight or start one; return whether it was joined."""
        flight = self._flights.get((key, place.lane))
        if flight is not None and flight.deadline_s <= place.deadline_s:
            flight.join(place)
            return True
        self._flights[key, place.lane] = _Flight(self, key, send, place)
        return False

    def end_flight(self, key: CacheKey, flight: _Flight, kept: bytes | None = None) -> None:
        """Remove an ended flight; cache its response `kept` unless it began before a reset."""
        if self._flights.get((key, flight.lane)) is flight:
            del self._flights[key, flight.lane]
            if kept is not None:
                self.cache.put(key, kept)

    def reset(self, capacity_bytes: int) -> None:
        """Clear the cache; responses to requests in flight will not be cached."""
        self.cache.clear()
        self.cache.resize(capacity_bytes)
        self._flights = {}
