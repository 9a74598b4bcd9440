"""What reads bytes of strangers, each as a function of those bytes: for laws, for fuzzers, and for stored cases.

A target is one reader of them, or several, each of which alone would read a request; it returns, or raises what
`ALLOWED` says; anything else has escaped. Good bytes to begin with are in
`seeds`. Nothing here needs a socket or a process.
"""

from __future__ import annotations

import functools
import gzip
import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from serving import wire
from serving.api.clipper import queries
from serving.api.grpc import messages
from serving.api.grpc.codec import GrpcCodec
from serving.api.http.listener import HttpListener
from serving.api.http.messages import Response
from serving.api.http2 import frames
from serving.api.http2.fields import FieldReader
from serving.api.http2.frames import Http2Error
from serving.api.http2.session import Session
from serving.api.open_inference.request_decoder import RequestDecoder
from serving.api.parsing import varints
from serving.api.tensorflow import grpc_codec as grpc_tfs
from serving.api.tensorflow import rest_codec
from serving.api.tensorflow.rest_codec import Method
from serving.api.transport import compression
from serving.api.triton import extensions
from serving.errors import ServingError
from serving.replica.collation import Collator
from serving.values import Signature, TensorSpec
from tests.abuse import h2wire
from tests.fakes.http2_client import Turned
from tests.fakes.wire import Fed

ALLOWED = (ServingError, Http2Error)
COST_S = 0.020
COST_S_PER_BYTE = 0.3e-6
REFERENCE_S = 0.002
"""What `_reference_s` takes on the machine that the costs above are for."""
MEMORY_FACTOR = 6
MEMORY_BYTES = 32 << 20
"""What a reader may take beside: a document of the longest that the gateway parses itself, as objects."""
_OUTPUT = (TensorSpec(name="y", datatype="FP32", shape=(-1, 2)),)


def signature(*inputs: tuple[str, str, tuple[int, ...]]) -> Signature:
    """A model's, with these inputs."""
    return Signature(
        inputs=tuple(TensorSpec(name=n, datatype=d, shape=s) for n, d, s in inputs), outputs=_OUTPUT
    )


SIGNATURES = (
    signature(("x", "FP32", (-1, 2))),
    signature(("x", "BYTES", (-1,))),
    signature(("x", "FP16", ())),
    signature(("x", "INT8", (-1,)), ("z", "BOOL", (-1,))),
    signature(("x", "UINT64", (-1, -1))),
)


def _signature_of(data: bytes) -> Signature:
    return SIGNATURES[len(data) % len(SIGNATURES)]


def oip(data: bytes) -> None:
    """Open Inference, JSON."""
    RequestDecoder("m", SIGNATURES[0]).query(data, None)


def oip_by_size(data: bytes) -> None:
    """The same of another signature."""
    RequestDecoder("m", _signature_of(data)).query(data, None)


def oip_binary(data: bytes) -> None:
    """Open Inference with binary tensors: the first two bytes are the length of the header."""
    header = int.from_bytes(data[:2], "little")
    RequestDecoder("m", _signature_of(data)).query(data[2:], header)


def oip_grpc(data: bytes) -> None:
    """Open Inference over gRPC."""
    GrpcCodec("m", "1", _signature_of(data)).query(messages.parse(messages.ModelInferRequest, data))


def tfs_rest(method: Method, data: bytes) -> None:
    """TensorFlow Serving, JSON."""
    codec = rest_codec.TensorFlowRestCodec("m", "1", _signature_of(data))
    if method == "predict" and codec.large_query(data) is not None:
        return
    codec.query(rest_codec.request(data), method)


def tfs_grpc(method: Method, data: bytes) -> None:
    """TensorFlow Serving over gRPC."""
    request = grpc_tfs.decode_request(data, method)
    grpc_tfs.TensorFlowGrpcCodec("m", "1", _signature_of(data)).query(request, method, None)


def tfs_spec(data: bytes) -> None:
    """What names a model in its other methods."""
    grpc_tfs.decode_request(data, None)


def clippers(data: bytes) -> None:
    """Clipper, predict; the length says of which kind of input."""
    for one in queries.prediction(queries.predict_fields(data), _kind_of(data)).inputs:
        one.query(_signature_of(data))


def clipper_updates(data: bytes) -> None:
    """Clipper, update."""
    queries.update(data, _kind_of(data))


def _kind_of(data: bytes) -> str:
    return ("integers", "floats", "doubles", "strings", "bytes")[len(data) % 5]


def triton_load(data: bytes) -> None:
    """The body of Triton's load."""
    extensions.load_config(data)


def unpacked(encoding: str, data: bytes) -> None:
    """A compressed body."""
    compression.decompress(encoding, data, 1 << 20)


def http(data: bytes) -> None:
    """The listener of the query port; the first byte says in what pieces."""
    listener = HttpListener(_Routes(), max_body_bytes=1 << 16, idle_s=10, request_s=10)
    connection, transport = listener.protocol(), _Transport()
    fed = Fed(connection)
    connection.connection_made(transport)  # type: ignore[arg-type]  # it has what is called
    size = 1 + (data[0] if data else 0) * 64
    for start in range(1, len(data), size):
        if not transport.closed:
            fed.data_received(data[start : start + size])
    connection.connection_lost(None)


def http2(data: bytes) -> None:
    """A connection of HTTP/2, behind its preface."""
    session = Turned(Session(max_body_bytes=1 << 16))
    session.receive(frames.PREFACE)
    size = 1 + (data[0] if data else 0) * 64
    for start in range(1, len(data), size):
        for event in session.receive(data[start : start + size]):
            stream = getattr(event, "stream", 0)
            session.respond_short(stream, b"\x88")
        session.take()


def hpack(data: bytes) -> None:
    """Header blocks, each behind a byte with its length."""
    reader = FieldReader()
    while data:
        size = data[0]
        reader.read(data[1 : 1 + size])
        data = data[1 + size :]


def varint(data: bytes) -> None:
    """Packed numbers."""
    varints.unpack(data)


def replica_wire(data: bytes) -> None:
    """Messages of a replica."""
    parser = wire.MessageParser()
    for kind, body in parser.feed(data):
        read: Callable[[memoryview], object] | None = {
            wire.MessageType.HELLO: wire.parse_hello,
            wire.MessageType.LOADED: wire.parse_loaded,
            wire.MessageType.UNLOADED: wire.parse_unloaded,
            wire.MessageType.RESULT: wire.parse_result,
            wire.MessageType.INFER: wire.parse_infer,
        }.get(kind)
        if read is not None:
            read(body)


def collation(data: bytes) -> None:
    """Frames of requests, as a replica puts them together."""
    reader = Collator(_signature_of(data))
    entries = [(len(data) % 2, 0, 0, memoryview(data)), (0, 0, 0, memoryview(data[1:]))]
    groups, _ = reader.groups(entries)
    for group in groups:
        group.inputs()


class _Routes:
    def handle(self, head: Any, body: bytes, connection: Any) -> Response:
        return Response(200, b"", b"ok")


class _Transport:
    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


Target = Callable[[bytes], None]
_METHODS: tuple[Method, ...] = ("predict", "classify", "regress")
READERS: dict[str, tuple[Target, ...]] = {
    "oip": (oip, oip_by_size),
    "oip_binary": (oip_binary,),
    "oip_grpc": (oip_grpc,),
    "tfs_rest": tuple(functools.partial(tfs_rest, method) for method in _METHODS),
    "tfs_grpc": (*(functools.partial(tfs_grpc, method) for method in _METHODS), tfs_spec),
    "clipper": (clippers,),
    "clipper_update": (clipper_updates,),
    "triton_load": (triton_load,),
    "gunzip": tuple(functools.partial(unpacked, encoding) for encoding in ("gzip", "deflate")),
    "collation": (collation,),
}
"""Of whole bodies; each alone reads one request."""
STREAMS: dict[str, tuple[Target, ...]] = {
    "http": (http,),
    "http2": (http2,),
    "hpack": (hpack,),
    "varint": (varint,),
    "replica_wire": (replica_wire,),
}
TARGETS = READERS | STREAMS


def escaped(target: str, data: bytes) -> str | None:
    """What escapes a target; None: nothing."""
    return next((told for read in TARGETS[target] if (told := _escaped(read, data))), None)


def _escaped(read: Target, data: bytes) -> str | None:
    try:
        read(data)
    except ALLOWED:
        return None
    except RecursionError as error:
        return f"RecursionError: {error}"
    except Exception as error:  # that is what is looked for
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def cost(target: str, data: bytes) -> float:
    """CPU seconds of one request on a machine without neighbours: the least of some tries, at the moment's speed."""
    return max(_cost(read, data) for read in TARGETS[target])


def _cost(read: Target, data: bytes) -> float:
    least_s = float("inf")
    for _ in range(3):
        began_s = time.thread_time()
        _escaped(read, data)
        took_s = time.thread_time() - began_s
        least_s = min(least_s, took_s / max(1.0, _reference_s() / REFERENCE_S))
        if least_s <= allowed_s(data):
            break
    return least_s


def _reference_s() -> float:
    """CPU seconds of a fixed work, which tell the speed of the moment."""
    began_s = time.thread_time()
    for number in range(20_000):
        str(number)
    return time.thread_time() - began_s


def allowed_s(data: bytes) -> float:
    """The cost that a body may have."""
    return COST_S + COST_S_PER_BYTE * len(data)


def memory(target: str, data: bytes) -> int:
    """Most bytes that reading takes at a time."""
    tracemalloc.start()
    try:
        escaped(target, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _frame(datatype: int, shape: tuple[int, ...], data: bytes, name: bytes = b"x") -> bytes:
    tensor = struct.pack("<BBHQ", datatype, len(shape), len(name), len(data))
    tensor += struct.pack(f"<{len(shape)}q", *shape) + name
    descriptor = struct.pack("<H", 1) + tensor
    return struct.pack("<I", len(descriptor)) + descriptor + data


def seeds(target: str) -> Iterator[bytes]:  # noqa: PLR0912 - a table
    """Good bytes for a target."""
    tensor: dict[str, Any] = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    document = json.dumps(
        {"inputs": [tensor], "parameters": {"timeout": 5}, "outputs": [{"name": "y"}]}
    ).encode()
    named = {k: v for k, v in tensor.items() if k != "data"} | {
        "parameters": {"binary_data_size": 8}
    }
    header = json.dumps({"inputs": [named]}).encode()
    match target:
        case "oip":
            yield document
        case "oip_binary":
            yield len(header).to_bytes(2, "little") + header + bytes(8)
        case "oip_grpc":
            request = messages.ModelInferRequest(model_name="m")
            request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
            request.raw_input_contents.append(bytes(8))
            yield request.SerializeToString()
        case "tfs_rest":
            yield b'{"instances":[[1,2]]}'
            yield b'{"inputs":{"x":[[1,2]]}}'
            yield b'{"examples":[{"x":[1,2]}]}'
        case "tfs_grpc":
            yield b"\x0a\x03\x0a\x01m\x12\x13\x0a\x01x\x12\x0e\x08\x01\x12\x08\x12\x02\x08\x01\x12\x02\x08\x02\x2a\x00"
        case "clipper" | "clipper_update":
            yield b'{"input":[1,2],"uid":1}'
            yield b'{"input_batch":[[1],[2]]}'
            yield b'{"input":[1],"uid":1,"label":1}'
        case "triton_load":
            yield b'{"parameters":{"config":"{\\"max_batch_size\\":4}"}}'
        case "gunzip":
            yield gzip.compress(document, mtime=0)
        case "collation":
            yield _frame(10, (1, 2), bytes(8))
        case "http":
            yield b"\xffPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"
            head = b"\xffPOST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            yield head + b"2;a=b\r\nab\r\n0\r\nA: b\r\n\r\n"
        case "http2":
            yield b"\xff" + frames.settings({}) + h2wire.request(1)
        case "hpack":
            block = h2wire.block()
            yield bytes((len(block),)) + block
        case "varint":
            yield b"\x01\x80\x01\xff\xff\x03"
        case "replica_wire":
            body = json.dumps({"wire": 1, "pid": 1, "features": [], "monotonic_ns": 1}).encode()
            yield b"LW" + struct.pack("<BBI", 1, 1, len(body)) + body
