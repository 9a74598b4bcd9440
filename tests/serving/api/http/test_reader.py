"""What a request may cost before it is whole: what is no body is bounded, and so is the memory of a body in pieces."""

import asyncio
import itertools
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.http.head_fields import MAX_HEAD_BYTES
from serving.api.http.messages import Response
from serving.api.transport.buffered_bytes import BufferedBytes
from tests.fakes.wire import Kept, Wire, answers, connected, listening, statuses

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = 16 * 1024
REFUSAL = Response(401, b"WWW-Authenticate: Bearer\r\n", b"no")


def traced(function):
    """Bytes that a function leaves behind, and the most that it took."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        function()
        after, peak = tracemalloc.get_traced_memory()
        return after - before, peak - before
    finally:
        tracemalloc.stop()


def sent_without_end(beginning, endless):
    """How many bytes of an endless stream are taken before its connection is ended; its answer, and the memory."""
    connection, wire = connected(listening(Kept()))
    connection.data_received(beginning)
    sent = 0

    def send():
        nonlocal sent
        while not wire.closed and sent < 32 * MAX_HEAD_BYTES:
            connection.data_received(endless)
            sent += len(endless)

    _, peak = traced(send)
    return sent, wire, peak


@pytest.mark.parametrize(
    ("beginning", "endless"),
    [
        (b"GET /", b"a" * PIECE),
        (HEAD + b"A: ", b"a" * PIECE),
        (HEAD, b"a: b\r\n" * 2000),
        (b"\r\n", b"\r\n" * 8000),
        (CHUNKED + b"0\r\nA: ", b"a" * PIECE),
        (CHUNKED + b"1\r\nx\r\n0\r\nA: ", b"a" * PIECE),
        (CHUNKED + b"0\r\n", b"a: b\r\n" * 2000),
        (CHUNKED + b"0\r\n" + b"a" * 100, b"a" * PIECE),
        (CHUNKED + b"1;", b"a" * PIECE),
        (CHUNKED + b"1\r\nx\r\n1;a=", b"a" * PIECE),
        (CHUNKED + b'1;a="', b"a" * PIECE),
        (CHUNKED + b"0;", b"a" * PIECE),
    ],
    ids=[
        "target", "field", "fields", "empty lines", "trailer", "trailer of a body", "trailers",
        "name of a trailer", "extension", "later extension", "quoted extension", "last extension",
    ],
)  # fmt: skip
def test_what_is_no_body_is_bounded(beginning, endless):
    """A part of a request that never ends is refused after 64 KiB, and has taken little more."""
    sent, wire, peak = sent_without_end(beginning, endless)
    assert statuses(wire.written) == [431]
    assert sent <= MAX_HEAD_BYTES + 2 * PIECE
    assert peak < 4 * MAX_HEAD_BYTES


BIG = b"a" * 200_000
MANY = b"a: b\r\n" * 30_000
ONE_PIECE = {
    "fields": HEAD + MANY + b"\r\n",
    "field": HEAD + b"A: " + BIG + b"\r\n\r\n",
    "blanks before a value": HEAD + b"A:" + b" " * 200_000 + b"b\r\n\r\n",
    "trailers": CHUNKED + b"1\r\nx\r\n0\r\n" + MANY + b"\r\n",
    "trailer": CHUNKED + b"1\r\nx\r\n0\r\nA: " + BIG + b"\r\n\r\n",
    "extension": CHUNKED + b"1;" + BIG + b"\r\nx\r\n0\r\n\r\n",
    "quoted extension": CHUNKED + b'1;a="' + BIG + b'"\r\nx\r\n0\r\n\r\n',
    "later extension": CHUNKED + b"1\r\nx\r\n1;a=" + BIG + b"\r\nx\r\n0\r\n\r\n",
    "last extension": CHUNKED + b"1\r\nx\r\n0;a=" + BIG + b"\r\n\r\n",
}


@pytest.mark.parametrize("before", [b"", b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["", "behind"])
@pytest.mark.parametrize("data", ONE_PIECE.values(), ids=ONE_PIECE)
def test_what_is_no_body_is_bounded_in_one_piece(data, before):
    """However much comes at once: also behind another request, which is answered."""
    routes = Kept()
    connection, wire = connected(listening(routes))
    connection.data_received(before + data)
    assert statuses(wire.written) == [200] * bool(before) + [431]
    assert len(routes.heads) == bool(before)


def test_a_head_of_nearly_the_limit_is_read_in_one_piece():
    """64 KiB are let in, whatever they consist of."""
    routes = Kept()
    connection, wire = connected(listening(routes))
    connection.data_received(HEAD + b"a:b\r\n" * 13_000 + b"\r\n")
    assert statuses(wire.written) == [200]


def test_a_body_of_many_chunks_with_extensions_is_read():
    """Each extension is bounded, not all of them together."""
    routes = Kept()
    connection, wire = connected(listening(routes))
    connection.data_received(CHUNKED)
    for _ in range(20):
        connection.data_received(b"2;a=%b\r\nxy\r\n" % (b"a" * 10_000))
    connection.data_received(b"0\r\n\r\n")
    assert routes.bodies == [b"xy" * 20]
    assert statuses(wire.written) == [200]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_body_of_small_chunks_takes_no_more_memory_than_its_bytes(size):
    """An object for each would take thirty times the body."""
    routes = Kept()
    connection, _ = connected(listening(routes))
    connection.data_received(CHUNKED)
    pieces = b"%x\r\n%b\r\n" % (size, b"a" * size) * 2000

    def send():
        for _ in range(50):
            connection.data_received(pieces)

    body = 50 * 2000 * size
    held, _ = traced(send)
    assert held < 1.2 * body + 20_000
    connection.data_received(b"0\r\n\r\n")
    assert routes.bodies == [b"a" * body]


def test_requests_that_offer_another_protocol_do_not_nest():
    """Thousands of them in one piece are answered one after another."""
    routes = Kept()
    connection, wire = connected(listening(routes))
    offer = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    connection.data_received(offer * 3000)
    assert len(routes.heads) == 3000
    assert statuses(wire.written) == [200] * 3000


# What is refused by its head


def refusing(held=None):
    """A port that lets in what has a token, and its routes."""
    routes = Kept()

    def refusal(head):
        return None if b"authorization" in head.others else REFUSAL

    return listening(routes, 32 * 2**20, refusal=refusal, buffered=held), routes


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_refused_is_not_held(is_chunked):
    """Nothing of it is kept, it is answered when it is over, and the connection goes on."""
    held = BufferedBytes()
    listener, routes = refusing(held)
    connection, wire = connected(listener)
    piece, pieces = bytes(256 * 1024), 64
    connection.data_received(
        CHUNKED if is_chunked else HEAD + b"Content-Length: %d\r\n\r\n" % (pieces * len(piece))
    )
    framed = b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece

    def send():
        for _ in range(pieces):
            assert wire.written == b""
            connection.data_received(framed)
            assert held.bytes == 0
        if is_chunked:
            connection.data_received(b"0\r\n\r\n")

    _, peak = traced(send)
    assert peak < 3 * len(piece)
    ((status, head, body),) = answers(wire.written)
    assert (status, body) == (401, b"no")
    assert b"WWW-Authenticate: Bearer" in head
    assert (routes.heads, wire.closed) == ([], False)
    connection.data_received(HEAD + b"Authorization: a\r\nContent-Length: 2\r\n\r\nhi")
    assert routes.bodies == [b"hi"]
    connection.data_received(HEAD + b"Content-Length: 2\r\n\r\nhi")
    assert statuses(wire.written)[-1] == 401


@pytest.mark.parametrize("is_allowed", [True, False])
def test_who_waits_for_leave_is_refused_before_it(is_allowed):
    """Instead of 100 Continue; what the client would do next is open then, so the connection ends."""
    listener, routes = refusing()
    connection, wire = connected(listener)
    token = b"Authorization: a\r\n" if is_allowed else b""
    connection.data_received(HEAD + token + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    if is_allowed:
        assert statuses(wire.written) == [100]
        connection.data_received(b"hi")
        assert routes.bodies == [b"hi"]
    else:
        ((status, head, body),) = answers(wire.written)
        assert (status, body, wire.closed) == (401, b"no", True)
        assert b"Connection: close" in head


def test_a_head_that_is_refused_is_not_remembered():
    """Strangers push nobody's heads out."""
    listener, _ = refusing()
    connection, wire = connected(listener)
    for number in range(3):
        connection.data_received(
            HEAD + b"X-Application: %d\r\nContent-Length: 2\r\n\r\nhi" % number
        )
    assert statuses(wire.written) == [401] * 3
    assert len(listener.heads) == 0


LONG = 3 * PIECE


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 1),
            st.booleans(),
            st.sampled_from([b"", b"Upgrade", b"close"]),
            st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(
        st.one_of(
            st.integers(1, 200),
            st.integers(PIECE - 100, PIECE + 100),
            st.integers(1, 5 * LONG),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_long_bodies_in_any_pieces_are_the_same(requests, sizes, is_cut):
    """What passes the parser ends where the length says, with whatever comes before and behind it, as the empty
    lines that some clients send behind a body (RFC 9112, section 2.2), in a piece of their own or not."""
    stream, bodies = b"", []
    starts = []
    for number, (odd, is_long, told, blank) in enumerate(requests):
        body = bytes([number]) * (odd + (LONG if is_long else PIECE))
        fields = b"Connection: %b\r\nUpgrade: h2c\r\n" % told if told else b""
        stream += HEAD + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body
        bodies.append(body)
        starts.append(len(stream))
        stream += blank if told != b"close" else b""
        starts.append(len(stream))
        if told == b"close":
            break
    stream += GET
    if told != b"close":
        bodies.append(b"")
    routes = Kept()
    listener = listening(routes, buffered=BufferedBytes(1 << 20))
    connection, wire = connected(listener)
    cuts = {0, len(stream), *itertools.accumulate(sizes)} | (set(starts) if is_cut else set())
    for start, end in itertools.pairwise(sorted(cut for cut in cuts if cut <= len(stream))):
        if not wire.closed:
            connection.data_received(stream[start:end])
    assert routes.bodies == bodies
    assert statuses(wire.written) == [200] * len(bodies)
    assert wire.closed == (told == b"close")
    assert listener.buffered.bytes == 0


def test_a_long_body_holds_what_is_counted():
    """Of a piece that holds the end of another request and one byte of this body, one byte is kept."""
    routes = Kept()
    listener = listening(routes, buffered=BufferedBytes(1 << 20))
    connection, _ = connected(listener)
    length = b"Content-Length: %d\r\n\r\n" % (20 * PIECE)
    connection.data_received(HEAD + length)
    connection.data_received(bytes(4 * PIECE))
    head = HEAD + b"A: " + b"a" * (PIECE - len(HEAD + length) - 5) + b"\r\n" + length

    def send():
        connection.data_received(bytes(16 * PIECE) + head + b"x")
        routes.bodies.clear()

    left, _ = traced(send)
    assert listener.buffered.bytes == 1
    assert left < PIECE


GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


class Clocked(Kept):
    """Counts the turns that others have meanwhile, and notes in which one a request was answered."""

    def __init__(self):
        super().__init__()
        self.turn = 0
        self.turns = []

    def handle(self, head, body, connection):
        self.turns.append(self.turn)
        return super().handle(head, body, connection)


async def fed(connection, data, routes):
    """Turns of the loop until no more is answered; while one is read there is no reading."""
    connection.data_received(data)
    seen = -1
    while seen < len(routes.heads) or connection._is_later:
        seen = len(routes.heads)
        routes.turn += 1
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", [1, 16, 17, 3000])
async def test_requests_that_are_answered_at_once_leave_others_their_turn(count):
    """However many come in one piece: sixteen in a turn of the loop, in their order, and reading goes on after."""
    routes = Clocked()
    listener = listening(routes)
    wire, connection = Wire(), listener.protocol()
    connection.connection_made(wire)
    await fed(connection, GET * count + b"GET /b", routes)
    assert statuses(wire.written) == [200] * count
    assert max(Counter(routes.turns).values()) <= 16
    assert wire.is_reading
    await fed(connection, GET[6:] + GET, routes)
    assert [head.path for head in routes.heads[-2:]] == ["/b", "/a"]
    assert listener.buffered.bytes == 0


async def test_large_requests_that_are_answered_at_once_count_for_more():
    """What is refused may have been read first."""
    routes = Clocked()
    wire, connection = Wire(), listening(routes).protocol()
    connection.connection_made(wire)
    await fed(connection, (HEAD + b"Content-Length: 40000\r\n\r\n" + bytes(40_000)) * 6, routes)
    assert statuses(wire.written) == [200] * 6
    assert max(Counter(routes.turns).values()) <= 2


async def test_a_client_that_goes_in_its_turn_leaves_nothing():
    """What it had sent is dropped, and counted no more."""
    routes = Clocked()
    listener = listening(routes, buffered=BufferedBytes(1 << 20))
    wire, connection = Wire(), listener.protocol()
    connection.connection_made(wire)
    connection.data_received(GET * 3000)
    assert listener.buffered.bytes > 50_000
    assert not wire.is_reading
    connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert listener.buffered.bytes == 0
    assert len(routes.heads) == 16


async def test_what_waits_for_its_turn_has_a_bound():
    """That of all bodies together."""
    routes = Clocked()
    listener = listening(routes, buffered=BufferedBytes(10_000))
    wire, connection = Wire(), listener.protocol()
    connection.connection_made(wire)
    await fed(connection, GET * 3000, routes)
    assert statuses(wire.written)[-1] == 503
    assert listener.buffered.bytes == 0
