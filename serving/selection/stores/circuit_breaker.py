"""Circuit breaker for a state server, so that an outage does not block the event loop.

After a failure, requests raise `NotReady` at once while the server is probed at intervals.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import TypeVar

from serving.errors import NotReady

Answer = TypeVar("Answer")


class CircuitBreaker:
    """One server, used by one thread."""

    def __init__(
        self, name: str, probe: Callable[[], object], *, timeout_s: float, retry_s: float
    ) -> None:
        """Start with a closed circuit.

        Args:
            name: for error texts.
            probe: raises unless the server is available.
            retry_s: minimum interval between probes.
        """
        self._name = name
        self._probe = probe
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "states-asked")
        self._reason: str | None = None
        self._attempt: concurrent.futures.Future[object] | None = None
        self._next_attempt_s = 0.0

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Run a request in the thread.

        Raises:
            NotReady: the server is unavailable.
        """
        if self._reason is not None and not self._is_back():
            raise NotReady(f"{self._name} does not answer: {self._reason}")
        asked = self._thread.submit(question)
        try:
            return asked.result(self._timeout_s)
        except concurrent.futures.TimeoutError:
            reason = f"no response within {self._timeout_s:g} s"
        except Exception as error:  # clients raise many types
            reason = str(error)
        asked.cancel()
        self._reason = reason
        self._next_attempt_s = time.monotonic() + self._retry_s
        raise NotReady(f"{self._name} does not answer: {reason}")

    def close(self) -> None:
        """Release the thread, even if it still waits."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_back(self) -> bool:
        attempt = self._attempt
        if attempt is None:
            if time.monotonic() >= self._next_attempt_s:
                self._attempt = self._thread.submit(self._probe)
            return False
        if not attempt.done():
            return False
        self._attempt = None
        error = attempt.exception()
        if error is not None:
            self._reason = str(error)
            self._next_attempt_s = time.monotonic() + self._retry_s
            return False
        self._reason = None
        return True
