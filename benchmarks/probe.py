"""A client of its own beside a load: asks again and again, and remembers what each answer said.

In: a port and a request. Out: one `Answer` per request, in order. It runs in a thread, on one keep-alive
connection, with a pause between requests, and never gives up. Knows nothing of what is looked for.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

TIMEOUT_S = 10.0


class Answer(NamedTuple):
    """What one request heard; status 0 where nothing."""

    at_s: float  # time.monotonic() when it had come
    status: int
    said: Any


class Probe:
    """Context manager: asks while the block runs; read `answers` after it."""

    def __init__(
        self,
        port: int,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        read: Callable[[dict[str, Any], bytes], Any],
        pause_s: float = 0.005,
    ) -> None:
        """Nothing is asked yet.

        Args:
            port: of the server.
            path: what is posted to.
            body: of every request.
            headers: of every request.
            read: what is kept of an answer, from its JSON header and the bytes behind it.
            pause_s: between an answer and the next request.
        """
        self.answers: list[Answer] = []
        self._port, self._path, self._body, self._headers = port, path, body, dict(headers)
        self._read, self._pause_s = read, pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="probe")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(2 * TIMEOUT_S)

    @property
    def failed(self) -> int:
        """Requests that were not answered with 200."""
        return sum(answer.status != http.client.OK for answer in self.answers)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            while not self._stop.wait(self._pause_s):
                status, said = 0, None
                try:
                    connection.request("POST", self._path, self._body, self._headers)
                    response = connection.getresponse()
                    status, data = response.status, response.read()
                    if status == http.client.OK:
                        length = int(response.headers["Inference-Header-Content-Length"])
                        said = self._read(json.loads(data[:length]), data[length:])
                except (OSError, http.client.HTTPException):
                    connection.close()  # it is opened again by the next request
                self.answers.append(Answer(time.monotonic(), status, said))
