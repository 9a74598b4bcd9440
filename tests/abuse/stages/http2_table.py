"""D1: HTTP/2 as the RFC has it: what must end a stream, what the connection, and what must be let pass.

Every row is what a client sends behind its preface and SETTINGS. A PING behind it tells when all was read.
A row that is to be refused is so by RST_STREAM, GOAWAY or an answer that is an error (RFC 9113, 8.1.1 lets a
server answer before it resets); one that is right must be answered and leave the connection open.
Sources: RFC 9113 sections 4 to 8, RFC 7541.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tests.abuse import h2wire as h2
from tests.abuse.cases import Case
from tests.abuse.h2wire import frame
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject

_HELLO = h2.PREFACE + h2.settings()
_ANY = frozenset(
    {h2.PROTOCOL, h2.SIZE, h2.FLOW, h2.CLOSED, h2.REFUSED, h2.CANCEL, h2.COMPRESSION, h2.CALM}
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is sent, and what must come back."""

    name: str
    data: bytes
    codes: frozenset[int] | None = None
    """The connection or a stream must end with one of these; None: nothing may be refused."""
    or_answer: bool = False
    """An answer that is an error does as well."""
    or_ignored: bool = False
    """The RFC lets a server ignore it."""
    answered: tuple[int, ...] = ()
    """Streams that must be answered once, without an error."""


def _refused(name: str, data: bytes, *codes: int, **more: Any) -> Row:
    return Row(name=name, data=_HELLO + data, codes=frozenset(codes) or _ANY, **more)


def _fine(name: str, data: bytes, *answered: int) -> Row:
    return Row(name=name, data=_HELLO + data, answered=answered)


def rows() -> Iterator[Row]:
    """All of the table."""
    for part in (
        _preface,
        _sizes,
        _streams,
        _states,
        _settings,
        _windows,
        _continuations,
        _padding,
        _heads,
        _blocks,
        _good,
    ):
        yield from part()


def _preface() -> Iterator[Row]:
    everything = frozenset({h2.PROTOCOL, h2.SIZE})
    for name, data in {
        "no preface": h2.settings() + h2.request(1),
        "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a wrong preface": h2.PREFACE[:-1] + b"x" + h2.settings(),
        "PING first": h2.PREFACE + frame(h2.PING, 0, 0, bytes(8)),
        "HEADERS first": h2.PREFACE + h2.request(1),
        "noise": bytes(range(1, 200)),
    }.items():
        yield Row(name=name, data=data, codes=everything)


def _sizes() -> Iterator[Row]:
    yield _refused("a frame of 16385", frame(h2.DATA, 0, 1, bytes(16_385)), h2.SIZE, h2.PROTOCOL)
    yield _refused("a frame of 2^24-1", frame(h2.DATA, 0, 1)[3:].rjust(9, b"\xff"), h2.SIZE)
    for size in (0, 1, 5, 7, 9, 16, 255):
        yield _refused(f"PING of {size}", frame(h2.PING, 0, 0, bytes(size)), h2.SIZE)
    for size in (0, 1, 3, 5, 8):
        yield _refused(
            f"RST_STREAM of {size}", h2.request(1)[:-14] + frame(h2.RST, 0, 1, bytes(size)), h2.SIZE
        )
        yield _refused(f"WINDOW_UPDATE of {size}", frame(h2.WINDOW, 0, 0, bytes(size)), h2.SIZE)
    for size in (0, 1, 4, 6, 10):
        yield _refused(
            f"PRIORITY of {size}", frame(h2.PRIORITY, 0, 1, bytes(size)), h2.SIZE, or_ignored=True
        )
    for size in (1, 5, 7, 13):
        yield _refused(f"SETTINGS of {size}", frame(h2.SETTINGS, 0, 0, bytes(size)), h2.SIZE)
    for size in range(1, 7):
        yield _refused(
            f"SETTINGS ACK of {size}", frame(h2.SETTINGS, h2.ACK, 0, bytes(size)), h2.SIZE
        )
    for size in (0, 3, 4):
        flags = h2.END_HEADERS | h2.PRIORITY_FLAG
        yield _refused(
            f"HEADERS with a priority of {size}",
            frame(h2.HEADERS, flags, 1, bytes(size)),
            h2.SIZE,
            h2.PROTOCOL,
        )


def _streams() -> Iterator[Row]:
    protocol = h2.PROTOCOL
    yield _refused("DATA on stream 0", frame(h2.DATA, 0, 0, b"a"), protocol)
    yield _refused("HEADERS on stream 0", frame(h2.HEADERS, 4, 0, h2.block()), protocol)
    yield _refused(
        "PRIORITY on stream 0", frame(h2.PRIORITY, 0, 0, bytes(5)), protocol, or_ignored=True
    )
    yield _refused("RST_STREAM on stream 0", frame(h2.RST, 0, 0, bytes(4)), protocol)
    yield _refused("CONTINUATION on stream 0", frame(h2.CONTINUATION, 4, 0, h2.block()), protocol)
    for stream in (1, 3, 2**31 - 1):
        yield _refused(
            f"SETTINGS on stream {stream}", frame(h2.SETTINGS, 0, stream), protocol, h2.SIZE
        )
        yield _refused(
            f"PING on stream {stream}", frame(h2.PING, 0, stream, bytes(8)), protocol, h2.SIZE
        )
        yield _refused(
            f"GOAWAY on stream {stream}",
            frame(h2.GOAWAY, 0, stream, bytes(8)),
            protocol,
            or_ignored=True,
        )
        yield _refused(
            f"PUSH_PROMISE on stream {stream}",
            frame(h2.PUSH, 4, stream, bytes(4) + h2.block()),
            protocol,
        )
    for stream in (2, 4, 100, 2**31 - 2):
        yield _refused(f"a request on stream {stream}", h2.request(stream), protocol)
    yield _refused("a smaller stream", h2.request(5) + h2.request(3), protocol, h2.CLOSED)
    yield _refused(
        "the same stream", h2.request(5) + h2.request(5), protocol, h2.CLOSED, or_ignored=True
    )


def _states() -> Iterator[Row]:
    protocol, closed = h2.PROTOCOL, h2.CLOSED
    for stream in (1, 3, 99):
        yield _refused(
            f"DATA of idle stream {stream}", frame(h2.DATA, 1, stream, b"a"), protocol, closed
        )
        yield _refused(
            f"RST_STREAM of idle stream {stream}", frame(h2.RST, 0, stream, bytes(4)), protocol
        )
        yield _refused(
            f"WINDOW_UPDATE of idle stream {stream}",
            frame(h2.WINDOW, 0, stream, b"\0\0\0\1"),
            protocol,
        )
        yield _refused(
            f"CONTINUATION of idle stream {stream}",
            frame(h2.CONTINUATION, 4, stream, b""),
            protocol,
        )
    half = h2.request(1)
    yield _refused(
        "DATA behind END_STREAM",
        half + frame(h2.DATA, 1, 1, b"a"),
        closed,
        protocol,
        or_ignored=True,
    )
    yield _refused(
        "HEADERS behind END_STREAM",
        half + frame(h2.HEADERS, 5, 1, h2.block()),
        closed,
        protocol,
        or_ignored=True,
    )
    yield _refused(
        "CONTINUATION behind END_HEADERS", half + frame(h2.CONTINUATION, 4, 1, h2.block()), protocol
    )
    start = frame(h2.HEADERS, 4, 1, h2.block())
    yield _refused(
        "DATA behind RST_STREAM",
        start + frame(h2.RST, 0, 1, bytes(4)) + frame(h2.DATA, 1, 1, b"a"),
        closed,
        protocol,
        or_ignored=True,
    )
    yield _refused(
        "trailers without END_STREAM",
        start + frame(h2.HEADERS, 4, 1, h2.block([(b"a", b"b")])),
        protocol,
    )


def _settings() -> Iterator[Row]:
    for name, values, codes in (
        ("ENABLE_PUSH 2", {"s2": 2}, (h2.PROTOCOL,)),
        ("ENABLE_PUSH 2^32-1", {"s2": 2**32 - 1}, (h2.PROTOCOL,)),
        ("INITIAL_WINDOW_SIZE 2^31", {"s4": 2**31}, (h2.FLOW,)),
        ("INITIAL_WINDOW_SIZE 2^32-1", {"s4": 2**32 - 1}, (h2.FLOW,)),
        ("MAX_FRAME_SIZE 16383", {"s5": 16_383}, (h2.PROTOCOL,)),
        ("MAX_FRAME_SIZE 0", {"s5": 0}, (h2.PROTOCOL,)),
        ("MAX_FRAME_SIZE 2^24", {"s5": 2**24}, (h2.PROTOCOL,)),
    ):
        is_push = name.startswith("ENABLE_PUSH")
        yield _refused(name, h2.settings(**values), *codes, or_ignored=is_push)
    for values in (
        {"s1": 0},
        {"s3": 0},
        {"s4": 0},
        {"s4": 2**31 - 1},
        {"s5": 2**24 - 1},
        {"s6": 0},
        {"s99": 7},
        {"s255": 2**32 - 1},
    ):
        yield _fine(f"SETTINGS {values}", h2.settings(**values))


def _windows() -> Iterator[Row]:
    zero, most = bytes(4), (2**31 - 1).to_bytes(4, "big")
    yield _refused("a window of 0 more", frame(h2.WINDOW, 0, 0, zero), h2.PROTOCOL, or_ignored=True)
    yield _refused("the window over 2^31-1", frame(h2.WINDOW, 0, 0, most) * 2, h2.FLOW)
    start = frame(h2.HEADERS, 4, 1, h2.block())
    yield _refused(
        "a stream's window of 0 more",
        start + frame(h2.WINDOW, 0, 1, zero),
        h2.PROTOCOL,
        or_ignored=True,
    )
    yield _refused(
        "a stream's window over 2^31-1", start + frame(h2.WINDOW, 0, 1, most) * 2, h2.FLOW
    )
    yield _refused("a window that is made too large by SETTINGS",
                   h2.settings(s4=1) + start + frame(h2.WINDOW, 0, 1, most[:3] + b"\xfe") +
                   h2.settings(s4=2**31 - 1), h2.FLOW)  # fmt: skip


def _continuations() -> Iterator[Row]:
    block, protocol = h2.block(), h2.PROTOCOL
    open_ = frame(h2.HEADERS, h2.END_STREAM, 1, block[:5])
    for name, other in {
        "PING": frame(h2.PING, 0, 0, bytes(8)),
        "SETTINGS": h2.settings(),
        "DATA": frame(h2.DATA, 0, 1, b"a"),
        "HEADERS": frame(h2.HEADERS, 5, 3, block),
        "WINDOW_UPDATE": frame(h2.WINDOW, 0, 0, b"\0\0\0\1"),
        "PRIORITY": frame(h2.PRIORITY, 0, 1, bytes(5)),
        "an unknown frame": frame(77, 0, 0, b"a"),
        "another stream's CONTINUATION": frame(h2.CONTINUATION, 4, 3, block[5:]),
        "RST_STREAM": frame(h2.RST, 0, 1, bytes(4)),
    }.items():
        yield _refused(f"{name} within a head", open_ + other, protocol)
    endless = frame(h2.CONTINUATION, 0, 1, bytes(16_000))
    yield _refused("a head without an end", open_ + endless * 10)
    yield _refused(
        "a head of empty pieces", open_ + frame(h2.CONTINUATION, 0, 1) * 10_100, h2.CALM, protocol
    )


def _padding() -> Iterator[Row]:
    start = frame(h2.HEADERS, 4, 1, h2.block())
    for padding, size in ((1, 0), (5, 4), (255, 10), (255, 254), (0, -1)):
        payload = bytes([padding]) + bytes(size) if size >= 0 else b""
        yield _refused(
            f"DATA of {size} with padding {padding}",
            start + frame(h2.DATA, h2.PADDED, 1, payload),
            h2.PROTOCOL,
            h2.SIZE,
        )
        yield _refused(
            f"HEADERS of {size} with padding {padding}",
            frame(h2.HEADERS, h2.PADDED | 4, 1, payload),
            h2.PROTOCOL,
            h2.SIZE,
        )


def _heads() -> Iterator[Row]:
    def call(
        *more: tuple[bytes, bytes], without: bytes = b"", first: bool = False
    ) -> list[tuple[bytes, bytes]]:
        pairs = [pair for pair in h2.CALL if pair[0] != without]
        return [*more, *pairs] if first else [*pairs, *more]

    heads: dict[str, list[tuple[bytes, bytes]]] = {
        f"without {name.decode()}": call(without=name)
        for name in (b":method", b":scheme", b":path")
    }
    heads |= {
        f"{pair[0].decode()} twice": call(pair) for pair in h2.CALL if pair[0].startswith(b":")
    }
    heads |= {
        "a pseudo field behind others": [*h2.CALL[1:], h2.CALL[0]],
        "an unknown pseudo field": call((b":secret", b"a"), first=True),
        "a status": call((b":status", b"200"), first=True),
        "large letters": call((b"X-A", b"b")),
        "Connection": call((b"connection", b"keep-alive")),
        "Transfer-Encoding": call((b"transfer-encoding", b"chunked")),
        "Upgrade": call((b"upgrade", b"h2c")),
        "Keep-Alive": call((b"keep-alive", b"5")),
        "Proxy-Connection": call((b"proxy-connection", b"close")),
        "TE gzip": call((b"te", b"gzip"), without=b"te"),
        "an empty path": call((b":path", b""), without=b":path", first=True),
        "an empty name": call((b"", b"a")),
        "NUL in a value": call((b"a", b"b\0c")),
        "CR LF in a value": call((b"a", b"b\r\nc: d")),
        "blank at the end of a value": call((b"a", b"b ")),
        "colon in a name": call((b"a:b", b"c")),
        "blank in a name": call((b"a b", b"c")),
        "NUL in a name": call((b"a\0", b"c")),
        "a length that is none": call((b"content-length", b"x")),
        "a length too small": call((b"content-length", b"1")),
        "a length too large": call((b"content-length", b"100")),
        "a list of over 16 KiB": call(*((b"a%d" % i, b"b" * 100) for i in range(300))),
    }
    for name, pairs in heads.items():
        yield _refused(name, h2.request(1, pairs), or_answer=True)


def _blocks() -> Iterator[Row]:
    for name, block in {
        "index 0": b"\x80",
        "an index beyond the table": b"\xff\x80\x01",
        "an endless index": b"\xff" + b"\xff" * 40,
        "a name's index beyond the table": b"\x7f\xff\xff\xff\x0f\x01a",
        "a length beyond the block": b"\x00\x7f\xff\x01a",
        "bad Huffman": b"\x00\x81\xff\x00",
        "Huffman with end of string": b"\x00\x84\xff\xff\xff\xff\x00",
        "a table size over the limit": b"\x3f\xe1\xff\xff\x0f",
        "a table size at the end": h2.block() + b"\x20",
        "a cut literal": b"\x40\x0a",
        "an endless length": b"\x00\x7f" + b"\xff" * 60 + b"\x01",
    }.items():
        yield _refused(
            name, frame(h2.HEADERS, 5, 1, block), h2.COMPRESSION, h2.PROTOCOL, or_answer=True
        )


def _good() -> Iterator[Row]:
    block = h2.block()
    yield _fine("a call", h2.request(1), 1)
    yield _fine("three calls", h2.request(1) + h2.request(3) + h2.request(9), 1, 3, 9)
    pieces = b"".join(frame(h2.CONTINUATION, 0, 1, block[i : i + 1]) for i in range(1, len(block)))
    head = frame(h2.HEADERS, 0, 1, block[:1]) + pieces + frame(h2.CONTINUATION, 4, 1)
    yield _fine("a head byte by byte", head + frame(h2.DATA, 1, 1, h2.EMPTY_MESSAGE), 1)
    body = b"".join(frame(h2.DATA, 0, 1, h2.EMPTY_MESSAGE[i : i + 1]) for i in range(5))
    yield _fine(
        "a body byte by byte", frame(h2.HEADERS, 4, 1, block) + body + frame(h2.DATA, 1, 1), 1
    )
    padded = frame(h2.HEADERS, 4 | h2.PADDED, 1, b"\x05" + block + bytes(5))
    yield _fine(
        "padding",
        padded + frame(h2.DATA, 1 | h2.PADDED, 1, b"\xff" + h2.EMPTY_MESSAGE + bytes(255)),
        1,
    )
    yield _fine(
        "a priority",
        frame(h2.HEADERS, 4 | h2.PRIORITY_FLAG, 1, b"\0\0\0\0\x10" + block)
        + frame(h2.DATA, 1, 1, h2.EMPTY_MESSAGE),
        1,
    )
    yield _fine(
        "unknown frames", frame(77, 255, 0, b"a") + h2.request(1) + frame(200, 0, 1, bytes(100)), 1
    )
    yield _fine("unknown flags", frame(h2.PING, 0xFE, 0, bytes(8)) + h2.request(1), 1)
    yield _fine("a reserved bit", frame(h2.WINDOW, 0, 1 << 31, b"\x80\0\0\1") + h2.request(1), 1)
    yield _fine(
        "trailers",
        frame(h2.HEADERS, 4, 1, block)
        + frame(h2.DATA, 0, 1, h2.EMPTY_MESSAGE)
        + frame(h2.HEADERS, 5, 1, h2.block([(b"a", b"b")])),
        1,
    )
    yield _fine(
        "resets",
        b"".join(
            frame(h2.HEADERS, 4, i, block) + frame(h2.RST, 0, i, b"\0\0\0\x08")
            for i in range(1, 41, 2)
        )
        + h2.request(99),
        99,
    )
    yield _fine(
        "a window and more of it",
        h2.settings(s4=0) + h2.request(1) + frame(h2.WINDOW, 0, 1, b"\0\0\xff\xff"),
        1,
    )
    yield _fine("PINGs", frame(h2.PING, 0, 0, bytes(8)) * 20 + h2.request(1), 1)


def wrong(port: int, data: bytes, row: Row, pieces: int) -> str | None:
    """What is not as a row says; None: nothing."""
    with h2.Client(port) as client:
        size = max(1, len(data) // pieces)
        for start in range(0, len(data), size):
            if not client.send(data[start : start + size]):
                break
        heard = client.settle()
        for _ in range(10):
            if all(stream in heard.ended for stream in row.answered) or heard.closed:
                break
            client.read(0.1)
    told = f"GOAWAY {heard.goaway}, resets {heard.resets}, answers {heard.fields}, closed {heard.closed}"
    if any(count > 1 for count in heard.ended.values()):
        return f"answered twice: {told}"
    if not heard.ponged and not heard.closed and heard.goaway is None:
        return f"silent: {told}"
    errors = [
        f
        for f in heard.fields.values()
        if f.get(b"grpc-status", b"0") != b"0" or f.get(b":status") != b"200"
    ]
    if row.codes is None:
        lacking = [stream for stream in row.answered if heard.ended.get(stream) != 1]
        if heard.codes() - {h2.NO_ERROR} or lacking or errors or heard.closed:
            return f"should be let pass: {told}"
        return None
    if heard.codes() & row.codes or (row.or_answer and errors):
        return None
    if row.or_ignored and heard.ponged and not heard.codes():
        return None
    return f"should be refused with one of {sorted(row.codes)}: {told}"


def run(context: Context) -> None:
    """Every row in one piece, and cut into small ones."""
    for row in rows():
        for pieces in (1, 7):
            found = wrong(context.subject.grpc_port, row.data, row, pieces)
            facts = {**dataclasses.asdict(row), "data": None, "pieces": pieces}
            facts["codes"] = None if row.codes is None else sorted(row.codes)
            context.case(f"{row.name}, in {pieces}", found, row.data, row=facts)


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored case again."""
    facts = dict(case.replay["row"])
    pieces = facts.pop("pieces")
    facts |= {"data": case.data, "answered": tuple(facts["answered"])}
    facts["codes"] = None if facts["codes"] is None else frozenset(facts["codes"])
    return wrong(subject.grpc_port, case.data, Row(**facts), pieces)


STAGE = Stage(
    name="D1",
    title="HTTP/2: conformance",
    half=1,
    run=run,
    is_quick=True,
    quick_limit_s=90,
    modules={"hpack": "hpack"},
)
