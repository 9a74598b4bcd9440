"""G: requests that are to make the server hold, copy or compute more than was sent.

Every attack is made several times; the server must refuse it (400, 401, 413, 429, 431, 503), answer it, or
end the connection, within seconds, and hold less than 1.5 GiB meanwhile.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Sequence

from tests.abuse import h2wire as h2
from tests.abuse import wire
from tests.abuse.cases import Case
from tests.abuse.stage import Allowance, Context, Stage
from tests.abuse.stages import readers
from tests.abuse.subject import Subject

MIB = 1 << 20
INFER = "/v2/models/echo/infer"
_HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {length}\r\n\r\n"
_CHUNKED = (
    b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
)
ANSWERED_S = 20.0
_FAIR = {200, 400, 401, 404, 408, 413, 415, 429, 431, 503, 504}


def post(body: bytes, path: str = INFER, **fields: object) -> bytes:
    """A whole request; fields by their names with underlines."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return _HEAD.format(path=path, fields=lines, length=len(body)).encode() + body


def packed(body: bytes, path: str = INFER, **fields: object) -> bytes:
    """The same, compressed as far as it goes."""
    return post(gzip.compress(body, 9, mtime=0), path, Content_Encoding="gzip", **fields)


def tensor(
    shape: Sequence[int], data: str = "[]", datatype: str = "UINT8", **more: object
) -> bytes:
    """A body of one tensor in JSON."""
    sizes = json.dumps(list(shape))
    end = json.dumps(more)[1:]
    text = f'{{"inputs":[{{"name":"data","shape":{sizes},"datatype":"{datatype}","data":{data}}}]'
    return (text + ("," + end if more else "}")).encode()


def bombs() -> dict[str, bytes]:
    """Whole requests that are small and mean much."""
    items = 200_000
    binary = tensor([MIB, 1], "[1]").replace(
        b',"data":[1]', b',"parameters":{"binary_data_size":%d}' % MIB
    )
    texts = tensor([300_000], "[]", "BYTES").replace(
        b',"data":[]', b',"parameters":{"binary_data_size":1200000}'
    )
    return {
        "gzip of 60 MiB of blanks": packed(b" " * (60 * MIB)),
        "gzip of 1 GiB": post(_gzip_of_zeros(1 << 30), Content_Encoding="gzip"),
        "deflate of 200 MiB": post(zlib.compress(bytes(200 * MIB), 9), Content_Encoding="deflate"),
        "items of nothing": post(tensor([2**40 - 1, 0])),
        "a shape that overflows": post(tensor([0, 2**39, 2**39])),
        "a shape of 2^63": post(tensor([2**63, 1], "[1]")),
        "many items as JSON": packed(tensor([items, 1], "[" + "1," * (items - 1) + "1]")),
        "many items, binary": post(
            binary + bytes(MIB), Inference_Header_Content_Length=len(binary)
        ),
        "many texts, binary": post(
            texts + bytes(1_200_000), Inference_Header_Content_Length=len(texts)
        ),
        "uneven numbers, TFS": packed(
            b'{"instances":[' + b"1," * 500_000 + b'"x"]}', "/v1/models/echo:predict"
        ),
        "empty rows, TFS": packed(
            b'{"instances":[' + b"[]," * 500_000 + b"[]]}", "/v1/models/echo:predict"
        ),
        "examples, TFS": packed(
            b'{"examples":[' + b'{"x":1},' * 100_000 + b'{"x":1}]}', "/v1/models/echo:regress"
        ),
        "a long output name": packed(
            tensor([1, 1], "[1]")[:-1] + b',"outputs":[{"name":"' + b"ab c" * 250_000 + b'"}]}'
        ),
        "many inputs": packed(
            b'{"inputs":['
            + tensor([1, 1], "[1]")[11:-2]
            + (b"," + tensor([1, 1], "[1]")[11:-2]) * 20_000
            + b"]}"
        ),
        "deep JSON": post(b'{"inputs":' + b"[" * 200_000),
        "many empty objects": packed(b'{"inputs":[' + b"{}," * 500_000 + b"{}]}"),
        "a name of 1 MB": post(b"{}", "/v2/models/" + "a" * 60_000 + "/infer"),
        "an output that is a list": post(tensor([1, 1], "[1]")[:-1] + b',"outputs":[{"name":[]}]}'),
    }


def _gzip_of_zeros(size: int) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [compressor.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join(pieces) + compressor.flush()


_PATHS = {"oip": INFER, "tfs_rest": "/v1/models/echo:predict"}


def costly(sizes: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Documents that were found to cost most, as long as a body may be, compressed."""
    for size in sizes:
        for reader, what, data in readers.bombs(size):
            if reader in _PATHS:
                document = data.replace(b'"x"', b'"data"').replace(b'"FP32"', b'"UINT8"')
                yield f"{reader}, {what}, {size >> 20} MiB", packed(document, _PATHS[reader])


def _calls(context: Context) -> None:
    """The same over gRPC, by a client that keeps to the windows."""
    import grpc  # noqa: PLC0415 - only the campaign has it

    with grpc.insecure_channel(
        f"127.0.0.1:{context.subject.grpc_port}", options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for size in (MIB,) if context.is_quick else (MIB, 8 * MIB, 60 * MIB):
            for reader, what, data in readers.bombs(size):
                if reader != "oip_grpc":
                    continue
                told = None
                try:
                    infer(b"\x0a\x04echo" + data, timeout=ANSWERED_S)
                except grpc.RpcError as error:
                    code = error.code().name
                    told = (
                        f"ended with {code}"
                        if code in {"UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED"}
                        else None
                    )
                context.case(f"gRPC, {what}, {size >> 20} MiB", told)


def wrong(port: int, data: bytes) -> str | None:
    """What is not as promised when a bomb is sent; None: nothing."""
    began_s = time.monotonic()
    try:
        heard = wire.exchange(
            port, [data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)], timeout_s=ANSWERED_S
        )
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - began_s
    if len(heard.answers) != 1:
        return f"{len(heard.answers)} answers in {took_s:.1f} s, expected one"
    if heard.statuses[0] not in _FAIR:
        return f"answered {heard.statuses[0]}: {heard.answers[0].body[:120]!r}"
    return None


def run(context: Context) -> None:
    """Bombs one by one, then what many connections hold together."""
    for name, data in bombs().items():
        for turn in range(context.size(3, 1)):
            _bomb(context, f"{name}, turn {turn}", data)
    for name, data in costly((MIB,) if context.is_quick else (MIB, 8 * MIB, 60 * MIB)):
        _bomb(context, name, data)
    _calls(context)
    held: dict[str, Callable[[Context], str | None]] = {
        "half bodies": _half_bodies,
        "half chunked bodies": _small_chunks,
        "open trailers": _open_trailers,
        "half bodies over HTTP/2": _http2_bodies,
        "answers that nobody reads": _unread,
    }
    for name, attack in held.items():
        for turn in range(context.size(3, 1)):
            try:
                told = attack(context)
            except OSError as error:
                told = f"{type(error).__name__}: {error}"
            context.case(f"{name}, turn {turn}", told)
            _breathe(context)


def _bomb(context: Context, name: str, data: bytes) -> None:
    context.case(name, wrong(context.subject.port, data), data, kind="bomb")
    if not context.subject.is_alive:
        _breathe(context)


def _breathe(context: Context) -> None:
    """Let the server find that its clients are gone; start it again where that killed it."""
    if context.subject.ready_within(10) is None and not context.subject.is_alive:
        context.case("the gateway", "it was killed")
        context.subject.restart()
    time.sleep(0.5)


@contextlib.contextmanager
def _connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as owns:
        socks = [
            owns.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            for _ in range(count)
        ]
        for sock in socks:
            sock.settimeout(5)
        yield socks


def _sent(socks: Sequence[socket.socket], data: bytes, times: int) -> int:
    """Send the same on all, again and again; how many are still taken from."""
    live = list(socks)
    for _ in range(times):
        for sock in list(live):
            try:
                sock.sendall(data)
            except OSError:
                live.remove(sock)
    return len(live)


def _held(context: Context, live: int) -> str | None:
    """Whether the server holds less than it may while so many connections wait."""
    memory_mib = context.subject.memory_mib()
    return f"{memory_mib:.0f} MiB are held for {live} connections" if memory_mib > 1536 else None


def _half_bodies(context: Context) -> str | None:
    count = context.size(100, 20)
    with _connections(context.subject.port, count) as socks:
        _sent(
            socks,
            post(b"")[:-4].replace(b"Content-Length: 0", b"Content-Length: 62914560") + b"\r\n\r\n",
            1,
        )
        return _held(context, _sent(socks, bytes(MIB), 59))


def _small_chunks(context: Context) -> str | None:
    with _connections(context.subject.port, 20) as socks:
        _sent(socks, _CHUNKED, 1)
        return _held(context, _sent(socks, b"2\r\nab\r\n" * 20_000, context.size(60, 10)))


def _open_trailers(context: Context) -> str | None:
    with _connections(context.subject.port, 20) as socks:
        _sent(socks, _CHUNKED + b"0\r\nA: ", 1)
        live = _sent(
            socks, b"a" * 65_536, 100
        )  # more than the system takes for a server that reads no more
        return (
            f"{live} of 20 connections send trailers of megabytes" if live else _held(context, live)
        )


def _http2_bodies(context: Context) -> str | None:
    path = tuple((n, v.replace(b"ServerLive", b"ModelInfer")) for n, v in h2.CALL)
    block, piece = h2.block(path), h2.frame(h2.DATA, 0, 0, bytes(16_000))
    with _connections(context.subject.grpc_port, context.size(20, 4)) as socks:
        _sent(socks, h2.PREFACE + h2.settings(), 1)
        for stream in range(1, 2 * context.size(500, 100), 2):
            body = piece[:5] + stream.to_bytes(4, "big") + piece[9:]
            first = h2.frame(h2.DATA, 0, stream, (240_000).to_bytes(5, "big"))
            _sent(socks, h2.frame(h2.HEADERS, 4, stream, block) + first + body * 15, 1)
        return _held(context, len(socks))


def _unread(context: Context) -> str | None:
    size = 8 * MIB
    head = (
        tensor([1, size], "[1]").replace(
            b',"data":[1]', b',"parameters":{"binary_data_size":%d}' % size
        )[:-1]
        + b',"parameters":{"binary_data_output":true}}'
    )
    request = post(head + bytes(size), Inference_Header_Content_Length=len(head))
    with _connections(context.subject.port, context.size(30, 8)) as socks:
        return _held(context, _sent(socks, request, context.size(8, 3)))


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored bomb again."""
    return wrong(subject.port, case.data)


STAGE = Stage(
    name="G",
    title="memory: bombs, half bodies, unread answers",
    half=2,
    run=run,
    is_quick=True,
    limit_s=420,
    quick_limit_s=90,
    modules={"hpack": "hpack", "grpc": "grpcio", "hypothesis": "hypothesis"},
    allowance=Allowance(peak_mib=1536, is_overload=True),
)
