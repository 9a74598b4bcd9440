"""One gateway process: the only one of a server, or a child of `serving.app.gateways`.

    python -m serving.app.gateway     a child, commanded over its control channel

The parent's first frame is what to serve, with the descriptors of the sockets. Then it sends how many
times to stop, and hears `ready` with the facts, `leaving`, `closed` to new clients, `failed` with
the reason and the exit code, or `stop` to stop all. When the channel closes, the gateway drains and
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import uvloop

from serving.api.admin_token import TokenPlace
from serving.app.placement import Placement
from serving.app.server import Server
from serving.engine.gateway_share import GatewayShare
from serving.error_text import one_line
from serving.errors import InvalidSettings, ModelMissing, ServingError
from serving.settings import ServingSettings
from serving.system.control_channel import Closed, ControlChannel
from serving.system.log_lines import log_lines
from serving.zoo import model_specs

_OBJECTS_PER_COLLECTION = 20_000
"""GC threshold above the number of objects that in-flight requests hold; the default is 700."""
_ORDER_S = 30.0
"""Seconds for the parent's first frame."""


def run(server: Callable[[], Server], watch: Callable[[Server], None] | None = None) -> None:
    """Run a gateway until it is stopped.

    Raises:
        ServingError: it could not start.
    """

    async def serve() -> None:
        gc.freeze()  # what is loaded by now lives as long as the server
        gc.set_threshold(_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
        made = server()
        if watch is not None:
            watch(made)
        await made.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def exit_code(error: ServingError) -> int:
    """Return a server's exit code for an error at its start."""
    return 2 if isinstance(error, InvalidSettings | ModelMissing) else 1


def main() -> int:
    """Serve as the parent orders."""
    channel = ControlChannel.to_parent()
    order, _ = channel.receive(timeout_s=_ORDER_S)
    log_lines(order["log_level"])

    def tell(message: Mapping[str, Any]) -> None:
        with contextlib.suppress(Closed, TimeoutError):  # the parent is gone: the watch sees it
            channel.send(message, timeout_s=_ORDER_S)

    def server() -> Server:
        token = order["token"]
        placement = Placement(
            share=GatewayShare(index=order["index"], gateways=order["gateways"]),
            folder=_path(order["folder"]),
            query=_socket(order["query"]),
            grpc=None if order["grpc"] is None else _socket(order["grpc"]),
            token=None if token is None else TokenPlace(token[0], pathlib.Path(token[1])),
            tell=tell,
        )
        return Server(
            [model_specs.from_json(spec, is_trusted=True) for spec in order["specs"]],
            ServingSettings().with_changes(order["settings"]),
            repository=_path(order["repository"]),
            placement=placement,
        )

    def watch(made: Server) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                for message in channel.receive_all():
                    made.stop_up_to(message["stop"])
            except Closed:
                loop.remove_reader(channel.sock)
                made.stop_up_to(1)

        loop.add_reader(channel.sock, read)

    try:
        run(server, watch)
    except ServingError as error:
        tell({"event": "failed", "reason": one_line(error), "code": exit_code(error)})
        return exit_code(error)
    return 0


def _path(text: str | None) -> pathlib.Path | None:
    return None if text is None else pathlib.Path(text)


def _socket(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)  # replicas do not get it
    return socket.socket(fileno=descriptor)


if __name__ == "__main__":
    sys.exit(main())
