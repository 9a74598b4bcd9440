"""C: what is odd, ambiguous or wrong in HTTP/1.1, each in four forms, with another request behind it.

Every row says which answers it may get before the probe behind it is answered, or before the connection is
closed: a request that is let in must leave the next one whole, and a refused one must end the connection.
Over that a reference is asked, h11: what reached the routes here is what h11 reads, or less.
Sources: RFC 9112, RFC 9110.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tests.abuse import wire
from tests.abuse.cases import Case
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject, SubjectSpec

TOKEN = "c-7f3a90d1b2e84c55a6f0d9e81b7c4a23"
_AUTH = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
_HOST = b"Host: localhost\r\n"
_BODY = b'{"inputs":[{"name":"data","shape":[1,1],"datatype":"UINT8","data":[7]}]}'
_SIZE = len(_BODY)
_POST = b"POST /v2/models/echo/infer HTTP/1.1\r\n"
_GET = b"GET /v2 HTTP/1.1\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_CHUNKS = b"%x\r\n%b\r\n0\r\n" % (_SIZE, _BODY)
_PROBE = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_PLAIN = _GET + _HOST + _AUTH + b"\r\n"
_FORMS = ("whole", "bytewise", "behind", "remembered")

LET_IN = ((200,),)
REFUSED = ((400,),)
TOO_LARGE = ((431,), (400,), (413,))
EITHER = ((200,), (400,))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request, and the statuses that it may get; a status of 400 and more closes the connection."""

    name: str
    data: bytes
    wanted: tuple[tuple[int, ...], ...]
    stays_open: bool = False
    """An error of the request, not of its framing: the connection may go on."""
    is_head: bool = False
    is_compared: bool = True
    """With what h11 reads; it is stricter than the RFC in places."""
    forms: tuple[str, ...] = _FORMS


def rows() -> Iterator[Row]:
    """All of the table."""
    for part in (_lengths, _codings, _lines, _fields, _chunks, _trailers, _methods, _sizes):
        yield from part()


def _post(
    name: str, fields: bytes, body: bytes, wanted: tuple[tuple[int, ...], ...], **more: Any
) -> Row:
    data = _POST + _HOST + _AUTH + fields + b"\r\n" + body
    return Row(name=name, data=data, wanted=wanted, **more)


def _lengths() -> Iterator[Row]:
    yield _post("length", b"Content-Length: %d\r\n" % _SIZE, _BODY, LET_IN)
    yield _post("length with blanks", b"Content-Length: \t%d \t\r\n" % _SIZE, _BODY, EITHER)
    yield _post("length with zeros", b"Content-Length: 000%d\r\n" % _SIZE, _BODY, EITHER)
    for value in (
        b"+%d",
        b"-%d",
        b"0x%x",
        b"%d,",
        b"%d;a",
        b"%d.0",
        b"%de0",
        b"%d %d",
        b'"%d"',
        b"%d\x00",
    ):
        numbers = value.count(b"%")
        text = value % ((_SIZE,) * numbers)
        yield _post(f"length {text!r}", b"Content-Length: %b\r\n" % text, _BODY, REFUSED)
    for value in (b"", b"a", b"99999999999999999999", b"18446744073709551616", b"\xef\xbc\x93"):
        yield _post(f"length {value!r}", b"Content-Length: %b\r\n" % value, _BODY, ((400,), (413,)))
    once = b"Content-Length: %d\r\n" % _SIZE
    yield _post("length twice", once * 2, _BODY, EITHER)
    yield _post("two lengths", once + b"Content-Length: 5\r\n", _BODY, REFUSED)
    yield _post("two lengths, the other first", b"Content-Length: 5\r\n" + once, _BODY, REFUSED)
    yield _post("length list", b"Content-Length: %d, %d\r\n" % (_SIZE, _SIZE), _BODY, EITHER)
    yield _post("no length", b"", b"", REFUSED, stays_open=True)


def _codings() -> Iterator[Row]:
    yield _post("chunked", _CHUNKED, _CHUNKS + b"\r\n", LET_IN)
    yield _post("Chunked", b"Transfer-Encoding: Chunked\r\n", _CHUNKS + b"\r\n", EITHER)
    for value in (
        b"xchunked", b"chunked, identity", b"chunked, chunked", b"identity", b"\x0bchunked", b"chunked\x00",
        b"chunked;a=b", b" , chunked", b"chunked,", b'"chunked"', b"cow",
    ):  # fmt: skip
        fields = b"Transfer-Encoding: %b\r\n" % value
        lists = value in {b" , chunked", b"chunked,"}  # empty members of a list may be let pass
        wanted = ((400,), (501,), (200,)) if lists else ((400,), (501,))
        yield _post(f"coding {value!r}", fields, _CHUNKS + b"\r\n", wanted, is_compared=not lists)
    yield _post(
        "coding gzip, chunked",
        b"Transfer-Encoding: gzip, chunked\r\n",
        _CHUNKS + b"\r\n",
        ((400,), (501,)),
    )
    length = b"Content-Length: %d\r\n" % _SIZE
    yield _post("length and chunked", length + _CHUNKED, _CHUNKS + b"\r\n", REFUSED)
    yield _post("chunked and length", _CHUNKED + length, _CHUNKS + b"\r\n", REFUSED)
    yield _post("chunked twice", _CHUNKED * 2, _CHUNKS + b"\r\n", ((400,), (501,)))
    old = _POST.replace(b"1.1", b"1.0") + _HOST + _AUTH
    yield Row(
        name="1.0 and chunked",
        data=old + _CHUNKED + b"\r\n" + _CHUNKS + b"\r\n",
        wanted=((400,), (200,)),
    )


def _lines() -> Iterator[Row]:
    for name, data in {
        "bare LF": b"GET /v2 HTTP/1.1\nHost: localhost\n" + _AUTH.replace(b"\r", b"") + b"\n",
        "bare LF in a field": _GET + b"Host: localhost\nX-A: b\r\n" + _AUTH + b"\r\n",
        "bare CR": _GET + b"Host: localhost\rX-A: b\r\n" + _AUTH + b"\r\n",
        "CR in a value": _GET + _HOST + _AUTH + b"X-A: a\rb\r\n\r\n",
        "NUL in a value": _GET + _HOST + _AUTH + b"X-A: a\x00b\r\n\r\n",
        "NUL in a name": _GET + _HOST + _AUTH + b"X\x00A: b\r\n\r\n",
        "blank before the colon": _GET + _HOST + _AUTH + b"X-A : b\r\n\r\n",
        "blank before the name": _GET + _HOST + _AUTH + b" X-A: b\r\n\r\n",
        "folded": _GET + _HOST + _AUTH + b"X-A: a\r\n b\r\n\r\n",
        "folded host": _GET + b"Host:\r\n localhost\r\n" + _AUTH + b"\r\n",
        "no colon": _GET + _HOST + _AUTH + b"X-A\r\n\r\n",
        "no name": _GET + _HOST + _AUTH + b": b\r\n\r\n",
        "no target": b"GET HTTP/1.1\r\n" + _HOST + _AUTH + b"\r\n",
        "blank in the target": b"GET /v2 /x HTTP/1.1\r\n" + _HOST + _AUTH + b"\r\n",
        "tab after the method": b"GET\t/v2 HTTP/1.1\r\n" + _HOST + _AUTH + b"\r\n",
        "control in the target": b"GET /v2\x01 HTTP/1.1\r\n" + _HOST + _AUTH + b"\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "noise": bytes(range(256)),
    }.items():
        yield Row(name=name, data=data, wanted=((400,), (405,), (505,)))
    yield Row(name="empty lines first", data=b"\r\n\r\n" + _PLAIN, wanted=EITHER, is_compared=False)
    two = b"GET  /v2 HTTP/1.1\r\n" + _HOST + _AUTH + b"\r\n"
    yield Row(name="two blanks", data=two, wanted=EITHER, is_compared=False)
    for version in (
        b"HTTP/2.0",
        b"HTTP/0.9",
        b"HTTP/1.2",
        b"HTTP/1.10",
        b"HTTP/11",
        b"http/1.1",
        b"HTTP/1.",
        b"ICY",
    ):
        data = b"GET /v2 " + version + b"\r\n" + _HOST + _AUTH + b"\r\n"
        wanted = ((400,), (505,)) if version != b"HTTP/1.2" else ((200,), (400,), (505,))
        yield Row(name=f"version {version.decode()}", data=data, wanted=wanted)
    yield Row(name="no version", data=b"GET /v2\r\n\r\n", wanted=((400,), (505,)))


def _fields() -> Iterator[Row]:
    yield Row(name="plain", data=_PLAIN, wanted=LET_IN)
    yield Row(name="no Host", data=_GET + _AUTH + b"\r\n", wanted=REFUSED)
    yield Row(
        name="two Hosts", data=_GET + _HOST + b"Host: y\r\n" + _AUTH + b"\r\n", wanted=REFUSED
    )
    yield Row(name="no Host in 1.0", data=b"GET /v2 HTTP/1.0\r\n" + _AUTH + b"\r\n", wanted=LET_IN)
    yield Row(name="absolute target", data=b"GET http://localhost/v2 HTTP/1.1\r\n" + _HOST + _AUTH + b"\r\n",
              wanted=((200,), (400,), (404,)), stays_open=True)  # fmt: skip
    wrong = b"Authorization: Bearer wrong-wrong-wrong-wrong\r\n"
    for name, fields in (
        ("two tokens", wrong + _AUTH),
        ("two tokens, the right one first", _AUTH + wrong),
    ):
        yield Row(
            name=name,
            data=_GET + _HOST + fields + b"\r\n",
            wanted=((400,), (401,)),
            stays_open=True,
        )
    yield Row(name="no token", data=_GET + _HOST + b"\r\n", wanted=((401,),), stays_open=True)
    named = b"Inference-Header-Content-Length: "
    length = b"Content-Length: %d\r\n" % _SIZE
    twice = named + b"%d\r\n" % _SIZE + named + b"5\r\n"
    yield _post("two header lengths", twice + length, _BODY, REFUSED, stays_open=True)
    yield _post(
        "header length beyond", named + b"9999\r\n" + length, _BODY, REFUSED, stays_open=True
    )
    yield _post("100-continue", b"Expect: 100-continue\r\n" + length, _BODY, ((100, 200), (200,)))
    yield _post(
        "unknown expectation",
        b"Expect: cake\r\n" + length,
        _BODY,
        ((200,), (417,)),
        stays_open=True,
    )
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    yield _post("Upgrade and a body", upgrade + length, _BODY, EITHER)
    yield Row(name="Upgrade", data=_GET + _HOST + _AUTH + upgrade + b"\r\n", wanted=EITHER)
    yield Row(
        name="websocket",
        data=_GET + _HOST + _AUTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        wanted=EITHER,
    )
    yield Row(
        name="long method",
        data=b"A" * 500 + b" /v2 HTTP/1.1\r\n" + _HOST + _AUTH + b"\r\n",
        wanted=((400,), (405,), (501,)),
    )


def _chunks() -> Iterator[Row]:
    for name, body in {
        "chunk extension": b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (_SIZE, _BODY),
        "quoted extension": b'%x;a="b;c"\r\n%b\r\n0\r\n\r\n' % (_SIZE, _BODY),
        "chunk size with zeros": b"0000%x\r\n%b\r\n0\r\n\r\n" % (_SIZE, _BODY),
        "last chunk of zeros": b"%x\r\n%b\r\n000\r\n\r\n" % (_SIZE, _BODY),
    }.items():
        yield _post(name, _CHUNKED, body, EITHER)
    for name, body in {
        "extension with LF": b"%x;a\nb\r\n%b\r\n0\r\n\r\n" % (_SIZE, _BODY),
        "chunk size, bare LF": b"%x\n%b\n0\n\n" % (_SIZE, _BODY),
        "chunk size 0x": b"0x%x\r\n%b\r\n0\r\n\r\n" % (_SIZE, _BODY),
        "negative chunk": b"-1\r\n%b\r\n0\r\n\r\n" % _BODY,
        "chunk size with a blank": b"%x %x\r\n%b\r\n0\r\n\r\n" % (_SIZE, _SIZE, _BODY),
        "endless chunk size": b"f" * 40 + b"\r\n" + _BODY,
        "chunk without its end": b"%x\r\n%bXX0\r\n\r\n" % (_SIZE, _BODY),
        "chunk longer than its size": b"%x\r\n%b\r\n0\r\n\r\n" % (_SIZE - 1, _BODY),
        "empty chunk size": b"\r\n%b\r\n0\r\n\r\n" % _BODY,
    }.items():
        yield _post(name, _CHUNKED, body, ((400,), (413,)))
    extension = b"%x;%b\r\n%b\r\n0\r\n\r\n" % (_SIZE, b"a" * 200_000, _BODY)
    yield _post("endless extension", _CHUNKED, extension, TOO_LARGE, forms=("whole", "behind"))


def _trailers() -> Iterator[Row]:
    for name, trailer, wanted in (
        ("trailer", b"X-A: b\r\n", EITHER),
        ("trailer Content-Length", b"Content-Length: 7\r\n", REFUSED),
        ("trailer Transfer-Encoding", b"Transfer-Encoding: chunked\r\n", REFUSED),
        ("trailer Content-Encoding", b"Content-Encoding: gzip\r\n", EITHER),
        ("trailer Host", b"Host: elsewhere\r\n", EITHER),
        ("trailer with a blank name", b": b\r\n", REFUSED),
        ("endless trailer", b"A: " + b"a" * 200_000 + b"\r\n", TOO_LARGE),
        ("many trailers", b"A: b\r\n" * 30_000, TOO_LARGE),
    ):
        forms = _FORMS if len(trailer) < 1000 else ("whole", "behind")
        yield _post(name, _CHUNKED, _CHUNKS + trailer + b"\r\n", wanted, forms=forms)
    data = _POST + _HOST + _CHUNKED + b"\r\n" + _CHUNKS + _AUTH + b"\r\n"
    yield Row(name="token in a trailer", data=data, wanted=((400,), (401,)), stays_open=True)
    unfinished = _POST + _HOST + _AUTH + _CHUNKED + b"\r\n0\r\nA: " + b"a" * 131_072
    yield Row(
        name="unfinished trailer of 128 KiB",
        data=unfinished,
        wanted=TOO_LARGE,
        forms=("whole", "behind"),
    )


def _methods() -> Iterator[Row]:
    tail = _HOST + _AUTH + b"\r\n"
    yield Row(name="HEAD", data=b"HEAD /v2/health/live HTTP/1.1\r\n" + tail, wanted=((200,), (405,)),
              stays_open=True, is_head=True)  # fmt: skip
    for method in (b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH"):
        data = method + b" /v2 HTTP/1.1\r\n" + tail
        yield Row(
            name=method.decode(),
            data=data,
            wanted=((405,), (200,), (400,), (404,)),
            stays_open=True,
        )
    smuggled = b"CONNECT /v2 HTTP/1.1\r\n" + _HOST + _AUTH
    yield Row(
        name="CONNECT",
        data=smuggled + b"\r\n",
        wanted=((405,), (400,), (404,), (501,)),
        stays_open=True,
    )
    inner = b"GET /v2/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = smuggled + b"Content-Length: %d\r\n\r\n" % len(inner) + inner
    yield Row(
        name="CONNECT with a body",
        data=data,
        wanted=((405,), (400,), (404,), (501,)),
        stays_open=True,
    )
    data = _GET + _HOST + _AUTH + b"Content-Length: %d\r\n\r\n" % len(inner) + inner
    yield Row(name="GET with a body", data=data, wanted=((200,), (400,)), stays_open=True)


def _sizes() -> Iterator[Row]:
    big = ("whole", "behind")
    yield Row(name="long target", data=b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
              wanted=((431,), (414,), (400,)), forms=big)  # fmt: skip
    yield Row(
        name="long field",
        data=_GET + _HOST + _AUTH + b"A: " + b"a" * 200_000 + b"\r\n\r\n",
        wanted=TOO_LARGE,
        forms=big,
    )
    yield Row(
        name="many fields",
        data=_GET + _HOST + _AUTH + b"A: b\r\n" * 30_000 + b"\r\n",
        wanted=TOO_LARGE,
        forms=big,
    )
    yield Row(
        name="unfinished field",
        data=_GET + _HOST + b"A: " + b"a" * 131_072,
        wanted=TOO_LARGE,
        forms=big,
    )
    yield Row(
        name="endless empty lines", data=b"\r\n" * 100_000, wanted=(*TOO_LARGE, ()), forms=big
    )
    yield Row(
        name="body over the limit",
        data=_POST + _HOST + _AUTH + b"Content-Length: 99999999999\r\n\r\n",
        wanted=((413,), (400,)),
    )


def _pieces(form: str, data: bytes) -> tuple[list[bytes], int]:
    """What is sent, and how many requests before it get a 200."""
    match form:
        case "bytewise":
            return [data[i : i + 1] for i in range(len(data))] + [_PROBE], 0
        case "behind":
            return [_PLAIN + data + _PROBE], 1
        case "remembered":
            return [_PLAIN, _PLAIN, data, _PROBE], 2
    return [data + _PROBE], 0


def wrong(
    port: int,
    data: bytes,
    wanted: tuple[tuple[int, ...], ...],
    *,
    form: str,
    stays_open: bool,
    is_head: bool,
) -> str | None:
    """What is not as a row says; None: nothing."""
    pieces, before = _pieces(form, data)
    heads_only = frozenset({before}) if is_head else frozenset()
    gap_s = 0.005 if form == "remembered" else 0.0
    heard = wire.exchange(port, pieces, timeout_s=5.0, heads_only=heads_only, gap_s=gap_s)
    answers = list(heard.answers[before:])
    if any(answer.status != 200 for answer in heard.answers[:before]):
        return f"the requests before it got {heard.statuses}"
    probed = bool(answers) and b'"ready"' in answers[-1].body
    statuses = tuple(answer.status for answer in (answers[:-1] if probed else answers))
    told = f"answered {statuses}{', then the probe' if probed else ''}, expected one of {wanted}"
    if not heard.closed:
        return f"{told}; then silence"
    if heard.rest:
        return f"{told}; then {heard.rest[:60]!r}"
    if statuses not in wanted:
        return told
    if not statuses:
        return None
    if statuses[-1] < 400 and not probed and b"Connection: close" not in answers[-1].head:
        return f"{told}; the request behind it was lost"
    if statuses[-1] >= 400 and probed and not stays_open:
        return f"{told}; the connection went on"
    return None


def run(context: Context) -> None:
    """Every row in every form, then the reference."""
    for row in rows():
        for form in row.forms:
            replay = {
                "form": form,
                "wanted": row.wanted,
                "stays_open": row.stays_open,
                "is_head": row.is_head,
            }
            found = wrong(context.subject.port, row.data, row.wanted, form=form,
                          stays_open=row.stays_open, is_head=row.is_head)  # fmt: skip
            context.case(f"{row.name}, {form}", found, row.data, **replay)
        if row.is_compared:
            told = differs(row.data)
            context.case(f"{row.name}, as h11 reads it", told, row.data, form="reference")


def differs(data: bytes) -> str | None:
    """How the requests that are let in differ from what h11 reads; None: they do not, or are fewer."""
    ours, theirs = _let_in(data), _read_by_h11(data)
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return f"read as {one!r:.150}, by h11 as {other!r:.150}"
    if len(ours) > len(theirs):
        return (
            f"{len(ours)} requests were let in, h11 reads {len(theirs)}: {ours[len(theirs)]!r:.150}"
        )
    return None


def _let_in(data: bytes) -> list[tuple[str, str, bytes]]:
    """Method, target and body of what reaches the routes, of a connection without a socket."""
    from serving.api.http.listener import HttpListener  # noqa: PLC0415 - stages import what they test late
    from serving.api.http.messages import Response  # noqa: PLC0415
    from tests.fakes.wire import Fed  # noqa: PLC0415

    seen: list[tuple[str, str, bytes]] = []

    class Routes:
        def handle(self, head: Any, body: bytes, connection: Any) -> Response:
            seen.append((head.method, head.path, body))
            return Response(200, b"", b"")

    listener = HttpListener(Routes(), max_body_bytes=1 << 20, idle_s=120, request_s=30)
    connection, transport = listener.protocol(), Sink()
    connection.connection_made(transport)  # type: ignore[arg-type]  # it has what is called
    fed = Fed(connection)
    for start in range(0, len(data), 65_536):
        if not transport.closed:
            fed.data_received(data[start : start + 65_536])
    return seen


class Sink:
    """A transport that drops what is written."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        """Drop it."""

    def close(self) -> None:
        """Note it."""
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing to pause."""

    resume_reading = pause_reading


def _read_by_h11(data: bytes) -> list[tuple[str, str, bytes]]:
    """Method, target and body of the requests that h11 reads whole."""
    import h11  # noqa: PLC0415 - only the campaign has it

    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(data)
    found: list[tuple[str, str, bytes]] = []
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, target, body = event.method.decode(), event.target.decode("latin-1"), b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.append((method, target, body))
                connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    break
                connection.start_next_cycle()
            else:
                break
    except h11.ProtocolError:
        pass
    return found


SPEC = SubjectSpec(token=TOKEN)


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored case again."""
    facts: Mapping[str, Any] = case.replay
    if facts["form"] == "reference":
        return differs(case.data)
    wanted = tuple(tuple(one) for one in facts["wanted"])
    return wrong(subject.port, case.data, wanted, form=facts["form"],
                 stays_open=facts["stays_open"], is_head=facts["is_head"])  # fmt: skip


STAGE = Stage(
    name="C",
    title="HTTP/1.1: framing, heads and trailers",
    half=1,
    run=run,
    is_quick=True,
    limit_s=300,
    quick_limit_s=90,
    modules={"h11": "h11"},
    spec=SPEC,
)
