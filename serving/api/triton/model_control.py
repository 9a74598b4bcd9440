"""Loads and unloads that clients ask for, and that continue without their clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from serving.errors import ServingError

log = logging.getLogger(__name__)

Answer = Callable[[ServingError | None], None]
"""Sends the outcome; None: done."""


class Change:
    """Exchange of the connection that asked."""

    def __init__(self, response: Answer) -> None:
        self._answer: Answer | None = response

    def cancel(self) -> None:
        """Drop the response: the client disconnected."""
        self._answer = None

    def on_finished(self, task: asyncio.Task[None]) -> None:
        """Send the outcome."""
        error = ServingError("the server is stopping") if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ServingError):
            log.error("loading hit a server error", exc_info=error)
            error = ServingError("internal error; the server's log has the reason")
        if self._answer is not None:
            self._answer(error)


class Changes:
    """All in progress."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None], response: Answer, *, name: str) -> Change:
        """Begin one."""
        change = Change(response)
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(change.on_finished)
        return change

    async def close(self) -> None:
        """Cancel all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
