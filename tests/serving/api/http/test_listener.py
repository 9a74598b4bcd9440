"""One connection of the query port, without a socket: pieces in any cut, and what is left behind."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from serving.api.http.listener import HttpListener
from serving.api.http.messages import Response
from tests.fakes.wire import connected


class Echo:
    """Answers every request with its path and its body."""

    def handle(self, head, body, connection):
        return Response(200, b"", head.path.encode() + b" " + body)


def listening():
    return HttpListener(Echo(), max_body_bytes=1000, idle_s=10.0, request_s=10.0)


def request(path, body, chunked):
    start = b"POST /%d HTTP/1.1\r\nHost: a\r\n" % path
    if not chunked:
        return start + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return start + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"


REQUESTS = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=30), st.booleans()), min_size=1, max_size=5
)


@given(REQUESTS, st.lists(st.integers(1, 90), max_size=12), st.booleans())
def test_the_cut_of_the_stream_does_not_matter(requests, sizes, known):
    """The same requests, in any pieces, with heads known or not, get the same answers in order."""
    stream = b"".join(request(*one) for one in requests)
    listener = listening()
    if known:
        other, _ = connected(listener)
        for one in requests:
            other.data_received(request(*one))
    connection, wire = connected(listener)
    position = 0
    for size in [*sizes, len(stream)]:
        piece = stream[position : position + size]
        position += size
        if piece:
            connection.data_received(piece)
    bodies = [b"/%d %b" % (path, body) for path, body, _ in requests]
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
    assert wire.written == b"".join(answer % (len(body), body) for body in bodies)
    assert not wire.closed
    connection.drain()
    assert wire.closed


def test_a_connection_leaves_nothing_to_the_collector():
    """A connection that ended is gone at once, also amid a request: clients may come and go by thousands."""
    listener = listening()
    gc.collect()
    before = ours()
    gc.disable()
    try:
        for _ in range(50):
            connection, _ = connected(listener)
            connection.data_received(request(1, b"abc", chunked=False) + b"POST /")
            connection.connection_lost(None)
            del connection
        assert ours() - before <= 2, "what the last one left behind is the head that is remembered"
    finally:
        gc.enable()


def ours():
    """Living objects of the HTTP modules; other tests may leave garbage of their own."""
    return sum(
        str(getattr(type(thing), "__module__", "")).startswith("serving.api.http.listener")
        for thing in gc.get_objects()
    )
