"""A query port in a thread over any routes: real sockets and the real HTTP protocol."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import threading

import uvloop

from serving.api.http.listener import HttpListener


class Port:
    """The running port, seen from the test's thread."""

    def __init__(self, listener, loop, number):
        self.listener = listener
        self.loop = loop
        self.number = number

    def request(self, method, path, body=None, headers=None):
        """One HTTP request; returns status, head fields and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.number, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def json(self, method, path, data=None):
        """One JSON request; returns status and the decoded body."""
        body = data if data is None or isinstance(data, bytes) else json.dumps(data)
        status, _, answer = self.request(method, path, body)
        return status, json.loads(answer)


@contextlib.contextmanager
def listening(routes, max_body_bytes=8_000_000, door=None, tls=None):
    """A port over these routes, closed at the end."""
    started = concurrent.futures.Future()
    stop = asyncio.Event()

    async def serve():
        listener = HttpListener(
            routes, max_body_bytes=max_body_bytes, idle_s=60.0, request_s=60.0, door=door
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(listener.protocol, "127.0.0.1", 0, ssl=tls)
        started.set_result(Port(listener, loop, server.sockets[0].getsockname()[1]))
        await stop.wait()
        server.close()
        listener.close()

    def run():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    port = started.result(20)
    try:
        yield port
    finally:
        port.loop.call_soon_threadsafe(stop.set)
        thread.join(20)
    assert not thread.is_alive()
