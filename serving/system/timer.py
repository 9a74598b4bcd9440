"""Timer for an event loop, finer than a millisecond.

uvloop rounds timers to whole milliseconds, longer than most batches take. So this timer is a
timerfd, set to absolute CLOCK_MONOTONIC time, the clock of `time.monotonic`.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import time
from collections.abc import Callable

_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """Timer that calls `on_expired` at the earliest time set since its last expiry.

    A later time never replaces an earlier one: an early expiry is cheaper than a system call per
    change.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._at_s = math.inf
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer can be created")
        self._spec = _Timespec()
        self._spec_pointer = ctypes.byref(self._spec)
        loop.add_reader(self._fd, self._on_readable)

    def set(self, at_s: float | None) -> None:
        """Expire at `at_s` (`time.monotonic`) at the latest; None changes nothing."""
        if at_s is None or at_s >= self._at_s:
            return
        self._at_s = at_s
        seconds, rest = divmod(max(at_s, 1e-9), 1.0)
        self._spec.value_s = int(seconds)
        self._spec.value_ns = min(999_999_999, math.ceil(rest * 1e9))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec_pointer, None)

    def close(self) -> None:
        """Stop the timer for good."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._at_s = math.inf
        self._on_expired()
