"""HTTP/1.1 requests that are odd, ambiguous or wrong (RFC 9110 and 9112): what becomes of each, however it comes.

Each comes whole, byte by byte, behind another request, and on a connection whose heads are known: what reaches
the routes, what is answered and whether the connection ends is the same every time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.fakes.wire import Kept, exchange, listening, statuses

GET = b"GET /a HTTP/1.1\r\n"
POST = b"POST /a HTTP/1.1\r\n"
HOST = b"Host: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BEFORE = b"GET /before HTTP/1.1\r\nHost: x\r\n\r\n"
SECOND = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
HEADER_LENGTH = b"Inference-Header-Content-Length: "
TRAILERS = (
    b"Authorization: Bearer trailer\r\nX-Application: victim\r\nContent-Encoding: gzip\r\nOrigin: http://e\r\n"
    b"Host: other\r\nInference-Header-Content-Length: 1\r\n"
)


class Case(NamedTuple):
    """A stream of bytes and what becomes of it."""

    sent: bytes
    seen: Sequence[str] = ()
    """What reaches the routes: method, path, fields that are kept beside Host, encoding, length of the header, body."""
    statuses: Sequence[int] = (400,)
    is_closed: bool = True


def length(value):
    return POST + HOST + b"Content-Length: " + value + b"\r\n\r\nabcd" + SECOND


def coding(value):
    return POST + HOST + b"Transfer-Encoding: " + value + b"\r\n\r\n0\r\n\r\n" + SECOND


def chunks(data):
    return POST + HOST + CHUNKED + b"\r\n" + data


def fields(*lines):
    return GET + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + SECOND


ALL_WELL = {"statuses": [200, 200], "is_closed": False}

CASES = {
    "a length": Case(length(b"4"), ["POST /a abcd", "GET /b"], **ALL_WELL),
    "a length with a sign": Case(length(b"+4")),
    "a negative length": Case(length(b"-4")),
    "a list of equal lengths": Case(length(b"4, 4")),
    "a hexadecimal length": Case(length(b"0x4")),
    "an empty length": Case(length(b"")),
    "a length beyond 64 bits": Case(length(b"18446744073709551620")),
    "equal lengths": Case(length(b"4\r\nContent-Length: 4")),
    "different lengths": Case(length(b"4\r\nContent-Length: 5")),
    "a length above the limit": Case(length(b"1048577"), statuses=[413]),
    "an unknown coding": Case(coding(b"xchunked")),
    "chunked is not the last": Case(coding(b"chunked, identity")),
    "another coding before chunked": Case(coding(b"gzip, chunked"), statuses=[501]),
    "chunked twice": Case(coding(b"chunked, chunked")),
    "two fields of codings": Case(coding(b"chunked\r\nTransfer-Encoding: identity")),
    "two fields chunked": Case(coding(b"chunked\r\nTransfer-Encoding: chunked")),
    "a coding behind a vertical tab": Case(coding(b"\x0bchunked")),
    "chunked in capitals": Case(coding(b"Chunked"), ["POST /a", "GET /b"], **ALL_WELL),
    "lines that end with LF": Case(b"GET /a HTTP/1.1\nHost: x\n\n" + SECOND),
    "LF within a field": Case(GET + b"Host: x\nX-Application: other\r\n\r\n"),
    "CR within a field": Case(GET + b"Host: x\rX-Application: other\r\n\r\n"),
    "a space before the colon": Case(POST + HOST + b"Content-Length : 4\r\n\r\nabcd"),
    "a folded field": Case(GET + HOST + b"X-Application: a\r\n b\r\n\r\n"),
    "NUL in a field": Case(GET + HOST + b"X-Application: a\x00b\r\n\r\n"),
    "a field without a colon": Case(GET + HOST + b"Bad Field\r\n\r\n"),
    "a length, then chunked": Case(POST + HOST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + SECOND),
    "chunked, then a length": Case(POST + HOST + CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n" + SECOND),
    "chunked in HTTP/1.0": Case(b"POST /a HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n0\r\n\r\n" + SECOND),
    "chunks": Case(chunks(b"1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n") + SECOND, ["POST /a xyz", "GET /b"], **ALL_WELL),
    "an extension": Case(chunks(b'1;a="b;c"\r\nx\r\n0\r\n\r\n') + SECOND, ["POST /a x", "GET /b"], **ALL_WELL),
    "an extension with LF": Case(chunks(b"1;a\nb\r\nx\r\n0\r\n\r\n")),
    "a size that ends with LF": Case(chunks(b"1\nx\n0\n\n")),
    "a size with a sign": Case(chunks(b"+1\r\nx\r\n0\r\n\r\n")),
    "a size with a prefix": Case(chunks(b"0x1\r\nx\r\n0\r\n\r\n")),
    "a size beyond 64 bits": Case(chunks(b"10000000000000001\r\nx\r\n0\r\n\r\n")),
    "a chunk longer than its size": Case(chunks(b"1\r\nxy\r\n0\r\n\r\n")),
    "no Host": Case(GET + b"\r\n"),
    "no Host in HTTP/1.0": Case(b"GET /a HTTP/1.0\r\n\r\n", ["GET /a"], [200]),
    "an empty Host": Case(fields(b"Host:"), ["GET /a", "GET /b"], **ALL_WELL),
    "an address as Host": Case(fields(b"Host: [::1]:8000"), ["GET /a", "GET /b"], **ALL_WELL),
    "two Hosts": Case(GET + HOST + b"Host: y\r\n\r\n"),
    "one Host twice": Case(GET + HOST + HOST + b"\r\n"),
    "a Host with a space": Case(GET + b"Host: x y\r\n\r\n"),
    "a Host with a path": Case(GET + b"Host: x/y\r\n\r\n"),
    "a Host with a user": Case(GET + b"Host: user@x\r\n\r\n"),
    "two tokens": Case(GET + HOST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"),
    "two applications": Case(GET + HOST + b"X-Application: a\r\nX-Application: a\r\n\r\n"),
    "two origins": Case(GET + HOST + b"Origin: http://a\r\nOrigin: http://b\r\n\r\n"),
    "two encodings": Case(GET + HOST + b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n\r\n"),
    "two lengths of a header": Case(
        POST + HOST + HEADER_LENGTH + b"1\r\n" + HEADER_LENGTH + b"2\r\nContent-Length: 2\r\n\r\nxy"
    ),
    "a list in two fields": Case(
        fields(HOST.strip(), b"Accept-Encoding: gzip", b"Accept-Encoding: br"),
        ["GET /a accept-encoding=gzip, br", "GET /b"], **ALL_WELL,
    ),
    "HTTP/2.0": Case(b"GET /a HTTP/2.0\r\n" + HOST + b"\r\n", statuses=[505]),
    "HTTP/0.9": Case(b"GET /a\r\n\r\n", statuses=[505]),
    "HTTP/9.9": Case(b"GET /a HTTP/9.9\r\n" + HOST + b"\r\n"),
    "the preface of HTTP/2": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "CONNECT": Case(b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n" + SECOND, statuses=[501]),
    "CONNECT with a body": Case(
        b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"Content-Length: 30\r\n\r\n" + SECOND, statuses=[501]
    ),
    "an offer": Case(GET + HOST + UPGRADE + b"\r\n" + SECOND, ["GET /a", "GET /b"], **ALL_WELL),
    "many offers": Case(
        (GET + HOST + UPGRADE + b"\r\n") * 40, ["GET /a"] * 40, [200] * 40, is_closed=False
    ),
    "an offer and a body": Case(
        POST + HOST + UPGRADE + b"Content-Length: 4\r\n\r\nabcd" + SECOND, ["POST /a abcd", "GET /b"], **ALL_WELL
    ),
    "an offer and a request as its body": Case(
        POST + HOST + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(BEFORE) + BEFORE + SECOND,
        ["POST /a " + BEFORE.decode(), "GET /b"], **ALL_WELL,
    ),
    "an offer and chunks": Case(
        POST + HOST + UPGRADE + CHUNKED + b"\r\n2\r\nab\r\n0\r\nX-Application: victim\r\n\r\n" + SECOND,
        ["POST /a ab", "GET /b"], **ALL_WELL,
    ),
    "trailers": Case(
        POST + HOST + b"X-Application: mine\r\n" + CHUNKED + b"\r\n1\r\nx\r\n0\r\n" + TRAILERS + b"\r\n" + SECOND,
        ["POST /a x-application=mine x", "GET /b"], **ALL_WELL,
    ),
    "trailers of nothing": Case(
        chunks(b"0\r\n" + TRAILERS + b"\r\n") + SECOND, ["POST /a", "GET /b"], **ALL_WELL
    ),
    "a length among trailers": Case(chunks(b"1\r\nx\r\n0\r\nContent-Length: 7\r\n\r\n")),
    "chunked among trailers": Case(chunks(b"1\r\nx\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n")),
    "an end with bytes behind it": Case(
        GET + HOST + b"Connection: close\r\n\r\n" + SECOND, ["GET /a"], [200]
    ),
    "empty lines before a request": Case(b"\r\n\r\n" + SECOND, ["GET /b"], [200], is_closed=False),
    "an absolute target": Case(
        b"GET http://y/a HTTP/1.1\r\n" + HOST + b"\r\n", ["GET http://y/a"], [200], is_closed=False
    ),
    "a client that waits": Case(
        POST + HOST + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\nabcd" + SECOND,
        ["POST /a abcd", "GET /b"], [100, 200, 200], is_closed=False,
    ),
}  # fmt: skip


def shown(head, body):
    """What reached the routes, in words."""
    others = [
        f"{name.decode()}={value.decode()}"
        for name, value in head.others.items()
        if name != b"host"
    ]
    facts = [head.method, head.path, *others, head.content_encoding]
    if head.inference_header_bytes is not None:
        facts.append(str(head.inference_header_bytes))
    return " ".join(fact for fact in [*facts, body.decode()] if fact)


def outcome(listener, pieces):
    """What is seen, answered and done on a new connection."""
    routes, wire = exchange(listener, pieces)
    seen = [shown(head, body) for head, body in zip(routes.heads, routes.bodies, strict=True)]
    return seen, statuses(wire.written), wire.closed


@pytest.mark.parametrize("name", CASES)
def test_whole(name):
    """In one piece."""
    case = CASES[name]
    found = outcome(listening(Kept()), [case.sent])
    assert found == (list(case.seen), list(case.statuses), case.is_closed)


@pytest.mark.parametrize("name", CASES)
def test_byte_by_byte(name):
    """In as many pieces as it has bytes."""
    case = CASES[name]
    pieces = [case.sent[at : at + 1] for at in range(len(case.sent))]
    found = outcome(listening(Kept()), pieces)
    assert found == (list(case.seen), list(case.statuses), case.is_closed)


@pytest.mark.parametrize("name", CASES)
def test_behind_another_request(name):
    """In one piece with a request before it, which is answered as if it were alone."""
    case = CASES[name]
    found = outcome(listening(Kept()), [BEFORE + case.sent])
    assert found == (["GET /before", *case.seen], [200, *case.statuses], case.is_closed)


@pytest.mark.parametrize("name", CASES)
def test_on_heads_that_are_known(name):
    """On a connection that repeats itself, at a port that has seen all this before."""
    case = CASES[name]
    listener = listening(Kept())
    outcome(listener, [case.sent])
    found = outcome(listener, [BEFORE, BEFORE, case.sent])
    assert found == (
        ["GET /before", "GET /before", *case.seen],
        [200, 200, *case.statuses],
        case.is_closed,
    )
