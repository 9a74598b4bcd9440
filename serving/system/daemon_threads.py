"""Blocking calls on daemon threads, which do not delay the process's exit as an executor's threads do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def run_in_daemon_thread(
    request: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> asyncio.Future[R]:
    """Run a call on its own thread; cancelling the future does not stop the call."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[R] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not answer.done():
            outcome()

    def work() -> None:
        try:
            outcome = functools.partial(answer.set_result, request(*args, **kwargs))
        except Exception as error:  # raised to the awaiting caller
            outcome = functools.partial(answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name="blocking request", daemon=True).start()
    return answer
