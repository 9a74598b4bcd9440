"""HTTP client that sends one phase of requests from one thread, on raw sockets and one epoll.

Latency runs from just before the first byte is sent to just after the response's last byte is read.
"""

from __future__ import annotations

import math
import select
import time
from array import array
from collections.abc import Callable, Sequence

from tuner.load_generator.columns import Columns
from tuner.load_generator.connections import (
    RETRIES,
    ClientConnection,
    ConnectionPool,
    ConnectionState,
    ServerGone,
)
from tuner.load_generator.phase import Phase, Settling
from tuner.load_generator.plan import PhasePlan
from tuner.load_generator.response import BadResponse, ResponseHead, ResponseReader

RECEIVE_BYTES = 65_536
TICK_S = 0.02
MAX_HEADS = 512

_READABLE = select.EPOLLIN
_BOTH = select.EPOLLIN | select.EPOLLOUT


class Client:
    """Client for one phase: `run` it once, then read `columns`, `phase` and `cpu_s`."""

    def __init__(
        self,
        plan: PhasePlan,
        requests: Sequence[bytes],
        *,
        on_tick: Callable[[int], None],
        on_open: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Send complete `requests` in turn.

        Args:
            on_tick: called every 20 ms with the number finished.
            on_open: called once all connections are open; returns the phase's origin.
        """
        self.plan = plan
        self.columns = Columns()
        self.phase = Phase(plan)
        self.cpu_s = 0.0
        self.cpu_at_s, self.cpu_used_s = array("d"), array("d")
        """Times of readings, with the process's CPU time at each."""
        self.first_error = b""
        arrivals = self.phase.arrivals
        self.pool = ConnectionPool(plan.host, plan.port, arrivals.connections)
        self._requests = requests
        self._on_tick = on_tick
        self._on_open = on_open
        self._is_open = arrivals.is_open
        self._due_s = arrivals.due_s
        self._each_its_own = plan.each_its_own
        self._next_due_s = math.inf
        self._heads: dict[bytes, ResponseHead] = {}
        self._sent = 0
        self._finished = 0
        self.origin_s = time.perf_counter()
        self._next_tick_s = 0.0
        self._settling = Settling(plan.warmup.seconds, plan.warmup.settling_s)

    def run(self) -> None:
        """Run the phase, or raise ServerGone if no connection could be opened or all were lost."""
        try:
            self.pool.resolve()
            self._open_all()
            self.origin_s = self._on_open()
            self._tick(0.0)
            self._dispatch()
            self._loop()
        finally:
            self.pool.close()
        self._advance(self._now(), closing=True)

    def _now(self) -> float:
        return time.perf_counter() - self.origin_s

    def _open_all(self) -> None:
        pool = self.pool
        pool.open_due(0.0)
        while len(pool.free) < len(pool.connections):
            for descriptor, event in pool.poller.poll(TICK_S):
                connection = pool.by_descriptor[descriptor]
                if connection.state is ConnectionState.OPENING:
                    pool.decide_opening(connection, event, self._now())
                else:
                    pool.fail(connection, self._now(), "the server closed it immediately")
            if pool.gone:
                raise ServerGone(
                    f"{pool.where}: {pool.gone} of {len(pool.connections)} connections "
                    f"cannot be opened ({pool.last_loss}); is the server running, and "
                    "does it accept that many?"
                )
            pool.open_due(self._now())
            self._on_tick(0)
        for connection in pool.connections:
            connection.losses = 0

    def _loop(self) -> None:
        poll = self.pool.poll_finely if self._is_open else self.pool.poller.poll
        clock, origin = time.perf_counter, self.origin_s
        by_descriptor, heads, busy = self.pool.by_descriptor, self._heads, ConnectionState.BUSY
        now = clock() - origin
        while self._finished < self.phase.total:
            wake_s = min(self._next_tick_s, self._next_due_s)
            for descriptor, event in poll(max(0.0, wake_s - now)):
                connection = by_descriptor.get(descriptor)
                if connection is None:
                    continue  # closed while an earlier event was handled
                if (
                    event != _READABLE
                    or connection.reader is not None
                    or connection.state is not busy
                ):
                    self._handle(connection, event)
                    continue
                try:
                    data = connection.receive(RECEIVE_BYTES)
                except OSError as error:
                    self._read_failed(connection, error)
                    continue
                end = data.find(b"\r\n\r\n") + 4
                head = heads.get(data[:end])
                if head is None or len(data) != end + head.body_bytes:
                    self._read(connection, data)
                else:
                    self._on_response(connection, head.status, clock() - origin)
            now = clock() - origin
            if now >= self._next_tick_s:
                self._tick(now)
                self._dispatch()
            elif now >= self._next_due_s:
                self._dispatch()

    def _dispatch(self) -> None:
        free = self.pool.free
        self._next_due_s = math.inf
        while free and self._sent < self.phase.limit:
            now = time.perf_counter() - self.origin_s
            due = self._due_s(self._sent, self._finished, now)
            if due is None:
                return
            if due > now:
                self._next_due_s = due
                return
            connection = free.popleft()
            place = connection.index if self._each_its_own else self._sent
            request = self._requests[place % len(self._requests)]
            self._sent += 1
            connection.state = ConnectionState.BUSY
            connection.intended_s = due
            connection.started_s = now
            try:
                written = connection.write(request)
            except BlockingIOError:
                written = 0
            except OSError as error:
                self._lose(connection, error.strerror or str(error))
                continue
            if written != len(request):
                connection.unsent = memoryview(request)[written:]
                self.pool.watch(connection, _BOTH)

    def _on_response(self, connection: ClientConnection, status: int, now: float) -> None:
        self._note(connection, status, now)
        connection.state = ConnectionState.FREE
        self.pool.free.append(connection)
        self._dispatch()

    def _note(self, connection: ClientConnection, status: int, now: float) -> None:
        self._finished += 1
        connection.round_trips += 1
        if status:
            connection.losses = 0
        self.columns.append(
            connection.intended_s, connection.started_s, now, status, connection.index
        )

    # Everything below is slow and rare.

    def _tick(self, now: float) -> None:
        self._on_tick(self._finished)
        self._advance(now)
        for connection in self.pool.connections:
            if (
                connection.state is ConnectionState.BUSY
                and now - connection.started_s > self.plan.timeout_s
            ):
                self._lose(
                    connection, f"no response within {self.plan.timeout_s:g} s", failures=RETRIES
                )
        if self._is_open:
            reason = f"no connection was free within {self.plan.timeout_s:g} s"
            self._drop_unsent(now, now - self.plan.timeout_s, reason)
            if self.plan.cuts_overload and self.phase.fell_behind:
                self._cut()
        if self._sent < self.phase.limit:
            if self.pool.gone == len(self.pool.connections):
                raise ServerGone(
                    f"{self.pool.where}: after {len(self.columns)} requests none of the "
                    f"{self.pool.gone} connections gets responses any more "
                    f"({self.pool.last_loss})"
                )
            self.pool.open_due(now)
        decided_s = self.phase.next_s
        self._next_tick_s = min(now + TICK_S, decided_s) if decided_s > now else now + TICK_S

    def _drop_unsent(self, now: float, due_before_s: float, reason: str) -> None:
        while self._sent < self.phase.limit:
            due = self._due_s(self._sent, self._finished, now)
            if due is None or due >= due_before_s:
                return
            self._sent += 1
            self._finished += 1
            self.pool.last_loss = reason
            self.columns.append(due, now, now, 0, -1)

    def _cut(self) -> None:
        reason = "the server fell behind"
        for connection in self.pool.connections:
            if connection.state is ConnectionState.BUSY:
                self._lose(connection, reason)
        self._drop_unsent(self._now(), math.inf, reason)

    def _advance(self, now: float, *, closing: bool = False) -> None:
        before = (self.phase.warmup_end_s, self.phase.measured_end_s)
        if closing:
            self.phase.close(self.columns.finished_s[-1] if len(self.columns) else now)
        elif not self._is_settling(now):
            least = min(connection.round_trips for connection in self.pool.connections)
            self.phase.advance(now, sent=self._sent, finished=self._finished, min_round_trips=least)
            if now >= self.phase.next_look_s:
                assert self.phase.warmup_end_s is not None
                self.phase.look(self.columns.mean_ms(self.phase.warmup_end_s), sent=self._sent)
        after = (self.phase.warmup_end_s, self.phase.measured_end_s)
        cpu = time.process_time()
        self.cpu_at_s.append(now)
        self.cpu_used_s.append(cpu)
        self.cpu_s += cpu * ((after[1] is not None) - (before[1] is not None))
        self.cpu_s -= cpu * ((after[0] is not None) - (before[0] is not None))

    def _is_settling(self, now: float) -> bool:
        if self.phase.warmup_end_s is not None:
            return False
        return self._settling.is_waiting(now, self.columns.intended_s, self.columns.finished_s)

    def _handle(self, connection: ClientConnection, event: int) -> None:
        if connection.state is ConnectionState.OPENING:
            self.pool.decide_opening(connection, event, self._now())
            self._dispatch()
            return
        if event & select.EPOLLOUT and connection.unsent is not None:
            self._send_rest(connection, connection.unsent)
        if event & ~select.EPOLLOUT:
            try:
                data = connection.receive(RECEIVE_BYTES)
            except OSError as error:
                self._read_failed(connection, error)
            else:
                self._read(connection, data)

    def _send_rest(self, connection: ClientConnection, unsent: memoryview) -> None:
        try:
            connection.unsent = unsent[connection.write(unsent) :] or None
        except BlockingIOError:
            return
        except OSError:
            # The server hung up, but its response may still be readable and explains more than this
            # error. The empty rest marks an incomplete request: the connection is not reused.
            connection.unsent = memoryview(b"")
        if not connection.unsent:
            self.pool.watch(connection, _READABLE)

    def _read_failed(self, connection: ClientConnection, error: OSError) -> None:
        if not isinstance(error, BlockingIOError):
            self._lose(connection, error.strerror or str(error))

    def _read(self, connection: ClientConnection, data: bytes) -> None:
        if connection.state is not ConnectionState.BUSY:
            self._renew(connection)  # closed while unused, or unrequested bytes
            return
        reader = connection.reader or ResponseReader()
        connection.reader = reader
        try:
            answer = reader.feed(data) if data else reader.end()
        except BadResponse as error:
            self._lose(connection, str(error))
            return
        if answer is None:
            if not data:
                self._lose(
                    connection, "the server closed the connection without a complete response"
                )
            return
        connection.reader = None
        self.first_error = self.first_error or reader.error_body
        if answer.keeps_alive and connection.unsent is None:
            if reader.plain is not None:
                if len(self._heads) >= MAX_HEADS:
                    self._heads.clear()
                self._heads[reader.head] = reader.plain
            self._on_response(connection, answer.status, self._now())
        else:
            self._note(connection, answer.status, self._now())
            self._renew(connection)

    def _renew(self, connection: ClientConnection) -> None:
        self.pool.renew(connection)
        self._next_tick_s = 0.0  # reopens it after the current events

    def _lose(self, connection: ClientConnection, reason: str, *, failures: int = 1) -> None:
        now = self._now()
        if connection.state is ConnectionState.BUSY:
            self._note(connection, 0, now)
        self.pool.fail(connection, now, reason, failures=failures)
