"""Routes of the query port: TensorFlow Serving's REST protocol on one engine.

    POST /v1/models/{model}[/versions/{number} | /labels/{label}]:(predict | classify | regress)
    GET  /v1/models/{model}[/versions/{number} | /labels/{label}]              -> status
    GET  /v1/models/{model}[/versions/{number} | /labels/{label}]/metadata
    GET  /monitoring/prometheus/metrics                                        (where it is switched on)

In: a request's head and body; out: a response at once, or an inference in flight that answers its
connection when the engine does. One object per inference, no task. Letters in the fixed parts of a
path may be large or small.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from serving.errors import InvalidRequest, ServingError, UnknownModel
from serving.protocol import tfs
from serving.protocol.http import Connection, Exchange
from serving.protocol.http_messages import JSON_TYPE, Head, Response, error_response, json_response
from serving.protocol.tfs_large import LARGE_JSON_BYTES
from serving.values import ModelId, Signature
from serving.waiter import Ticket, Waiter

_MODEL = r"(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_INFERENCE = re.compile(
    rf"/v1/models/{_MODEL}:(?P<method>predict|classify|regress)", re.IGNORECASE | re.ASCII
)
_QUESTION = re.compile(
    rf"/v1/models(?:/{_MODEL})?(?P<metadata>/metadata)?", re.IGNORECASE | re.ASCII
)
_METRICS_PATH = "/monitoring/prometheus/metrics"
_METRICS_TYPE = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
_LARGEST_VERSION = 2**63 - 1


class Names(Protocol):
    """How an engine knows models, versions and labels."""

    def resolve(self, name: str, version: str | None) -> tuple[ModelId, Signature]:
        """The model meant; without a version the newest that serves. Raises UnknownModel or NotReady."""
        ...

    def resolve_label(self, name: str, label: str) -> str | None:
        """The version that a label of a model means; None: the model or the label is unknown."""
        ...

    def versions(self, name: str) -> Sequence[tuple[str, str]]:
        """Versions of a model, each with one of `tfs.STATES`; empty where the model is unknown."""
        ...


class Servables(Names, Protocol):
    """What the routes need of an engine."""

    def submit(self, model: ModelId, query: tfs.Query, waiter: Waiter) -> Ticket:
        """Take a request; the waiter is called later, never before this returns."""
        ...


class _Target:
    """What a method and a path ask for."""

    __slots__ = ("kind", "label", "name", "version")

    def __init__(self, kind: str, name: str, version: str | None, label: str | None) -> None:
        self.kind = kind
        self.name = name
        self.version = version
        self.label = label


class _NotFound(InvalidRequest):
    status = 404


class _InFlight:
    """One inference: the waiter of the engine and the exchange of the connection."""

    __slots__ = ("_codec", "_connection", "_done", "_form", "_started_s", "ticket")

    def __init__(
        self,
        connection: Connection,
        codec: tfs.Codec,
        form: tfs.Form,
        started_s: float,
        done: Callable[[int, float], None],
    ) -> None:
        self._connection = connection
        self._codec = codec
        self._form = form
        self._started_s = started_s
        self._done = done
        self.ticket: Ticket

    def answer(self, frame: memoryview) -> None:
        self._connection.respond(Response(200, JSON_TYPE, self._codec.answer(frame, self._form)))
        self._done(200, time.monotonic() - self._started_s)

    def refuse(self, error: ServingError) -> None:
        self._connection.respond(error_response(error))
        self._done(error.status, time.monotonic() - self._started_s)

    def cancel(self) -> None:
        self.ticket.cancel()
        self._done(499, time.monotonic() - self._started_s)


class TfsRoutes:
    """TensorFlow Serving's REST protocol over one engine."""

    def __init__(
        self,
        engine: Servables,
        *,
        on_done: Callable[[int, float], None],
        metrics: Callable[[], bytes] | None = None,
    ) -> None:
        self._engine = engine
        self._on_done = on_done
        self._metrics = metrics
        self._codecs: dict[ModelId, tuple[Signature, tfs.Codec]] = {}

    def handle(self, head: Head, body: bytes, connection: Connection) -> Exchange | Response:
        """See `serving.protocol.http.Routes`."""
        target: _Target | None = head.meaning
        if target is None:
            found = self._target(head.method, head.path)
            if isinstance(found, Response):
                return found
            head.meaning = target = found
        if target.kind in {"predict", "classify", "regress"}:
            return self._infer(target, head, body, connection)
        if target.kind == "metrics":
            assert self._metrics is not None
            return Response(200, _METRICS_TYPE, self._metrics())
        return self._ask(target)

    def _infer(self, target: _Target, head: Head, body: bytes, connection: Connection) -> Exchange:
        started_s = time.monotonic()
        try:
            if head.content_encoding and head.content_encoding != "identity":
                raise InvalidRequest(
                    f"Content-Encoding {head.content_encoding!r} is not supported; "
                    f"send the body as it is"
                )
            model, codec, query = self._query(target, body)
            flight = _InFlight(connection, codec, query.form, started_s, self._on_done)
            flight.ticket = self._engine.submit(model, query, flight)
        except ServingError as error:
            self._on_done(error.status, time.monotonic() - started_s)
            raise
        return flight

    def _query(self, target: _Target, body: bytes) -> tuple[ModelId, tfs.Codec, tfs.Query]:
        if target.kind == "predict" and len(body) > LARGE_JSON_BYTES:
            model, codec = self._codec(target)
            query = codec.large_query(body)
            if query is not None:
                return model, codec, query
        request = tfs.request(body)
        model, codec = self._codec(target)
        return model, codec, codec.query(request, cast("tfs.Method", target.kind))

    def _codec(self, target: _Target) -> tuple[ModelId, tfs.Codec]:
        version = self._version(target)
        try:
            model, signature = self._engine.resolve(target.name, version)
        except UnknownModel:
            raise _NotFound(not_found(target.name, version)) from None
        known = self._codecs.get(model)
        if known is None or known[0] is not signature:
            known = signature, tfs.Codec(model.name, model.version, signature)
            self._codecs[model] = known
        return model, known[1]

    def _version(self, target: _Target) -> str | None:
        if target.label is None:
            return target.version
        version = self._engine.resolve_label(target.name, target.label)
        if version is None:
            raise InvalidRequest(f"Unrecognized servable version label: {target.label}")
        return version

    def _ask(self, target: _Target) -> Response:
        if target.kind == "metadata":
            return json_response(200, self._codec(target)[1].metadata())
        version = self._version(target)
        versions = newest_first(self._engine.versions(target.name), version)
        if not versions:
            raise _NotFound(no_versions(target.name, version))
        return json_response(200, tfs.status(versions))

    def _target(self, method: str, path: str) -> _Target | Response:
        """What a method and path mean, or the error that answers them."""
        path = path.partition("?")[0]
        malformed = json_response(400, {"error": f"Malformed request: {method} {path}"})
        if path == _METRICS_PATH and self._metrics is not None:
            return _Target("metrics", "", None, None) if method == "GET" else malformed
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
            if len(version) > 19 or int(version) > _LARGEST_VERSION:
                return json_response(
                    400, {"error": f"Failed to convert version: {version} to numeric."}
                )
        return _Target(kind, match["name"], version, match["label"])


def not_found(name: str, version: str | None) -> str:
    """TensorFlow Serving's words for a model or version that it does not have."""
    meant = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return f"Servable not found for request: {meant}"


def no_versions(name: str, version: str | None) -> str:
    """Its words where the status of such a one is asked for."""
    missing = "any versions" if version is None else f"version {version}"
    return f"Could not find {missing} of model {name}"


def newest_first(versions: Sequence[tuple[str, str]], only: str | None) -> list[tuple[str, str]]:
    """Versions with their states in the order of a status; one alone where it is asked for."""
    ordered = sorted(versions, key=_age, reverse=True)
    return [pair for pair in ordered if only in {None, pair[0]}]


def _age(version: tuple[str, str]) -> tuple[int, int, str]:
    """Order of versions: numbers by their value, behind them whatever else there is."""
    text = version[0]
    if text.isascii() and text.isdecimal() and len(text) <= 19:
        return 1, int(text), ""
    return 0, 0, text
