"""The query port's protocols by path.

    /v2...                  Open Inference Protocol v2, with Triton's extensions
    /v1/..., /monitoring/   TensorFlow Serving
    anything else           whatever is given for it

In: a request; out: what its protocol's routes say. Which protocol a head means is decided once: clients
on kept-alive connections repeat their heads, and `Head.handle` remembers who takes them.
"""

from __future__ import annotations

from serving.protocol.http import Channel, Exchange, Routes
from serving.protocol.http_messages import Head, Response, json_response


class _Nothing:
    """Answers what no protocol knows."""

    def handle(self, head: Head, _body: bytes, _connection: Channel) -> Response:
        """404."""
        path = head.path.partition("?")[0]
        text = f"no route {path!r}; routes begin with /v2 (Open Inference) or /v1/models (TensorFlow Serving)"
        return json_response(404, {"error": text})


class PortRoutes:
    """All protocols of the query port."""

    def __init__(self, *, oip: Routes, tfs: Routes, otherwise: Routes | None = None) -> None:
        """Keep what is given.

        Args:
            oip: takes `/v2`.
            tfs: takes `/v1` and `/monitoring`.
            otherwise: takes all other paths; None: they are answered 404.
        """
        self._of_first = {"v2": oip, "v1": tfs, "monitoring": tfs}
        self._otherwise = otherwise or _Nothing()

    def handle(self, head: Head, body: bytes, connection: Channel) -> Exchange | Response:
        """See `serving.protocol.http.Routes`."""
        first = head.path.partition("?")[0].split("/", 2)[1:2]
        routes = self._of_first.get("".join(first).lower(), self._otherwise)
        head.handle = routes.handle
        return routes.handle(head, body, connection)
