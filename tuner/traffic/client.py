"""The lean HTTP client: one phase of load from one thread, on raw sockets and one epoll.

In: a `LoadPlan` and whole requests as bytes. Out: columns of one row per request, in order of
completion, in seconds since the phase began. A round trip is from just before the first byte is
handed to the kernel to just after the last byte of the response was taken from it; a request that
finds no room in the socket's buffer goes on when there is.

Both ways of writing it were measured with 3 KB bodies at 20 connections: a bare epoll loop and a
bare uvloop protocol with httptools take the same 8 us of CPU a request, most of it the kernel's;
the loop below, with everything it must get right, takes 10. Epoll was kept because it stamps the
time beside the system calls, while uvloop collects writes until the end of its turn. What keeps it
lean: requests are built beforehand, a response's head is parsed once and then recognised, what is
not a plain answer is left to slower methods, and what depends on time is looked at in `_tick`, each
20 ms.

This file is imported by the client's process only. It knows nothing of models, pipes or studies.
"""

from __future__ import annotations

import bisect
import math
import select
import time
from collections.abc import Callable, Sequence

from tuner.traffic.columns import Columns, CpuReadings
from tuner.traffic.connection import Connection, State
from tuner.traffic.phase import Phase
from tuner.traffic.plan import LoadPlan
from tuner.traffic.pool import RETRIES, Pool, ServerGone
from tuner.traffic.response import BadResponse, Head, ResponseReader
from tuner.traffic.steady import has_settled

RECEIVE_BYTES = 65_536
TICK_S = 0.02
LOOK_S = 0.1
"""From one look whether answers have settled to the next."""
MOST_HEADS = 512
"""Distinct heads remembered; a server that never repeats one has each of them parsed."""

_READABLE = select.EPOLLIN
_BOTH = select.EPOLLIN | select.EPOLLOUT


class Client:
    """One phase: `run` once, then read `columns`, `phase` and `cpu_s`."""

    def __init__(
        self, plan: LoadPlan, requests: Sequence[bytes], *, on_tick: Callable[[int], None]
    ) -> None:
        """Keep what is given.

        Args:
            plan: the load.
            requests: whole requests, head and body, sent in turn.
            on_tick: called every 20 ms or so with the number of requests finished.
        """
        self.plan = plan
        self.columns = Columns()
        self.phase = Phase(plan)
        self.cpu_s = 0.0
        """CPU time of this process, user and kernel, in the measured part."""
        self.cpu_readings = CpuReadings()
        """The same over the whole phase, every 20 ms or so."""
        self.first_error = b""
        """Beginning of the body of the first answer that is no 2xx and has one."""
        arrivals = self.phase.arrivals
        self.pool = Pool(plan.host, plan.port, arrivals.connections)
        self._requests = requests
        self._on_tick = on_tick
        self._is_open = arrivals.is_open
        self._due_s = arrivals.due_s
        self._each_its_own = plan.each_its_own
        self._next_due_s = math.inf
        """When the next request is due, where that is known and a connection is free for it."""
        self._heads: dict[bytes, Head] = {}
        self._sent = 0
        self._finished = 0
        self._origin = time.perf_counter()
        self._next_tick_s = 0.0
        self._look_s = 0.0
        self._has_settled = False

    def run(self) -> None:
        """Open the connections, warm up, measure, wait for what is in flight, close.

        Raises:
            ServerGone: the connections cannot be opened, or all of them were lost for good.
        """
        try:
            self.pool.resolve()
            self._open_all()
            self._origin = time.perf_counter()
            self._tick(0.0)
            self._dispatch()
            self._loop()
        finally:
            self.pool.close()
        self._advance(self._now(), closing=True)

    @property
    def origin_s(self) -> float:
        """The first send on the system's monotonic clock, which other processes read as well."""
        return self._origin

    def _now(self) -> float:
        return time.perf_counter() - self._origin

    def _open_all(self) -> None:
        """Open every connection before the first request, so that the load is whole at once."""
        pool = self.pool
        pool.open_due(0.0)
        while len(pool.free) < len(pool.connections):
            for descriptor, event in pool.poller.poll(TICK_S):
                connection = pool.by_descriptor[descriptor]
                if connection.state is State.OPENING:
                    pool.decide_opening(connection, event, self._now())
                else:
                    pool.fail(connection, self._now(), "the server closed it at once")
            if pool.gone:
                raise ServerGone(
                    f"{pool.where}: {pool.gone} of {len(pool.connections)} connections cannot be "
                    f"opened ({pool.last_loss}); does the server run, and does it take that many?"
                )
            pool.open_due(self._now())
            self._on_tick(0)
        for connection in pool.connections:
            connection.losses = 0

    def _loop(self) -> None:
        poll = self._poll_finely if self._is_open else self.pool.poller.poll
        clock, origin = time.perf_counter, self._origin
        by_descriptor, heads, busy = self.pool.by_descriptor, self._heads, State.BUSY
        now = clock() - origin
        while self._finished < self.phase.total:
            wake_s = min(self._next_tick_s, self._next_due_s)
            for descriptor, event in poll(max(0.0, wake_s - now)):
                connection = by_descriptor.get(descriptor)
                if connection is None:
                    continue  # closed by the handling of an event before this one
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
                    self._answered(connection, head.status, clock() - origin)
            now = clock() - origin
            if now >= self._next_tick_s:
                self._tick(now)
                self._dispatch()
            elif now >= self._next_due_s:
                self._dispatch()

    def _dispatch(self) -> None:
        """Send on free connections what is due."""
        free = self.pool.free
        self._next_due_s = math.inf
        while free and self._sent < self.phase.limit:
            now = time.perf_counter() - self._origin
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
            connection.state = State.BUSY
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

    def _answered(self, connection: Connection, status: int, now: float) -> None:
        """A complete answer on a connection that stays open: note it, and send what is due."""
        self._note(connection, status, now)
        connection.state = State.FREE
        self.pool.free.append(connection)
        self._dispatch()

    def _note(self, connection: Connection, status: int, now: float) -> None:
        self._finished += 1
        connection.round_trips += 1
        if status:
            connection.losses = 0
        self.columns.append(
            connection.intended_s, connection.started_s, now, status, connection.index
        )

    def _poll_finely(self, timeout_s: float) -> list[tuple[int, int]]:
        """Events, waiting for microseconds where epoll itself counts in milliseconds.

        An epoll is readable while it has events, and `select` takes such a time. The epoll is older than
        its connections, so its number is below the 1,024 that `select` can hold.
        """
        poller = self.pool.poller
        if timeout_s > 0.0:
            select.select((poller,), (), (), timeout_s)
        return poller.poll(0)

    # Everything below is slow and rare.

    def _tick(self, now: float) -> None:
        """Look at everything that depends on time."""
        self._on_tick(self._finished)
        self._advance(now)
        for connection in self.pool.connections:
            if connection.state is State.BUSY and now - connection.started_s > self.plan.timeout_s:
                self._lose(
                    connection, f"no answer within {self.plan.timeout_s:g} s", failures=RETRIES
                )
        if self._is_open:
            self._abandon(now)
            if self.plan.cuts_overload and self.phase.fell_behind:
                self._cut()
        if self._sent < self.phase.limit:
            if self.pool.gone == len(self.pool.connections):
                raise ServerGone(
                    f"{self.pool.where}: after {len(self.columns)} requests none of the "
                    f"{self.pool.gone} connections gets an answer any more ({self.pool.last_loss})"
                )
            self.pool.open_due(now)
        decided_s = self.phase.next_s
        self._next_tick_s = min(now + TICK_S, decided_s) if decided_s > now else now + TICK_S

    def _abandon(self, now: float) -> None:
        """Requests of an open loop that no connection was free for in time are lost: an overload ends."""
        due_before_s = now - self.plan.timeout_s
        while (
            self._sent < self.phase.limit
            and (due := self._due_s(self._sent, self._finished, now)) is not None
            and due < due_before_s
        ):
            self._sent += 1
            self._finished += 1
            self.pool.last_loss = f"no connection was free within {self.plan.timeout_s:g} s"
            self.columns.append(due, now, now, 0, -1)

    def _cut(self) -> None:
        """What has no answer yet is lost, sent or not: the server has fallen behind for good."""
        for connection in self.pool.connections:
            if connection.state is State.BUSY:
                self._lose(connection, "the server fell behind")
        now = self._now()
        while self._sent < self.phase.limit:
            due = self._due_s(self._sent, self._finished, now)
            assert due is not None, "an open loop"
            self._sent += 1
            self._finished += 1
            self.columns.append(due, now, now, 0, -1)

    def _advance(self, now: float, *, closing: bool = False) -> None:
        before = (self.phase.warmup_end_s, self.phase.measured_end_s)
        if closing:
            self.phase.close(self.columns.finished_s[-1] if len(self.columns) else now)
        elif not self._is_settling(now):
            least = min(connection.round_trips for connection in self.pool.connections)
            self.phase.advance(
                now, sent=self._sent, finished=self._finished, least_round_trips=least
            )
            if now >= self.phase.next_look_s:
                self.phase.look(self._mean_ms(), sent=self._sent)
        after = (self.phase.warmup_end_s, self.phase.measured_end_s)
        cpu = time.process_time()
        self.cpu_readings.append(now, cpu)
        self.cpu_s += cpu * ((after[1] is not None) - (before[1] is not None))
        self.cpu_s -= cpu * ((after[0] is not None) - (before[0] is not None))

    def _is_settling(self, now: float) -> bool:
        """Whether the warm-up waits for answers to settle; looked at every tenth of a second."""
        warmup = self.plan.warmup
        if not warmup.settling_s or self.phase.warmup_end_s is not None:
            return False
        if not warmup.seconds <= now < warmup.seconds + warmup.settling_s:
            return now < warmup.seconds
        if now >= self._look_s:
            self._look_s = now + LOOK_S
            columns = self.columns
            took_s = [
                end - begin
                for end, begin in zip(columns.finished_s, columns.intended_s, strict=True)
            ]
            self._has_settled = has_settled(took_s)
        return not self._has_settled

    def _mean_ms(self) -> float:
        """Mean round trip of what has finished since the warm-up; 0 where nothing has."""
        assert self.phase.warmup_end_s is not None
        intended_s, finished_s = self.columns.intended_s, self.columns.finished_s
        first = bisect.bisect_right(finished_s, self.phase.warmup_end_s)
        count = len(finished_s) - first
        return 1e3 * (sum(finished_s[first:]) - sum(intended_s[first:])) / count if count else 0.0

    def _handle(self, connection: Connection, event: int) -> None:
        """Any event, on a connection in any state."""
        if connection.state is State.OPENING:
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

    def _send_rest(self, connection: Connection, unsent: memoryview) -> None:
        try:
            connection.unsent = unsent[connection.write(unsent) :] or None
        except BlockingIOError:
            return
        except OSError:
            # The server hung up on the request. Its answer may be there to read, and tells more
            # than this error; the empty rest marks a request that was never sent whole, so that the
            # connection is not used again.
            connection.unsent = memoryview(b"")
        if not connection.unsent:
            self.pool.watch(connection, _READABLE)

    def _read_failed(self, connection: Connection, error: OSError) -> None:
        if not isinstance(error, BlockingIOError):
            self._lose(connection, error.strerror or str(error))

    def _read(self, connection: Connection, data: bytes) -> None:
        """Bytes for the complete reader, or b"" for the end of the stream."""
        if connection.state is not State.BUSY:
            self._renew(connection)  # an unused connection was closed, or spoke out of turn
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
                self._lose(connection, "the server closed the connection without a complete answer")
            return
        connection.reader = None
        self.first_error = self.first_error or reader.told
        if answer.keeps_alive and connection.unsent is None:
            if reader.plain is not None:
                self._remember(reader.head, reader.plain)
            self._answered(connection, answer.status, self._now())
        else:
            self._note(connection, answer.status, self._now())
            self._renew(connection)

    def _remember(self, head: bytes, plain: Head) -> None:
        if len(self._heads) >= MOST_HEADS:
            self._heads.clear()
        self._heads[head] = plain

    def _renew(self, connection: Connection) -> None:
        self.pool.renew(connection)
        self._next_tick_s = 0.0  # it opens as soon as the events at hand are handled

    def _lose(self, connection: Connection, reason: str, *, failures: int = 1) -> None:
        """The request in flight gets no answer: status 0."""
        now = self._now()
        if connection.state is State.BUSY:
            self._note(connection, 0, now)
        self.pool.fail(connection, now, reason, failures=failures)
