"""Router of the inference port: chooses the protocol by path.

    /v2...                  Open Inference Protocol v2, with Triton's extensions
    /v1/..., /monitoring/   TensorFlow Serving
    anything else           `otherwise`

`RequestHead.handle` caches the choice.
"""

from __future__ import annotations

from serving.api.http.exchange import Exchange, ResponseWriter, Routes
from serving.api.http.messages import RequestHead, Response


class Router:
    """Router to the protocols of the inference port."""

    def __init__(self, *, oip: Routes, tfs: Routes, otherwise: Routes) -> None:
        self._of_first = {"v2": oip, "v1": tfs, "monitoring": tfs}
        self._otherwise = otherwise

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Implement `serving.api.http.exchange.Routes`."""
        first = head.path.partition("?")[0].split("/", 2)[1:2]
        routes = self._of_first.get("".join(first).lower(), self._otherwise)
        head.handle = routes.handle
        return routes.handle(head, body, connection)
