"""Routes of Triton's extensions; `OpenInferenceRoutes` tries them first."""

from __future__ import annotations

from serving.api.http.exchange import Exchange, ResponseWriter
from serving.api.http.messages import RequestHead, Response, error_response, json_response
from serving.api.parsing.bounded_json import MAX_JSON_BYTES
from serving.api.triton import extensions
from serving.api.triton.extensions import ExtensionRequest
from serving.api.triton.repository_service import Changes, RepositoryService
from serving.errors import ServingError


class TritonRoutes:
    """Routes of Triton's extensions."""

    def __init__(self, hub: RepositoryService, max_json_bytes: int = MAX_JSON_BYTES) -> None:
        self._hub = hub
        self._max_json_bytes = max_json_bytes
        self._changes = Changes()

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response | None:
        """Return a response, or an exchange that responds later, or None for other paths.

        Raises:
            ServingError: the request fails; the listener sends the error.
        """
        ask = extensions.parse_path(head.path)
        if ask is None:
            return None
        if head.method != ask.method:
            text = f"{head.method} {head.path} is not allowed, use {ask.method}"
            response = json_response(405, {"error": text})
            return response._replace(fields=response.fields + f"Allow: {ask.method}\r\n".encode())
        return self._answer(ask, body, connection)

    def _answer(
        self, ask: ExtensionRequest, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        hub, name = self._hub, ask.name or ""
        match ask.kind:
            case "stats":
                found = hub.statistics(ask.name, ask.version)
                return json_response(200, extensions.statistics_json(found))
            case "config":
                configured = hub.model_config(name, ask.version)
                return json_response(200, extensions.config_json(configured))
            case "index":
                ready = extensions.only_ready(body, self._max_json_bytes)
                return json_response(200, extensions.index_json(hub.index(), ready=ready))
            case "load":
                work = hub.load(name, extensions.load_config(body, self._max_json_bytes))
            case "unload":
                work = hub.unload(name)

        def answer(error: ServingError | None) -> None:
            connection.respond(Response(200, b"", b"") if error is None else error_response(error))

        return self._changes.begin(work, answer, name=f"{ask.kind} {name}")

    async def close(self) -> None:
        """Cancel loads and unloads of models."""
        await self._changes.close()
