"""The bound on what requests hold over all connections: a law for HTTP/1.1, and HTTP/2 without a socket."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.api.http.messages import Response
from serving.api.http2 import frames
from serving.api.http2.events import RequestReady, RequestRefused
from serving.api.http2.frames import FrameType
from serving.api.http2.session import WINDOW_BYTES, Session
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.errors import BufferFull
from tests.fakes.http2_client import CALL, Client, Turned
from tests.fakes.wire import connected, listening, statuses

MOST = 600_000
HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"


class Waiting:
    """Routes that answer when they are told to."""

    def __init__(self):
        self.flights = {}

    def handle(self, _head, body, connection):
        self.flights[connection] = len(body)
        return self

    def cancel(self):
        pass

    def answer(self, connection):
        if self.flights.pop(connection, None) is not None:
            connection.respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok")


def request(size, *, is_chunked, more_bytes=0):
    head = HEAD + (b"X-Application: %b\r\n" % (b"a" * more_bytes) if more_bytes else b"")
    if is_chunked:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
            size,
            bytes(size),
        )
    return head + b"Content-Length: %d\r\n\r\n" % size + bytes(size)


def pipelined_bytes(connection):
    """Bodies, and what is kept of large heads, of requests that wait on a connection."""
    waiting = [one for one in connection._pipeline.waiting if not isinstance(one, Response)]
    heads = [len(head.others.get(b"x-application", b"")) for head, _ in waiting]
    return sum(len(body) for _, body in waiting) + sum(size for size in heads if size > 2048)


SIZES = st.sampled_from([1, 1000, LARGE_BYTES - 1, LARGE_BYTES, 200_000, 500_000])
HEADS = st.sampled_from([0, 0, 100, 60_000])
STREAMS = st.lists(st.tuples(SIZES, st.booleans(), HEADS), min_size=1, max_size=4)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(
            st.just("answer"), st.just("leave"), st.integers(1, 250_000), st.integers(1, 300)
        ),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(st.lists(STREAMS, min_size=4, max_size=4), STEPS)
def test_what_all_connections_hold_is_bounded_and_let_go(streams, steps):
    """Whatever comes, in any pieces, and whoever leaves: never above the bound, and nothing is left at the end."""
    held, routes = BufferedBytes(MOST), Waiting()
    listener = listening(routes, buffered=held)
    clients = [connected(listener) for _ in streams]
    rests = [
        b"".join(request(size, is_chunked=chunked, more_bytes=more) for size, chunked, more in one)
        for one in streams
    ]
    gone = set()
    for number, step in steps:
        connection, wire = clients[number]
        if number in gone:
            continue
        if step == "answer":
            routes.answer(connection)
        elif step == "leave":
            connection.connection_lost(None)
            gone.add(number)
        elif wire.is_reading and not wire.closed and rests[number]:
            connection.data_received(rests[number][:step])
            rests[number] = rests[number][step:]
        assert 0 <= held.bytes <= MOST
        large = sum(size for one, size in routes.flights.items() if size >= LARGE_BYTES
                    and not any(clients[other][0] == one for other in gone))  # fmt: skip
        waiting = [pipelined_bytes(one) for at, (one, _) in enumerate(clients) if at not in gone]
        assert held.bytes >= large + sum(waiting)
    for number, (connection, wire) in enumerate(clients):
        if number not in gone:
            assert set(statuses(wire.written)) <= {200, 503}
            connection.connection_lost(None)
    assert held.bytes == 0


def test_who_came_first_goes_on():
    """The body for which there is no room is refused, and the others end; then there is room again."""
    held, routes = BufferedBytes(MOST), Waiting()
    listener = listening(routes, buffered=held)
    (first, wire), (second, other) = connected(listener), connected(listener)
    first.data_received(request(500_000, is_chunked=False)[:-1])
    for piece in (request(300_000, is_chunked=False)[:-10], b"1234567890"):
        second.data_received(piece)
    assert statuses(other.written) == [503]
    assert b"server.max_buffered_mb" in other.written
    assert b"Retry-After: 1\r\n" in other.written
    assert not other.closed
    first.data_received(b"1")
    routes.answer(first)
    assert statuses(wire.written) == [200]
    second.data_received(request(300_000, is_chunked=False))
    routes.answer(second)
    assert statuses(other.written) == [503, 200]
    assert held.bytes == 0


def test_heads_that_wait_are_held():
    """However little their bodies are; reading stops as with bodies, and beyond the bound the connection ends."""
    held, routes = BufferedBytes(), Waiting()
    listener = listening(routes, buffered=held)
    connection, wire = connected(listener)
    large = request(1, is_chunked=False, more_bytes=60_000)
    connection.data_received(request(1, is_chunked=False))
    for count in range(1, 64):
        if not wire.is_reading:
            break
        connection.data_received(large)
        assert held.bytes >= count * 60_000
    assert 1024 * 1024 < held.bytes < 1024 * 1024 + 70_000
    held.max_bytes = held.bytes
    other, refused = connected(listener)
    for _ in range(2):
        other.data_received(large)
    routes.answer(other)
    assert statuses(refused.written) == [200, 503]
    while routes.flights:
        routes.answer(connection)
    assert set(statuses(wire.written)) == {200}
    assert held.bytes == 0
    for _ in range(5):
        connection.data_received(large)
    assert held.bytes > 4 * 60_000
    connection.connection_lost(None)
    assert held.bytes == 0


def test_answers_that_a_client_does_not_read_are_held():
    """Until it reads, or leaves: bodies that come meanwhile are refused, and those that are there go on."""
    held, routes = BufferedBytes(MOST), Waiting()
    listener = listening(routes, buffered=held)
    (slow, wire), (other, refused), (third, served) = (connected(listener) for _ in range(3))
    for leaves in (False, True):
        wire.get_write_buffer_size = lambda: 0
        slow.data_received(request(1, is_chunked=False))
        third.data_received(request(1, is_chunked=False) + request(LARGE_BYTES, is_chunked=False))
        wire.get_write_buffer_size = lambda: 2 * MOST
        slow.pause_writing()  # within the write, or at the end of the loop's turn
        routes.answer(slow)
        assert held.unsent_bytes == 2 * MOST
        upload = request(LARGE_BYTES, is_chunked=False)
        for piece in (upload[:1000], upload[1000:]):
            other.data_received(piece)
        assert statuses(refused.written)[-1] == 503
        other, refused = connected(listener)
        for _ in range(2):
            routes.answer(third)
        assert set(statuses(served.written)) == {200}
        if leaves:
            slow.connection_lost(None)
        else:
            slow.resume_writing()
        assert held.unsent_bytes == 0
    assert held.bytes == 0


def test_each_of_many_that_overlap_is_answered():
    """Whole requests in packets of their own, each before the answer to the one before it."""
    routes = Waiting()
    listener = listening(routes)
    connection, wire = connected(listener)
    connection.data_received(request(1, is_chunked=False))
    for _ in range(100):
        connection.data_received(request(1, is_chunked=False))
        routes.answer(connection)
    routes.answer(connection)
    assert statuses(wire.written) == 101 * [200]


def test_small_requests_are_served_whatever_is_held():
    """Those that come whole are bounded by their number alone."""
    held, routes = BufferedBytes(MOST), Waiting()
    listener = listening(routes, buffered=held)
    for _ in range(3):
        connection, _ = connected(listener)
        connection.data_received(request(199_999 + 1, is_chunked=False))
    connection, wire = connected(listener)
    connection.data_received(request(1000, is_chunked=False))
    routes.answer(connection)
    assert statuses(wire.written) == [200]
    assert held.bytes == MOST


def test_what_is_pipelined_waits_for_the_loops_next_turn():
    """Others, whose requests came meanwhile, are not behind it; nor is the connection idle until then."""
    routes, later = Waiting(), []
    listener = listening(routes)
    listener.soon = later.append
    connection, wire = connected(listener)
    connection.data_received(2 * request(1, is_chunked=False))
    routes.answer(connection)
    assert not routes.flights
    connection.drain()
    assert not wire.closed
    for callback in later:
        callback()
    assert list(routes.flights) == [connection]
    routes.answer(connection)
    assert statuses(wire.written) == [200, 200]
    assert len(later) == 1
    connection.drain()
    assert wire.closed


# HTTP/2


def session(held):
    """A session whose client has said hello, and that client."""
    client, it = Client(), Turned(Session(max_body_bytes=1 << 20, buffered=held))
    it.receive(client.hello())
    client.read(it.take())
    return it, client


def test_uploads_of_all_sessions_are_bounded():
    """A body for which there is no room is told once, and dropped; that of another session ends."""
    held = BufferedBytes(400_000)
    (one, client), (other, second) = session(held), session(held)
    assert one.receive(client.headers(1) + client.data(1, bytes(250_000), end=False)) == []
    assert held.bytes == 250_000
    sent = second.headers(1) + second.data(1, bytes(WINDOW_BYTES - 1), end=False)
    (refused,) = other.receive(sent)
    assert isinstance(refused, RequestRefused)
    assert isinstance(refused.error, BufferFull)
    assert held.bytes == 250_000
    other.respond_short(1, b"\x88")
    assert other.streams == 0
    (event,) = one.receive(client.data(1, b"!"))
    assert isinstance(event, RequestReady)
    assert len(event.body) == 250_001
    assert held.bytes == 0


FEW = [*CALL, *((b"x-%d" % number, b"v" * 200) for number in range(2))]
MANY = [*CALL, *((b"x-%d" % number, b"v" * 200) for number in range(60))]


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([CALL, FEW, MANY]), st.sampled_from([0, 1, 30_000])),
            st.sampled_from(["answer", "reset", "end"]),
        ),
        max_size=30,
    )
)
def test_what_a_session_holds_is_bounded_and_let_go(steps):
    """Large fields count from their head to their stream's end; where there is no room the client is told, once."""
    held = BufferedBytes(100_000)
    it, client = session(held)
    last, streams, bodies = -1, {}, {}
    for step in steps:
        if isinstance(step, str):
            if not streams:
                continue
            some = min(streams)
            if step == "answer":
                it.respond_short(some, b"\x88")
            elif step == "reset":
                it.receive(frames.frame(FrameType.RST_STREAM, 0, some, bytes(4)))
            elif bodies[some]:
                (event,) = it.receive(client.data(some, b""))
                assert len(event.body) == bodies[some]
                bodies[some] = 0
                continue
            else:
                continue
            del streams[some], bodies[some]
        else:
            pairs, size = step
            last += 2
            streams[last], bodies[last] = pairs, size
            flags = frames.END_HEADERS | (0 if size else frames.END_STREAM)
            sent = client.headers(last, pairs, flags)
            if size:
                sent += client.data(last, bytes(size), end=False)
            for event in it.receive(sent):
                if isinstance(event, RequestRefused):
                    it.respond_short(event.stream, b"\x88")
                    del streams[last], bodies[last]
        fields = [sum(map(len, sum(pairs, ()))) for pairs in streams.values()]
        assert it.streams == len(streams)
        assert held.bytes <= 100_000
        assert held.bytes >= sum(size for size in fields if size > 2048) + sum(bodies.values())
        assert bool(held.bytes) == (any(bodies.values()) or MANY in streams.values())
    it.close()
    assert held.bytes == 0


def test_fields_of_streams_are_held():
    """More than twice as many streams as fit, each with a long head: those for which there is no room are refused."""
    held = BufferedBytes(1_000_000)
    it, client = session(held)
    told = [
        event for number in range(180) for event in it.receive(client.headers(2 * number + 1, MANY))
    ]
    assert {type(event) for event in told} == {RequestRefused}
    assert 40 < 180 - len(told) < 80
    assert 900_000 < held.bytes <= 1_000_000


def test_a_session_that_ends_lets_go():
    """Whether its client goes, or breaks the rules."""
    held = BufferedBytes()
    for end in (lambda it: it.close(), lambda it: it.receive(b"\xff" * 9)):
        it, client = session(held)
        it.receive(client.headers(1, CALL) + client.data(1, bytes(100_000), end=False))
        assert held.bytes == 100_000
        end(it)
        it.close()
        assert held.bytes == 0
        assert it.closed
