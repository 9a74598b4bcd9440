"""Routes of the query port: Open Inference Protocol v2 on one engine.

In: a request's head and body; out: a response at once (health, metadata, errors), or an inference in
flight that answers its connection when the engine does. One object per inference, no task.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Protocol

from serving import __version__
from serving.errors import InvalidRequest, ServingError
from serving.protocol import oip
from serving.protocol.http import Connection, Exchange
from serving.protocol.http_messages import (
    JSON_TYPE,
    Head,
    Response,
    ending,
    error_response,
    json_response,
)
from serving.protocol.oip_answers import Answers, Form, Wanted
from serving.protocol.oip_requests import Query
from serving.values import ModelId, Signature
from serving.waiter import Ticket, Waiter

_MODEL = re.compile(
    r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?(?:/(?P<verb>ready|infer))?/?"
)
_BINARY_FIELDS = (
    b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
)


class Inference(Protocol):
    """What the routes need of an engine."""

    def ready(self) -> bool:
        """Whether requests are answered now."""
        ...

    def models(self) -> tuple[ModelId, ...]:
        """What is served."""
        ...

    def resolve(self, name: str, version: str | None) -> tuple[ModelId, Signature]:
        """The model meant; raises UnknownModel or NotReady."""
        ...

    def model_ready(self, name: str, version: str | None) -> bool:
        """Whether the model answers now; raises UnknownModel."""
        ...

    def submit(self, model: ModelId, query: Query, waiter: Waiter) -> Ticket:
        """Take a request; the waiter is called later, never before this returns."""
        ...


class _Target:
    """What a method and a path ask for; with the codec of the model, once there was a request."""

    __slots__ = ("codec", "kind", "name", "signature", "version")

    def __init__(self, kind: str, name: str = "", version: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.version = version
        self.signature: Signature | None = None
        self.codec: oip.Codec | None = None


class _InFlight:
    """One inference: the waiter of the engine and the exchange of the connection."""

    __slots__ = ("_answers", "_connection", "_done", "_started_s", "_wanted", "ticket")

    def __init__(
        self,
        connection: Connection,
        answers: Answers,
        wanted: Wanted,
        started_s: float,
        done: Callable[[int, float], None],
    ) -> None:
        self._connection = connection
        self._answers = answers
        self._wanted = wanted
        self._started_s = started_s
        self._done = done
        self.ticket: Ticket

    def answer(self, frame: memoryview) -> None:
        form, data = self._answers.answer(frame, self._wanted)
        if form.meaning is None:
            form.meaning = _response_head(form, len(data))
        self._connection.respond_with(form.meaning, data)
        self._done(200, time.monotonic() - self._started_s)

    def refuse(self, error: ServingError) -> None:
        self._connection.respond(error_response(error))
        self._done(error.status, time.monotonic() - self._started_s)

    def cancel(self) -> None:
        self.ticket.cancel()
        self._done(499, time.monotonic() - self._started_s)


class OipRoutes:
    """Open Inference Protocol v2 over one engine."""

    def __init__(self, engine: Inference, *, on_done: Callable[[int, float], None]) -> None:
        self._engine = engine
        self._on_done = on_done
        self._codecs: dict[ModelId, tuple[Signature, oip.Codec]] = {}

    def handle(self, head: Head, body: bytes, connection: Connection) -> Exchange | Response:
        """See `serving.protocol.http.Routes`."""
        target: _Target | None = head.meaning
        if target is None:
            found = _target(head.method, head.path)
            if isinstance(found, Response):
                return found
            head.meaning = target = found
        if target.kind == "infer":
            return self._infer(target, head, body, connection)
        return self._ask(target)

    def _infer(self, target: _Target, head: Head, body: bytes, connection: Connection) -> Exchange:
        started_s = time.monotonic()
        try:
            if head.content_encoding and head.content_encoding != "identity":
                raise InvalidRequest(
                    f"Content-Encoding {head.content_encoding!r} is not supported; "
                    f"send the body as it is"
                )
            model, signature = self._engine.resolve(target.name, target.version)
            codec = target.codec
            if codec is None or target.signature is not signature:
                codec = self._codec(model, signature)
                target.signature, target.codec = signature, codec
            query = codec.requests.query(body, head.inference_header_bytes)
            flight = _InFlight(connection, codec.answers, query.wanted, started_s, self._on_done)
            flight.ticket = self._engine.submit(model, query, flight)
        except ServingError as error:
            self._on_done(error.status, time.monotonic() - started_s)
            raise
        return flight

    def _codec(self, model: ModelId, signature: Signature) -> oip.Codec:
        known = self._codecs.get(model)
        if known is None or known[0] is not signature:
            known = signature, oip.Codec(model.name, model.version, signature)
            self._codecs[model] = known
        return known[1]

    def _ask(self, target: _Target) -> Response:
        engine = self._engine
        match target.kind:
            case "live":
                return json_response(200, {"live": True})
            case "ready":
                ready = engine.ready()
                return json_response(200 if ready else 503, {"ready": ready})
            case "server":
                data = {
                    "name": "luthier",
                    "version": __version__,
                    "extensions": list(oip.EXTENSIONS),
                }
                return json_response(200, data)
            case "model ready":
                ready = engine.model_ready(target.name, target.version)
                return json_response(200 if ready else 503, {"name": target.name, "ready": ready})
            case _:
                model, signature = engine.resolve(target.name, target.version)
                return json_response(200, self._codec(model, signature).metadata())


def _response_head(form: Form, data_bytes: int) -> bytes:
    """The head of a 200 with this form, and the JSON part of its body."""
    fields = JSON_TYPE if form.header_bytes is None else _BINARY_FIELDS % form.header_bytes
    return b"HTTP/1.1 200 OK\r\n" + ending(fields, len(form.header) + data_bytes) + form.header


def _target(method: str, path: str) -> _Target | Response:
    """What a method and path mean, or the 404 or 405 that answers them."""
    path = path.partition("?")[0]
    fixed = _FIXED.get(path.rstrip("/"))
    match = None if fixed else _MODEL.fullmatch(path)
    if fixed is None and match is None:
        return json_response(
            404, {"error": f"no route {path!r}; the protocol's routes begin with /v2"}
        )
    verb = fixed or {"ready": "model ready", "infer": "infer", None: "model"}[match["verb"]]  # type: ignore[index]  # one of both is set
    expected = "POST" if verb == "infer" else "GET"
    if method != expected:
        response = json_response(405, {"error": f"{method} {path} is not allowed, use {expected}"})
        return response._replace(fields=response.fields + f"Allow: {expected}\r\n".encode())
    if match is None:
        return _Target(verb)
    return _Target(verb, match["name"], match["version"])


_FIXED = {"/v2": "server", "/v2/health/live": "live", "/v2/health/ready": "ready"}
