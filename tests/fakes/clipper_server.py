"""Clipper's three protocols over a hub in memory: in a thread of a test, or as a program.

    python -m tests.fakes.clipper_server [--port N] [--admin-port N]

The program says where it listens in one line, as `python -m serving` does, and ends on SIGTERM.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import random
import signal
import sys
import threading
from collections.abc import Callable

from aiohttp import web

from serving.api.clipper import management
from serving.api.clipper.routes import ClipperRoutes
from serving.api.http.listener import HttpListener
from serving.metrics.clipper_metrics import Registry
from tests.fakes.clipper_hub import FakeHub


async def _shutdown(request):
    await request.read()  # for one that was not read aiohttp waits ten seconds before it ends
    request.app[STOP]()
    return web.json_response({"stopping": True})


async def _handle(request):
    hub, body = request.app[HUB], await request.read()
    status, text = await management.execute(hub, request.path, body)
    return web.Response(status=status, text=text, content_type="application/json")


HUB = web.AppKey("hub", FakeHub)
STOP = web.AppKey("stop", Callable)


@contextlib.asynccontextmanager
async def serving(hub, stop, port=0, admin_port=0):
    """Both ports; yields their numbers."""
    routes = ClipperRoutes(hub, metrics=Registry(random.Random(0)))
    listener = HttpListener(routes, max_body_bytes=2**20, idle_s=60.0, request_s=60.0)
    server = await asyncio.get_running_loop().create_server(listener.protocol, "127.0.0.1", port)
    application = web.Application()
    application[HUB] = hub
    application[STOP] = stop
    application.router.add_post("/admin/shutdown", _shutdown)
    for path in (management.PING, *management.PATHS):
        application.router.add_route("*", path, _handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", admin_port).start()
    try:
        yield server.sockets[0].getsockname()[1], runner.addresses[0][1]
    finally:
        server.close()
        listener.close()
        await runner.cleanup()


@contextlib.contextmanager
def in_thread(hub):
    """The server in a thread; yields (query port, management port)."""
    started = concurrent.futures.Future()
    stop = asyncio.Event()

    async def serve():
        async with serving(hub, stop.set) as ports:
            started.set_result((asyncio.get_running_loop(), ports))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, ports = started.result(20)
    try:
        yield ports
    finally:
        with contextlib.suppress(RuntimeError):  # a client has ended it
            loop.call_soon_threadsafe(stop.set)
        thread.join(20)
    assert not thread.is_alive()


async def _main(port, admin_port):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(FakeHub(), stop.set, port, admin_port) as (query, admin):
        facts = {"event": "ready", "host": "127.0.0.1", "port": query, "admin_port": admin}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--admin-port", type=int, default=0)
    arguments = parser.parse_args()
    asyncio.run(_main(arguments.port, arguments.admin_port))
