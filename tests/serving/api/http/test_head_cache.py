"""Heads that are found again: those that say the same, and no others."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.api.http.head_cache import MAX_CACHED_HEAD_BYTES, MAX_HEADS, HeadCache
from serving.api.http.messages import RequestHead
from tests.fakes.wire import Kept, connected, exchange, listening, statuses

POST = b"POST /a HTTP/1.1"
SAYING = [
    b"Host: x",
    b"host: y",
    b"Content-Length: 3",
    b"Content-Length: 2",
    b"content-length: 03",
    b"Content-Length: 2000",
    b"Content-Length: +3",
    b"Authorization: a",
    b"X-Application: a",
    b"X-Application: b",
    b"Content-Encoding: identity",
    b"Accept-Encoding: gzip",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Proxy-Connection: close",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Transfer-Encoding: chunked",
    b"Inference-Header-Content-Length: 1",
    b"traceparent: 00-1-2-00",
]
SILENT = [
    b"X-Request-Id: 1",
    b"X-Request-Id: 2",
    b"User-Agent: a: b",
    b"Accept: */*",
    b"A:",
    b"A:\t b",
]
ILL = [
    b"X-Request-Id: 1\nHost: z",
    b"X-Request-Id: 1\rX-Application: c",
    b" folded",
    b"\tfolded",
    b"X-Request-Id : 1",
    b"X-Request-Id",
    b"X-Request-Id: \x00",
    b"X-Request-Id: \x7f",
    b"X-Request-Id: \xe9",
    b": a",
    b"",
]  # fmt: skip
LINES = st.lists(st.sampled_from(SILENT + SAYING + ILL), max_size=5)
FIRST = st.sampled_from([POST, b"POST /b HTTP/1.1", b"POST /a HTTP/1.0", b"GET /a HTTP/1.1", b""])
FIRST_OF_TWO = [b"%b\n%b" % (POST, line) for line in SAYING]
"""Some versions of the parser take a bare LF for the end of the first line."""


def request(first, lines, body=b"abc"):
    return b"\r\n".join([first, *lines, b"", b""]) + body


def outcome(listener, pieces):
    """What reaches the routes over a new connection, and what is answered."""
    routes, wire = exchange(listener, pieces)
    facts = [
        (
            head.method,
            head.path,
            head.others,
            head.application,
            head.content_encoding,
            head.inference_header_bytes,
            head.keep_alive,
            head.inserted,
        )
        for head in routes.heads
    ]
    return facts, routes.bodies, statuses(wire.written), wire.written, wire.closed


@given(FIRST, LINES, FIRST, LINES, st.booleans())
@example(POST, [b"Host: x", b"A:", b" folded"], POST, [b"Host: x", b" folded"], False)
@example(POST, [b"Host: x", b"Content-Length: 3"], POST, [b"Host: x", b"Content-Length: 2"], False)
@example(POST, [b"Host: x", b"Content-Length: 3"], POST, [b"Host: x"], False)
@example(POST, [b"Host: x", b"Content-Length: 3"], POST, [b"Host: x", b"X-Request-Id: \x00"], False)
def test_what_was_read_before_changes_nothing(first, lines, other, others, is_same):
    """A request says the same at a port that has read another one, whatever both are."""
    before, after = request(first, lines), request(first if is_same else other, others)
    listener = listening(Kept(), 1000)
    outcome(listener, [before])
    assert outcome(listener, [after, after]) == outcome(listening(Kept(), 1000), [after, after])


PLAIN = [
    [b"Host: x", b"Content-Length: 3"],
    [b"Content-Length: 3", b"A: b", b"Host: x"],
    [b"Host: x", b"Connection: close", b"A: b", b"Content-Length: 3"],
    [b"Host: x", b"Connection: upgrade", b"A: b", b"Content-Length: 3"],
]


@pytest.mark.parametrize("plain", PLAIN)
@pytest.mark.parametrize("line", SAYING + SILENT + ILL)
def test_one_line_makes_the_difference(plain, line):
    """Anywhere, beside the others or in the place of one, in the request that was read or in the next."""
    for at in range(len(plain) + 1):
        for after in ([*plain[:at], line, *plain[at:]], [*plain[:at], line, *plain[at + 1 :]]):
            for one, other in ((plain, after), (after, plain)):
                known = listening(Kept(), 1000)
                outcome(known, [request(POST, one)])
                pieces = [request(POST, other)] * 2
                assert outcome(known, pieces) == outcome(listening(Kept(), 1000), pieces)


@given(st.lists(st.sampled_from(SILENT), max_size=3), st.lists(st.sampled_from(SILENT), max_size=3))
def test_what_means_nothing_does_not_matter(some, others):
    """Nor does the length of the body: the second request is not read again."""
    listener = listening(Kept(), 1000)
    outcome(listener, [request(POST, [*some, b"Host: x", b"Content-Length: 3"])])
    connection, wire = connected(listener)
    connection.data_received(
        request(POST, [b"Host: x", b"Content-Length: 4", *others], body=b"abcd")
    )
    assert statuses(wire.written) == [200]
    assert listener.routes.bodies == [b"abc", b"abcd"]
    assert connection._reader is None
    assert len(listener.heads) == 1


def head():
    return RequestHead(
        method="POST",
        path="/a",
        inference_header_bytes=None,
        content_encoding="",
        keep_alive=True,
        http_1_0=False,
    )


@pytest.mark.parametrize("first", [*FIRST_OF_TWO, b"POST /\xe9 HTTP/1.1", b"\r\n" + POST])
def test_a_first_line_that_is_not_plain_is_always_read(first):
    """However the parser understands it."""
    known = HeadCache(10)
    raw = request(first, [b"Host: x"], b"")
    known.remember(raw, head())
    assert len(known) == 0
    known.remember(request(POST, [b"Host: x"], b""), head())
    assert len(known) == 1


def test_a_line_costs_by_its_length():
    """Whatever it holds: it is looked at before anybody is asked who sends it."""

    def took_s(filling):
        heads = [request(POST, [b"A:%b\xe9%d" % (filling, number)], b"") for number in range(20)]
        known = HeadCache(10)
        began_s = time.thread_time()
        for raw in heads:
            assert known.find(raw, 0) is None
        return time.thread_time() - began_s

    plain, blank = (min(took_s(one * 1900) for _ in range(5)) for one in (b"a", b" "))
    assert blank < 10 * plain


def test_a_body_of_any_length_has_its_bound():
    """What is remembered of a short one lets no long one in."""
    listener = listening(Kept(), 10)
    outcome(listener, [request(POST, [b"Host: x", b"Content-Length: 3"])])
    long = request(POST, [b"Host: x", b"Content-Length: 11"], bytes(11))
    assert outcome(listener, [long])[2] == [413]


def test_what_is_remembered_is_bounded():
    """However many heads, and lines of them, come."""
    known = HeadCache(10)
    for number in range(3 * MAX_HEADS):
        raw = request(POST, [b"X-Application: %d" % number, b"X-Request-Id: %d" % number], b"")
        known.remember(raw, head())
        assert known.find(raw, 0) is not None
    assert 0 < len(known) <= MAX_HEADS
    assert len(known._lines) <= 2 * MAX_HEADS
    large = request(POST, [b"A: " + bytes(MAX_CACHED_HEAD_BYTES)], b"")
    known.remember(large, head())
    assert known.find(large, 0) is None
