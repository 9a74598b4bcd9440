"""Growing columns with a phase's records, 30 bytes per request."""

from __future__ import annotations

import bisect
from array import array

COLUMNS = (
    ("intended_s", "d"),
    ("started_s", "d"),
    ("finished_s", "d"),
    ("status", "h"),
    ("connection", "i"),
)
"""Fields of `tuner.values.request_records.RequestRecords` with `array` type codes, in order."""


class Columns:
    """Request records in order of completion."""

    __slots__ = ("connection", "finished_s", "intended_s", "started_s", "status")

    def __init__(self) -> None:
        self.intended_s = array("d")
        self.started_s = array("d")
        self.finished_s = array("d")
        self.status = array("h")
        self.connection = array("i")

    def __len__(self) -> int:
        return len(self.status)

    def append(
        self, intended_s: float, started_s: float, finished_s: float, status: int, connection: int
    ) -> None:
        """Add a finished request; status 0 means that it got no response."""
        self.intended_s.append(intended_s)
        self.started_s.append(started_s)
        self.finished_s.append(finished_s)
        self.status.append(status)
        self.connection.append(connection)

    def mean_ms(self, start_s: float) -> float:
        """Return the mean latency of requests that finished after `start_s`, or 0 without any."""
        first = bisect.bisect_right(self.finished_s, start_s)
        count = len(self.finished_s) - first
        total_s = sum(self.finished_s[first:]) - sum(self.intended_s[first:])
        return 1e3 * total_s / count if count else 0.0

    def as_bytes(self) -> bytes:
        """Return all columns in the order of `COLUMNS`."""
        return b"".join(getattr(self, name).tobytes() for name, _ in COLUMNS)
