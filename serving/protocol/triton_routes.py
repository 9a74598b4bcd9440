"""Routes of Triton's extensions on the query port: a helper that the port's routes ask first.

In: a request's head and body; out: a response at once, an exchange that answers later (loading and
unloading take their time), or None where the path is none of these. A load goes on when its client
leaves, as it would be half a load otherwise.
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
    """A load or unload that is under way."""

    def __init__(self, connection: Channel) -> None:
        self._connection: Channel | None = connection

    def cancel(self) -> None:
        """The client went away: nobody hears of the end."""
        self._connection = None

    def finished(self, task: asyncio.Task[None]) -> None:
        """Say how it ended."""
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
    """The extensions over one hub."""

    def __init__(self, hub: ModelHub) -> None:
        self._hub = hub
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, head: Head, body: bytes, connection: Channel) -> Exchange | Response | None:
        """Answer at once, later through the connection, or not at all: None.

        Raises:
            ServingError: answered with its status and text.
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
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
