"""Routes of the Open Inference Protocol v2 on the inference port."""

from __future__ import annotations

import functools
import re
import time

from serving import __version__
from serving.api.http.exchange import Exchange, ResponseWriter
from serving.api.http.messages import (
    JSON_TYPE,
    RequestHead,
    Response,
    ending,
    error_response,
    json_response,
)
from serving.api.open_inference import codec as open_inference_codec
from serving.api.open_inference.response_encoder import (
    LONG_BYTES,
    OutputRequest,
    ResponseEncoder,
    ResponseTemplate,
)
from serving.api.parsing.bounded_json import MAX_JSON_BYTES
from serving.api.transport.incremental import IncrementalJob, IncrementalRunner
from serving.api.triton import extensions, unsupported
from serving.api.triton.routes import TritonRoutes
from serving.engine.engine import DeploymentHandle, Engine
from serving.errors import InvalidRequest, ServingError
from serving.response_handler import BatchInfo, HasBatch, RequestHandle, fail_handler

_CODEC = "open inference"
_MODEL = re.compile(
    r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?(?:/(?P<verb>ready|infer))?/?"
)
_BINARY_FIELDS = (
    b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
)


class _ParsedPath:
    __slots__ = ("kind", "model", "name", "version")

    def __init__(self, kind: str, name: str = "", version: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.version = version
        self.model = (name, version)


class _RestResponseHandler:
    __slots__ = (
        "_answers",
        "_connection",
        "_slices",
        "_slow",
        "_started_s",
        "_target",
        "_wanted",
        "ticket",
    )

    def __init__(
        self,
        connection: ResponseWriter,
        responses: ResponseEncoder,
        wanted: OutputRequest,
        started_s: float,
        target: DeploymentHandle,
        slices: IncrementalRunner,
    ) -> None:
        self._connection = connection
        self._answers = responses
        self._wanted = wanted
        self._started_s = started_s
        self._target = target
        self._slices = slices
        self._slow: tuple[IncrementalJob, BatchInfo | None] | None = None
        self.ticket: RequestHandle

    def on_result(self, frame: memoryview) -> None:
        if len(frame) > LONG_BYTES and self._answers.is_long(frame, self._wanted):
            pieces, rest = self._answers.encode_in_pieces(memoryview(bytes(frame)), self._wanted)
            job = self._slices.begin(pieces, functools.partial(self._on_written, rest))
            self._slow = job, self.batch()
            return
        form, data = self._answers.encode_response(frame, self._wanted)
        if form.meaning is None:
            form.meaning = _response_head(form, len(data))
        self._connection.respond_with(form.meaning, data)
        self._target.count_response(200, time.monotonic() - self._started_s)

    def on_error(self, error: ServingError) -> None:
        self._connection.respond(error_response(error))
        self._target.count_response(error.status, time.monotonic() - self._started_s)

    def _on_written(self, data: bytes | None, outcome: list[bytes] | Exception) -> None:
        if isinstance(outcome, Exception):
            fail_handler(self, outcome)
            return
        header, rest = b"".join(outcome), data or b""
        form = ResponseTemplate(header, None if data is None else len(header))
        self._connection.respond_with(_response_head(form, len(rest)), rest)
        self._target.count_response(200, time.monotonic() - self._started_s)

    def cancel(self) -> None:
        if self._slow is not None:
            self._slow[0].cancel()
        self.ticket.cancel()
        self._target.count_response(499, time.monotonic() - self._started_s)

    def batch(self) -> BatchInfo | None:
        if self._slow is not None:
            return self._slow[1]
        return self.ticket.batch() if isinstance(self.ticket, HasBatch) else None


class OpenInferenceRoutes:
    """Routes of the Open Inference Protocol v2."""

    def __init__(
        self,
        engine: Engine,
        triton: TritonRoutes | None = None,
        max_json_bytes: int = MAX_JSON_BYTES,
    ) -> None:
        self._engine = engine
        self._max_json_bytes = max_json_bytes
        self._resolved = engine.resolve_cache
        self._slices = IncrementalRunner()
        self._triton = triton
        self._extensions = [
            *open_inference_codec.EXTENSIONS,
            *(extensions.EXTENSIONS if triton else ()),
        ]

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Implement `serving.api.http.exchange.Routes`."""
        asked: _ParsedPath | None = head.meaning
        if asked is None:  # first request with this head
            if self._triton is not None:
                answered = self._triton.handle(head, body, connection)
                if answered is not None:
                    return answered
            found = _parse_path(head.method, head.path)
            if isinstance(found, Response):
                return found
            head.meaning = asked = found
        if asked.kind == "infer":
            head.handle = functools.partial(self._infer, asked)  # nothing else to decide
            return self._infer(asked, head, body, connection)
        return self._ask(asked)

    def _infer(
        self, asked: _ParsedPath, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange:
        started_s = time.monotonic()
        target = self._resolved.get(asked.model)
        if target is None:
            try:
                target = self._engine.resolve(asked.name, asked.version)
            except ServingError as error:
                self._engine.count_unknown_model(error.status)
                raise
        try:
            if head.content_encoding and head.content_encoding != "identity":
                raise InvalidRequest(
                    f"Content-Encoding {head.content_encoding!r} is not supported; send "
                    "gzip, deflate, or the body uncompressed"
                )
            codec: open_inference_codec.RestCodec = target.codecs.get(_CODEC) or self._codec(target)
            query = codec.requests.query(body, head.inference_header_bytes)
            flight = _RestResponseHandler(
                connection, codec.answers, query.wanted, started_s, target, self._slices
            )
            flight.ticket = target.submit(query, flight, head.application)
        except ServingError as error:
            target.count_response(error.status, time.monotonic() - started_s)
            raise
        return flight

    def _ask(self, asked: _ParsedPath) -> Response:
        engine = self._engine
        match asked.kind:
            case "live":
                return json_response(200, {"live": True})
            case "ready":
                ready = engine.ready()
                return json_response(200 if ready else 503, {"ready": ready})
            case "server":
                data = {
                    "name": "luthier",
                    "version": __version__,
                    "extensions": self._extensions,
                }
                return json_response(200, data)
            case "model ready":
                ready = engine.model_ready(asked.name, asked.version)
                return json_response(200 if ready else 503, {"name": asked.name, "ready": ready})
            case _:
                target = engine.resolve(asked.name, asked.version)
                return json_response(200, self._codec(target).metadata(engine.versions(asked.name)))

    def _codec(self, target: DeploymentHandle) -> open_inference_codec.RestCodec:
        codec: open_inference_codec.RestCodec | None = target.codecs.get(_CODEC)
        if codec is None:
            codec = target.codecs[_CODEC] = open_inference_codec.RestCodec(
                target.id.name, target.id.version, target.signature, self._max_json_bytes
            )
        return codec


def _response_head(form: ResponseTemplate, data_bytes: int) -> bytes:
    fields = JSON_TYPE if form.header_bytes is None else _BINARY_FIELDS % form.header_bytes
    return b"HTTP/1.1 200 OK\r\n" + ending(fields, len(form.header) + data_bytes) + form.header


def _parse_path(method: str, path: str) -> _ParsedPath | Response:
    path = path.partition("?")[0]
    fixed = _FIXED.get(path.rstrip("/"))
    match = None if fixed else _MODEL.fullmatch(path)
    if fixed is None and match is None:
        refusal = unsupported.path(path)
        if refusal is not None:
            return error_response(refusal)
        return json_response(
            404, {"error": f"no route {path!r}; the protocol's routes begin with /v2"}
        )
    verb = fixed or {"ready": "model ready", "infer": "infer", None: "model"}[match["verb"]]  # type: ignore[index]  # one of both is set
    expected = "POST" if verb == "infer" else "GET"
    if method != expected:
        response = json_response(405, {"error": f"{method} {path} is not allowed, use {expected}"})
        return response._replace(fields=response.fields + f"Allow: {expected}\r\n".encode())
    if match is None:
        return _ParsedPath(verb)
    return _ParsedPath(verb, match["name"], match["version"])


_FIXED = {"/v2": "server", "/v2/health/live": "live", "/v2/health/ready": "ready"}
