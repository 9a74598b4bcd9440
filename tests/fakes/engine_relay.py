"""A way to the real Docker engine that can be cut: its requests pass through a socket of one's own."""

import contextlib
import os
import selectors
import socket
import threading


class EngineRelay:
    """Passes connections on to the engine that DOCKER_HOST names, from `open` to `cut`; may be opened again."""

    def __init__(self, path):
        self.address = f"unix://{path}"
        self._path = path
        self._engine = os.environ["DOCKER_HOST"].removeprefix("unix://")
        self._sockets = []
        self._thread = None

    def open(self):
        """From now on the engine answers."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    def cut(self):
        """The engine is away: its socket is gone, and so are all connections."""
        if self._thread is None:
            return
        self._path.unlink()
        self._wake.close()
        self._thread.join(10)
        self._thread = None

    def _pass_on(self):
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as owns:
            for sock in (self._listener, self._woken):
                owns.enter_context(sock)
                selector.register(sock, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        client = owns.enter_context(self._listener.accept()[0])
                        engine = owns.enter_context(socket.socket(socket.AF_UNIX))
                        engine.connect(self._engine)
                        selector.register(client, selectors.EVENT_READ, engine)
                        selector.register(engine, selectors.EVENT_READ, client)
                        continue
                    self._carry(selector, key.fileobj, key.data)

    @staticmethod
    def _carry(selector, source, target):
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65_536)
            target.sendall(data)
        if not data:
            selector.unregister(source)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
