"""Routes of Clipper's query protocol on the inference port.

    POST /{application}/predict     one input or a batch; answered within the latency SLO
    POST /{application}/update      feedback
    GET  /metrics                   Clipper's metrics, in JSON

Content-Type is always JSON, as in Clipper.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

from serving import wire
from serving.api.clipper import queries
from serving.api.clipper.fields import RequestError
from serving.api.clipper.service import ClipperService
from serving.api.http.exchange import Exchange, ResponseWriter
from serving.api.http.messages import JSON_TYPE, RequestHead, Response, json_response
from serving.api.parsing.bounded_json import MAX_JSON_BYTES
from serving.api.transport.incremental import IncrementalJob, IncrementalRunner
from serving.error_text import nearest, short_repr
from serving.errors import InferenceFailed, InvalidRequest, NotReady, ServingError
from serving.metrics.clipper_metrics import Registry
from serving.response_handler import RequestHandle
from serving.selection.application import Application
from serving.selection.query_session import QueryResponse

log = logging.getLogger(__name__)

_PATH = re.compile(r"/(?P<app>[^/]+)/(?P<verb>predict|update)/?")
_METRICS = "/metrics"
_ROUTES = (
    "available are /v2 (Open Inference), /v1/models (TensorFlow Serving), and "
    "/APPLICATION/predict and /APPLICATION/update (Clipper)"
)
_UNEXPECTED = "An unexpected error occurred!"
_QUERY_ERROR = "Query processing error"
_UNREADABLE = "The model's response cannot be read"


class _ParsedClipperPath(NamedTuple):
    verb: str
    application: str


class _AppMetrics:
    __slots__ = ("default_ratio", "latency", "predictions", "throughput")

    def __init__(self, registry: Registry, name: str, now_s: float) -> None:
        self.latency = registry.histogram(f"app:{name}:prediction_latency", "microseconds")
        self.throughput = registry.meter(f"app:{name}:prediction_throughput", now_s)
        self.predictions = registry.counter(f"app:{name}:num_predictions")
        self.default_ratio = registry.ratio(f"app:{name}:default_prediction_ratio")

    def count(self, *, seconds: float, is_default: bool, now_s: float) -> None:
        self.latency.insert(round(seconds * 1e6))
        self.throughput.mark(now_s)
        self.predictions.increment()
        self.default_ratio.increment(int(is_default))


class _QueryBatch:
    __slots__ = (
        "_answers",
        "_connection",
        "_default_output",
        "_metrics",
        "_missing",
        "_slices",
        "_slow",
        "_started_s",
        "tickets",
    )

    def __init__(
        self,
        connection: ResponseWriter,
        count: int,
        default_output: str,
        metrics: _AppMetrics,
        started_s: float,
        slices: IncrementalRunner,
    ) -> None:
        self._connection = connection
        self._answers = [b""] * count
        self._missing = count
        self._default_output = default_output
        self._metrics = metrics
        self._started_s = started_s
        self._slices = slices
        self._slow: dict[int, IncrementalJob] = {}
        self.tickets: list[RequestHandle] = []

    def write_response(self, place: int, result: QueryResponse) -> None:
        output = result.output
        if result.is_default or output is None:
            self._default(place, result, result.explanation)
        elif isinstance(output, memoryview) and len(output) > queries.LONG_BYTES:
            kept = result._replace(output=memoryview(bytes(output)))
            ended = functools.partial(self._on_written, place, kept)
            self._slow[place] = self._slices.begin(queries.prediction_pieces(kept), ended)
        else:
            try:
                response = b"".join(queries.prediction_pieces(result))
            except (InferenceFailed, wire.WireError) as error:
                self._default(place, result, f"{_UNREADABLE}: {error}")
            else:
                self._count(place, response, is_default=False)

    def _on_written(
        self, place: int, result: QueryResponse, outcome: list[bytes] | Exception
    ) -> None:
        del self._slow[place]
        if not isinstance(outcome, Exception):
            self._count(place, b"".join(outcome), is_default=False)
        elif isinstance(outcome, ServingError | wire.WireError):
            self._default(place, result, f"{_UNREADABLE}: {outcome}")
        else:
            log.error("a response hit a server error", exc_info=outcome)
            self._default(place, result, _UNEXPECTED)

    def _default(self, place: int, result: QueryResponse, why: str | None) -> None:
        response = queries.default_prediction(result, self._default_output, why)
        self._count(place, response, is_default=True)

    def _count(self, place: int, response: bytes, *, is_default: bool) -> None:
        now_s = time.monotonic()
        seconds = now_s - self._started_s
        self._metrics.count(seconds=seconds, is_default=is_default, now_s=now_s)
        self._answers[place] = response
        self._missing -= 1
        if not self._missing:
            body = queries.response_body(self._answers)
            self._connection.respond(Response(200, JSON_TYPE, body))

    def cancel(self) -> None:
        for slow in self._slow.values():
            slow.cancel()
        for ticket in self.tickets:
            ticket.cancel()


class _LateFeedback:
    """Feedback on a decision that another gateway may have made a moment ago, and has not written."""

    def __init__(self, connection: ResponseWriter, learn: Callable[..., Response | None]) -> None:
        self._connection = connection
        self._learn = learn
        self._delays_s = list(_LATE_S)
        self._wait()

    def _wait(self) -> None:
        delay_s = self._delays_s.pop(0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._try)

    def _try(self) -> None:
        try:
            response = self._learn(is_last=not self._delays_s)
        except Exception:
            log.exception("a request hit a server error")
            response = _plain(500, _UNEXPECTED)
        if response is None and self._delays_s:
            self._wait()
        else:
            self._connection.respond(response or _NOT_TAKEN)

    def cancel(self) -> None:
        self._timer.cancel()


class ClipperRoutes:
    """Routes of Clipper's query protocol."""

    def __init__(
        self,
        service: ClipperService,
        *,
        metrics: Registry,
        shows_metrics: bool = True,
        max_json_bytes: int = MAX_JSON_BYTES,
    ) -> None:
        self._service = service
        self._applications = service.applications
        self._shows_metrics = shows_metrics
        self._registry = metrics
        self._max_json_bytes = max_json_bytes
        self._slices = IncrementalRunner()

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Implement `serving.api.http.exchange.Routes`."""
        target: _ParsedClipperPath | None = head.meaning
        if target is None:
            found = _parse_path(head.method, head.path)
            if isinstance(found, Response):
                return found
            head.meaning = target = found
        if target.verb == "metrics":
            if not self._shows_metrics:
                return json_response(404, {"error": f"no route {_METRICS!r}; {_ROUTES}"})
            return json_response(200, self._registry.report(time.monotonic()))
        application = self._applications.application(target.application)
        if application is None:
            return self._unknown(target.application)
        if head.content_encoding not in {"", "identity"}:
            raise InvalidRequest(
                f"Content-Encoding {head.content_encoding!r} is not supported; send the "
                "body uncompressed"
            )
        started_s = time.monotonic()
        try:
            if target.verb == "update":
                return self._update(target.application, application, body, connection)
            return self._predict(target.application, application, body, connection, started_s)
        except Exception:
            log.exception("a request hit a server error")
            return _plain(500, _UNEXPECTED)

    def _unknown(self, name: str) -> Response:
        known = [application.name for application in self._applications.all()]
        listed = ", ".join(known) or "none"
        text = f"no application {short_repr(name)}{nearest(name, known)} (known: {listed})"
        return json_response(404, {"error": text})

    def _predict(
        self,
        name: str,
        application: Application,
        body: bytes,
        connection: ResponseWriter,
        started_s: float,
    ) -> Exchange | Response:
        try:
            fields = queries.predict_fields(body, self._max_json_bytes)
            version = fields.text("version") if "version" in fields.given else None
            if version is not None:
                self._check_version(name, application, version)
            asked = queries.prediction(fields, application.input_type)
            if not asked.inputs:
                return Response(200, JSON_TYPE, queries.response_body([]))
            metrics = _AppMetrics(self._registry, name, started_s)
            batch = _QueryBatch(
                connection,
                len(asked.inputs),
                application.default_output,
                metrics,
                started_s,
                self._slices,
            )
            self._ask_all(name, asked, version, batch)
        except ServingError as error:
            if not isinstance(error, RequestError):
                error = RequestError(_QUERY_ERROR, str(error))
            return Response(400, JSON_TYPE, error.body())
        return batch

    def _ask_all(
        self, name: str, asked: queries.PredictRequest, version: str | None, batch: _QueryBatch
    ) -> None:
        try:
            for place, question in enumerate(asked.inputs):
                respond = functools.partial(batch.write_response, place)
                batch.tickets.append(
                    self._applications.ask(
                        name, question, respond, version=version, user=asked.user
                    )
                )
        except BaseException:
            batch.cancel()
            raise

    def _check_version(self, name: str, application: Application, version: str) -> None:
        if len(application.models) > 1:
            cause = f"Too many models linked to application {name}"
        elif not application.models:
            cause = (
                f"Requested version: {version[:100]} does not exist: no model is linked to {name}"
            )
        elif version not in self._service.model_versions(application.models[0]):
            model = application.models[0]
            cause = f"Requested version: {version[:100]} does not exist for model: {model}"
        else:
            return
        raise RequestError(_QUERY_ERROR, cause)

    def _update(
        self, name: str, application: Application, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        try:
            update = queries.update(body, application.input_type, self._max_json_bytes)
        except ServingError as error:
            return _plain(400, str(error))
        learn = functools.partial(self._learn, name, update)
        if not self._applications.hears_late:
            return learn(is_last=True) or _NOT_TAKEN
        return learn(is_last=False) or _LateFeedback(connection, learn)

    def _learn(self, name: str, update: queries.UpdateRequest, *, is_last: bool) -> Response | None:
        """Return the response, or None if the feedback matches no decision yet."""
        try:
            taken = self._applications.feedback(
                name,
                update.label,
                user=update.user,
                input_key=update.input.key,
                query_id=update.query_id,
                is_last=is_last,
            )
        except NotReady as error:  # valid; the client may retry
            return _plain(error.status, str(error))
        except ServingError as error:
            return _plain(400, str(error))
        return _plain(200, "Feedback received? 1") if taken else None


_LATE_S = (0.05, 0.15, 0.3)
"""Pauses between looks for a decision that another gateway may be about to write."""


def _plain(status: int, text: str) -> Response:
    return Response(status, JSON_TYPE, text.encode("utf-8", "replace"))


def _parse_path(method: str, path: str) -> _ParsedClipperPath | Response:
    path = path.partition("?")[0]
    match = _PATH.fullmatch(path)
    if match is None and path != _METRICS:
        text = f"no route {path!r}; {_ROUTES}"
        return json_response(404, {"error": text})
    expected = "GET" if match is None else "POST"
    if method != expected:
        response = json_response(405, {"error": f"{method} {path} is not allowed, use {expected}"})
        return response._replace(fields=response.fields + f"Allow: {expected}\r\n".encode())
    if match is None:
        return _ParsedClipperPath("metrics", "")
    return _ParsedClipperPath(match["verb"], urllib.parse.unquote(match["app"]))


_NOT_TAKEN = _plain(200, "Feedback received? 0")
