"""Routes of TensorFlow Serving's REST protocol on the inference port.

    POST /v1/models/{model}[/versions/{number} | /labels/{label}]:(predict | classify | regress)
    GET  /v1/models/{model}[/versions/{number} | /labels/{label}]              -> status
    GET  /v1/models/{model}[/versions/{number} | /labels/{label}]/metadata
    GET  /monitoring/prometheus/metrics                                        (if switched on)

The fixed parts of paths are case-insensitive.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from serving.api.grpc.exchange import GrpcResponseHandler
from serving.api.http.exchange import Exchange, ResponseWriter
from serving.api.http.messages import (
    JSON_TYPE,
    RequestHead,
    Response,
    error_response,
    json_response,
)
from serving.api.open_inference.infer_request import DecodedRequest
from serving.api.open_inference.skeleton import LARGE_JSON_BYTES
from serving.api.parsing.bounded_json import MAX_JSON_BYTES
from serving.api.tensorflow import model_status, rest_codec
from serving.api.transport.incremental import IncrementalRunner
from serving.engine.engine import DeploymentHandle, Engine
from serving.errors import InvalidRequest, ServingError, UnknownModel
from serving.response_handler import BatchInfo, HasBatch
from serving.values import Buffer, Signature

log = logging.getLogger(__name__)

_MODEL = r"(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_INFERENCE = re.compile(
    rf"/v1/models/{_MODEL}:(?P<method>predict|classify|regress)", re.IGNORECASE | re.ASCII
)
_QUESTION = re.compile(
    rf"/v1/models(?:/{_MODEL})?(?P<metadata>/metadata)?", re.IGNORECASE | re.ASCII
)
_METRICS_PATH = "/monitoring/prometheus/metrics"
_METRICS_TYPE = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
_MAX_VERSION = 2**63 - 1

Codec = TypeVar("Codec")

_STATES: Mapping[str, model_status.State] = {
    "ready": "AVAILABLE",
    "unavailable": "LOADING",
    "loading": "LOADING",
    "failed": "END",
}


class _ParsedTensorFlowPath(NamedTuple):
    kind: str
    name: str = ""
    version: str | None = None
    label: str | None = None


class NotFound(InvalidRequest):
    """Error for an unknown model or version, with TensorFlow Serving's message."""

    status = 404


class _HttpResponseWriter:
    __slots__ = ("_connection",)

    def __init__(self, connection: ResponseWriter) -> None:
        self._connection = connection

    def send(self, pieces: Sequence[Buffer]) -> None:
        self._connection.respond(Response(200, JSON_TYPE, b"".join(pieces)))

    def reject(self, error: ServingError) -> None:
        self._connection.respond(error_response(error))


class _TensorFlowResponseHandler(GrpcResponseHandler[rest_codec.Form]):
    """gRPC response handler that also reports the batch, for stage times."""

    _batch: BatchInfo | None = None

    def on_result(self, frame: memoryview) -> None:
        if len(frame) > rest_codec.LONG_BYTES:
            self._batch = self.batch()  # no longer known once the response is written
        super().on_result(frame)

    def batch(self) -> BatchInfo | None:
        if self._batch is None and isinstance(self.ticket, HasBatch):
            return self.ticket.batch()
        return self._batch


def _send_metrics(connection: ResponseWriter, outcome: list[bytes] | Exception) -> None:
    if isinstance(outcome, Exception):
        log.error("the metrics hit a server error", exc_info=outcome)
        error = ServingError("internal error; the server's log has the reason")
        connection.respond(error_response(error))
    else:
        connection.respond(Response(200, _METRICS_TYPE, b"".join(outcome)))


class TensorFlowRoutes:
    """Routes of TensorFlow Serving's REST protocol."""

    def __init__(
        self,
        engine: Engine,
        *,
        metrics: Callable[[], Iterator[bytes]] | None = None,
        max_json_bytes: int = MAX_JSON_BYTES,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._max_json_bytes = max_json_bytes
        self._slices = IncrementalRunner()

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Handle a request, as `serving.api.http.exchange.Routes` defines."""
        asked: _ParsedTensorFlowPath | None = head.meaning
        if asked is None:
            found = self._parse_path(head.method, head.path)
            if isinstance(found, Response):
                return found
            head.meaning = asked = found
        if asked.kind in {"predict", "classify", "regress"}:
            return self._infer(asked, head, body, connection)
        if asked.kind == "metrics":
            assert self._metrics is not None
            return self._slices.begin(self._metrics(), functools.partial(_send_metrics, connection))
        return self._ask(asked)

    def _infer(
        self,
        asked: _ParsedTensorFlowPath,
        head: RequestHead,
        body: bytes,
        connection: ResponseWriter,
    ) -> Exchange:
        started_s = time.monotonic()
        try:
            target = self._resolve(asked, body)
        except ServingError as error:
            self._engine.count_unknown_model(error.status)
            raise
        try:
            if head.content_encoding and head.content_encoding != "identity":
                raise InvalidRequest(
                    f"Content-Encoding {head.content_encoding!r} is not supported; send "
                    "gzip, deflate, or the body uncompressed"
                )
            codec = codec_of(target, rest_codec.TensorFlowRestCodec)
            query = self._query(codec, asked, body)
            flight = _TensorFlowResponseHandler(
                _HttpResponseWriter(connection),
                codec.encode_response,
                query.wanted,
                started_s,
                target.count_response,
                steps=codec.encode_in_pieces,
                slices=self._slices,
            )
            flight.ticket = target.submit(query, flight, head.application)
        except ServingError as error:
            target.count_response(error.status, time.monotonic() - started_s)
            raise
        return flight

    def _query(
        self, codec: rest_codec.TensorFlowRestCodec, asked: _ParsedTensorFlowPath, body: bytes
    ) -> DecodedRequest:
        if asked.kind == "predict" and len(body) > LARGE_JSON_BYTES:
            query = codec.large_query(body)
            if query is not None:
                return query
        request = rest_codec.request(body, self._max_json_bytes)
        return codec.query(request, cast("rest_codec.Method", asked.kind))

    def _resolve(self, asked: _ParsedTensorFlowPath, body: bytes) -> DeploymentHandle:
        try:
            return resolve(self._engine, *asked[1:])
        except NotFound:
            if len(body) <= LARGE_JSON_BYTES:
                # TensorFlow Serving, too, reports a malformed body first.
                rest_codec.request(body, self._max_json_bytes)
            raise

    def _ask(self, asked: _ParsedTensorFlowPath) -> Response:
        if asked.kind == "metadata":
            target = resolve(self._engine, *asked[1:])
            body = model_status.metadata(target.id.name, target.id.version, target.signature)
            return json_response(200, body)
        return json_response(200, model_status.status(states(self._engine, *asked[1:])))

    def _parse_path(self, method: str, path: str) -> _ParsedTensorFlowPath | Response:
        path = path.partition("?")[0]
        malformed = json_response(400, {"error": f"Malformed request: {method} {path}"})
        if path == _METRICS_PATH and self._metrics is not None:
            return _ParsedTensorFlowPath("metrics") if method == "GET" else malformed
        if path[:4].lower() != "/v1/":
            return json_response(
                404, {"error": f"no route {path!r}; the protocol's routes begin with /v1/models"}
            )
        if method == "POST" and (match := _INFERENCE.fullmatch(path)):
            kind = match["method"].lower()
        elif method == "GET" and (match := _QUESTION.fullmatch(path)):
            kind = "metadata" if match["metadata"] else "status"
        else:
            return malformed
        if match["name"] is None:
            return json_response(400, {"error": "Missing model name in request."})
        version = match["version"]
        if version is not None:
            version = version.lstrip("0") or "0"
            if len(version) > 19 or int(version) > _MAX_VERSION:
                return json_response(
                    400, {"error": f"Failed to convert version: {version} to numeric."}
                )
        return _ParsedTensorFlowPath(kind, match["name"], version, match["label"])


def resolve(engine: Engine, name: str, version: str | None, label: str | None) -> DeploymentHandle:
    """Return the handle of a version, given directly or by label, or of the current version.

    Raises:
        NotFound: unknown model or version.
        InvalidRequest: unknown label.
    """
    version = _resolve_label(engine, name, version, label)
    try:
        return engine.resolve(name, version)
    except UnknownModel:
        meant = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        raise NotFound(f"Servable not found for request: {meant}") from None


def states(
    engine: Engine, name: str, version: str | None, label: str | None
) -> list[model_status.VersionState]:
    """Return the states of a model's versions, newest first.

    Raises:
        NotFound: there are none.
        InvalidRequest: unknown label.
    """
    version = _resolve_label(engine, name, version, label)
    found = [
        model_status.VersionState(id_.version, _STATES[state], why if state == "failed" else "")
        for id_, (state, why) in engine.states().items()
        if id_.name == name and version in {None, id_.version}
    ]
    if not found:
        missing = "any versions" if version is None else f"version {version}"
        raise NotFound(f"Could not find {missing} of model {name}")
    return sorted(found, key=_age, reverse=True)


def _resolve_label(engine: Engine, name: str, version: str | None, label: str | None) -> str | None:
    if label is None:
        return version
    found = engine.resolve_label(name, label)
    if found is None:
        raise InvalidRequest(f"Unrecognized servable version label: {label}")
    return found


def codec_of(target: DeploymentHandle, kind: Callable[[str, str, Signature], Codec]) -> Codec:
    """Return the codec for a model version, built once per signature."""
    codec: Codec | None = target.codecs.get(kind.__name__)
    if codec is None:
        codec = target.codecs[kind.__name__] = kind(
            target.id.name, target.id.version, target.signature
        )
    return codec


def _age(version: model_status.VersionState) -> tuple[bool, int, str]:
    number = model_status.version_number(version.version)
    return number is not None, number or 0, version.version
