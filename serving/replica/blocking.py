"""Blocking requests on threads that keep nobody from ending.

In: a call that waits for another program. Out: its answer, in the event loop. Threads of an executor are joined when
the process ends, however long what they wait for says nothing; these are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def asked(request: Callable[[], R]) -> asyncio.Future[R]:
    """Begin a call on a thread of its own; who gives its answer up does not end it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[R] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not answer.done():
            outcome()

    def work() -> None:
        try:
            outcome = functools.partial(answer.set_result, request())
        except Exception as error:  # whoever awaits the answer gets it
            outcome = functools.partial(answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name="blocking request", daemon=True).start()
    return answer
