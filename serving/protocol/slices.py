"""Long work of the event loop, done a slice at a time: whatever else there is to do comes between.

In: iterators whose every step is short, and whom to tell. Out: the pieces that came of one, or what it raised. A
turn of the loop does one step of one of them, in turns, so that however many there are they leave the loop to
everybody else. A thread would hold the interpreter's lock for as long, a switch of threads at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

Ended = Callable[[list[bytes] | Exception], None]
"""Called once, with all pieces or with what was raised."""


class Slow:
    """One piece of work."""

    __slots__ = ("ended", "pieces", "steps")

    def __init__(self, steps: Iterator[bytes], ended: Ended) -> None:
        self.steps = steps
        self.pieces: list[bytes] = []
        self.ended: Ended | None = ended

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.ended = None


class Slices:
    """All such work of one loop."""

    def __init__(self) -> None:
        """Nothing is to be done."""
        self._waiting: deque[Slow] = deque()

    def begin(self, steps: Iterator[bytes], ended: Ended) -> Slow:
        """Take something up; `ended` is called later, never before this returns."""
        slow = Slow(steps, ended)
        self._waiting.append(slow)
        if len(self._waiting) == 1:
            self._soon()
        return slow

    def _soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """One step of the first one, which then waits behind the others."""
        slow = self._waiting[0]
        outcome: list[bytes] | Exception | None = None
        if slow.ended is not None:
            try:
                slow.pieces.append(next(slow.steps))
            except StopIteration:
                outcome = slow.pieces
            except Exception as error:  # whoever waits for it is told
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
