"""A server of states that may be out of reach, asked without holding up the event loop.

In: questions. Out: their answers, within a time that an event loop can spare; or `NotReady`. A question is
asked in a thread of its own. The first one that is not answered in time or fails breaks the circuit: those
that follow fail at once, and in the background the server is tried again, at most once in a while. So an
outage costs the event loop one short wait, however long it lasts and however many ask.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import TypeVar

from serving.errors import NotReady

Answer = TypeVar("Answer")


class Reached:
    """One server, asked by one thread."""

    def __init__(
        self, name: str, probe: Callable[[], object], *, patience_s: float, retry_s: float
    ) -> None:
        """It is taken to be in reach.

        Args:
            name: of the server, for the error's text.
            probe: returns when the server is there, and raises where it is not.
            patience_s: longest wait for an answer.
            retry_s: least time between two attempts to reach it.
        """
        self._name = name
        self._probe = probe
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "states-asked")
        self._reason: str | None = None
        """Why it is out of reach; None: it is in reach."""
        self._attempt: concurrent.futures.Future[object] | None = None
        self._next_attempt_s = 0.0

    def ask(self, question: Callable[[], Answer], *, patience_s: float | None = None) -> Answer:
        """The answer to a question.

        Args:
            question: asked in a thread.
            patience_s: longest wait for this one, where it is no matter of the event loop.

        Raises:
            NotReady: the server is out of reach.
        """
        if self._reason is not None and not self._is_back():
            raise NotReady(f"{self._name} does not answer: {self._reason}")
        if patience_s is None:
            patience_s = self._patience_s
        asked = self._thread.submit(question)
        try:
            return asked.result(patience_s)
        except concurrent.futures.TimeoutError:
            reason = f"nothing came within {patience_s:g} s"
        except Exception as error:  # whatever a vendor raises
            reason = str(error)
        asked.cancel()
        self._reason = reason
        self._next_attempt_s = time.monotonic() + self._retry_s
        raise NotReady(f"{self._name} does not answer: {reason}")

    def close(self) -> None:
        """Let go of the thread, which may still wait for the server."""
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
