"""Router of the inference port: chooses the protocol by path.

    /v2...                  Open Inference Protocol v2, with Triton's extensions
    /v1/..., /monitoring/   TensorFlow Serving
    anything else           `otherwise`

`RequestHead.handle` caches the choice.
"""

from __future__ import annotations

from serving.api.http.listener import Exchange, ResponseWriter, Routes
from serving.api.http.messages import RequestHead, Response, json_response


class _Nothing:
    def handle(self, head: RequestHead, _body: bytes, _connection: ResponseWriter) -> Response:
        """Return 404."""
        path = head.path.partition("?")[0]
        text = f"no route {path!r}; routes begin with /v2 (Open Inference) or /v1/models (TensorFlow Serving)"
        return json_response(404, {"error": text})


class Router:
    """Router over the protocols of the inference port."""

    def __init__(self, *, oip: Routes, tfs: Routes, otherwise: Routes | None = None) -> None:
        self._of_first = {"v2": oip, "v1": tfs, "monitoring": tfs}
        self._otherwise = otherwise or _Nothing()

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Implement `serving.api.http.listener.Routes`."""
        first = head.path.partition("?")[0].split("/", 2)[1:2]
        routes = self._of_first.get("".join(first).lower(), self._otherwise)
        head.handle = routes.handle
        return routes.handle(head, body, connection)
