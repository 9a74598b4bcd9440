"""Offset of another machine's CLOCK_MONOTONIC, from questions and answers (Cristian, 1989)."""

from __future__ import annotations

import collections
import math
from typing import NamedTuple

_SAMPLES = 8
DRIFT = 5e-5
"""Assumed difference of the rates of two clocks; NTP slews one by up to ten times as much, but not
both ways at once (RFC 5905 assumes 1.5e-5)."""


class _Sample(NamedTuple):
    offset_s: float
    error_s: float
    """Half of the round trip: the answer's time lies somewhere in it."""
    at_s: float


class RemoteClock:
    """Another machine's clock; as long as it was never asked, this machine's own."""

    __slots__ = ("_samples", "error_s", "offset_s")

    def __init__(self) -> None:
        self.offset_s = 0.0
        """Its seconds minus this machine's."""
        self.error_s = 0.0
        """Maximum error of the offset when it was last asked, if the drift is as assumed."""
        self._samples: collections.deque[_Sample] = collections.deque(maxlen=_SAMPLES)

    def observe(self, sent_s: float, told_s: float, heard_s: float) -> None:
        """Take note of an answer.

        Args:
            sent_s: when the question was sent, by this machine's clock.
            told_s: what the other clock said.
            heard_s: when the answer was heard, by this machine's clock.
        """
        error_s = 0.5 * (heard_s - sent_s)
        self._samples.append(_Sample(told_s - sent_s - error_s, error_s, heard_s))
        best_s = math.inf
        for sample in self._samples:
            could_s = sample.error_s + DRIFT * (heard_s - sample.at_s)
            if could_s <= best_s:
                best_s, self.offset_s = could_s, sample.offset_s
        self.error_s = best_s
