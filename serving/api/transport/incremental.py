"""Incremental jobs: long work on the event loop, one short step per turn.

A thread would hold the interpreter's lock for a whole switch interval.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

Ended = Callable[[list[bytes] | Exception], None]
"""Callback that is called once, with all pieces or the exception."""


class IncrementalJob:
    """Long work and the pieces it has made so far."""

    __slots__ = ("ended", "pieces", "steps")

    def __init__(self, steps: Iterator[bytes], ended: Ended) -> None:
        self.steps = steps
        self.pieces: list[bytes] = []
        self.ended: Ended | None = ended

    def cancel(self) -> None:
        """Drop the job without calling back."""
        self.ended = None


class IncrementalRunner:
    """Runner for all incremental jobs of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[IncrementalJob] = deque()

    def begin(self, steps: Iterator[bytes], ended: Ended) -> IncrementalJob:
        """Start a job; `ended` is never called before this returns."""
        slow = IncrementalJob(steps, ended)
        self._waiting.append(slow)
        if len(self._waiting) == 1:
            self._soon()
        return slow

    def _soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        slow = self._waiting[0]
        outcome: list[bytes] | Exception | None = None
        if slow.ended is not None:
            try:
                slow.pieces.append(next(slow.steps))
            except StopIteration:
                outcome = slow.pieces
            except Exception as error:  # passed to the callback
                outcome = error
        self._waiting.popleft()
        if slow.ended is not None and outcome is None:
            self._waiting.append(slow)
        if self._waiting:
            self._soon()
        ended = slow.ended
        if ended is not None and outcome is not None:
            slow.ended = None
            ended(outcome)
