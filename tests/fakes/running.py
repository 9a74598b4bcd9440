"""A whole gateway in a thread, over replicas that are threads: real sockets, real protocol, no processes."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import threading

import uvloop
from aiohttp import web

from serving.api.admin.routes import AdminRoutes
from serving.api.http.listener import HttpListener
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.transport.trusted_hosts import TrustedHosts
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.engine import facts
from serving.engine.engine import Engine
from serving.metrics import exposition
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from tests.fakes.replicas import FakeHome

CARD = ModelSpec(name="echo", version="1", kind="echo", path=None, shapes=("data=3",))
WAIT_S = 60.0
"""Longest wait for the gateway: where its replicas are processes, their starts and loads are in it."""


async def retired(engine, name, version, *, within_s):
    """Take a version out of service and wait for its end."""
    ending = await engine.withdraw(name, version, within_s=within_s)
    if ending is not None:
        await asyncio.shield(ending)


class Gateway:
    """The running gateway, seen from the test's thread."""

    def __init__(self, engine, listener, home, loop, port, admin_port):
        self.engine = engine
        self.listener = listener
        self.home = home
        self.loop = loop
        self.port = port
        self.admin_port = admin_port

    def call(self, coroutine, timeout_s=WAIT_S):
        """Run a coroutine in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def do(self, function, *arguments):
        """Run a function in the gateway's loop."""

        async def work():
            return function(*arguments)

        return self.call(work())

    def request(self, method, path, body=None, headers=None, *, admin=False):
        """One HTTP request; returns status, head fields and body."""
        port = self.admin_port if admin else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def json(self, method, path, data=None, *, admin=False):
        """One JSON request; returns status and the decoded body."""
        body = None if data is None else json.dumps(data)
        status, _, answer = self.request(method, path, body, admin=admin)
        return status, json.loads(answer)


@contextlib.contextmanager
def gateway(values=None, home=None, card=CARD, **kept):
    """A gateway with these settings and this model, stopped at the end."""
    settings = ServingSettings().with_changes(values or {})
    home = home or FakeHome()
    started = concurrent.futures.Future()
    stop = asyncio.Event()
    thread = threading.Thread(target=_thread, args=(settings, home, card, kept, started, stop))
    thread.start()
    try:
        running = started.result(WAIT_S)
        yield running
        running.loop.call_soon_threadsafe(stop.set)
    finally:
        if started.done() and started.exception() is None:
            loop = started.result().loop
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
        home.release.set()
        thread.join(20)
    assert not thread.is_alive()


def _thread(settings, home, card, kept, started, stop):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(settings, home, card, kept, started, stop))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)


async def _serve(settings, home, card, kept, started, stop):
    engine = Engine([card], settings, SpawnerRegistry(lambda: home), **kept)
    await engine.open()
    listener = HttpListener(
        OpenInferenceRoutes(engine),
        max_body_bytes=settings.server.max_body_bytes,
        idle_s=60.0,
        request_s=60.0,
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(listener.protocol, "127.0.0.1", 0)

    def metrics():
        return exposition.pieces(facts.snapshot(engine, connections=len(listener.connections)))

    runner = web.AppRunner(AdminRoutes(engine, metrics=metrics, hosts=TrustedHosts()).application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = server.sockets[0].getsockname()[1]
    admin_port = runner.addresses[0][1]
    started.set_result(Gateway(engine, listener, home, loop, port, admin_port))
    try:
        await stop.wait()
    finally:
        server.close()
        listener.close()
        await runner.cleanup()
        await engine.close()
