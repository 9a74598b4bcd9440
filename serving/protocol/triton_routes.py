"""Routes of Triton's extensions; `OipRoutes` tries them first.

A load continues after its client disconnects, to avoid half a load.
"""

from __future__ import annotations

import asyncio
import logging

from serving.errors import ServingError
from serving.protocol import triton_extensions as extensions
from serving.protocol.http import Channel, Exchange
from serving.protocol.http_messages import Head, Response, error_response, json_response
from serving.protocol.triton_extensions import Ask, ModelHub

log = logging.getLogger(__name__)


class _Control:
    """Load or unload in progress."""

    def __init__(self, connection: Channel) -> None:
        self._connection: Channel | None = connection

    def cancel(self) -> None:
        """Drop the response: the client disconnected."""
        self._connection = None

    def finished(self, task: asyncio.Task[None]) -> None:
        """Send the outcome."""
        error = ServingError("the server stops") if task.cancelled() else task.exception()
        if error is None:
            response = Response(200, b"", b"")
        elif isinstance(error, ServingError):
            response = error_response(error)
        else:
            log.error("loading met a fault of the server", exc_info=error)
            response = json_response(
                500, {"error": "internal error; the server's log has the reason"}
            )
        if self._connection is not None:
            self._connection.respond(response)


class TritonRoutes:
    """Routes of Triton's extensions."""

    def __init__(self, hub: ModelHub) -> None:
        self._hub = hub
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, head: Head, body: bytes, connection: Channel) -> Exchange | Response | None:
        """Respond now or later, or return None for other paths.

        Raises:
            ServingError: becomes the response.
        """
        ask = extensions.asked(head.path)
        if ask is None:
            return None
        if head.method != ask.method:
            text = f"{head.method} {head.path} is not allowed, use {ask.method}"
            response = json_response(405, {"error": text})
            return response._replace(fields=response.fields + f"Allow: {ask.method}\r\n".encode())
        return self._answer(ask, body, connection)

    def _answer(self, ask: Ask, body: bytes, connection: Channel) -> Exchange | Response:
        hub, name = self._hub, ask.name or ""
        match ask.kind:
            case "stats":
                return json_response(
                    200, extensions.statistics_json(hub.statistics(ask.name, ask.version))
                )
            case "config":
                return json_response(200, extensions.config_json(hub.configured(name, ask.version)))
            case "index":
                ready = extensions.only_ready(body)
                return json_response(200, extensions.index_json(hub.index(), ready=ready))
            case "load":
                work = hub.load(name, extensions.load_config(body))
            case "unload":
                work = hub.unload(name)
        control = _Control(connection)
        task = asyncio.create_task(work, name=f"{ask.kind} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(control.finished)
        return control

    async def close(self) -> None:
        """Cancel loads and unloads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
