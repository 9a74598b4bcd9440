"""The records of a phase while they are made: one growing array per column, 30 bytes a request.

In: one row per finished request, and now and then the CPU time that the client has used. Out: the columns'
bytes, one after the other, in native byte order (the reader is a process of the same machine). It imports
next to nothing, as the client's process uses it.
"""

from __future__ import annotations

from array import array

COLUMNS = (
    ("intended_s", "d"),
    ("started_s", "d"),
    ("finished_s", "d"),
    ("status", "h"),
    ("connection", "i"),
)
"""Names (fields of `tuner.values.RequestRecords`) and type codes (of `array`), in the order of the
bytes."""


class Columns:
    """Rows in order of completion."""

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
        """Add one finished request; status 0 where there was no answer."""
        self.intended_s.append(intended_s)
        self.started_s.append(started_s)
        self.finished_s.append(finished_s)
        self.status.append(status)
        self.connection.append(connection)

    def as_bytes(self) -> bytes:
        """All columns in the order of `COLUMNS`."""
        return b"".join(getattr(self, name).tobytes() for name, _ in COLUMNS)


class CpuReadings:
    """CPU time that the client had used, at moments that ascend."""

    __slots__ = ("at_s", "used_s")

    def __init__(self) -> None:
        self.at_s = array("d")
        self.used_s = array("d")

    def __len__(self) -> int:
        return len(self.at_s)

    def append(self, at_s: float, used_s: float) -> None:
        """Add a reading."""
        self.at_s.append(at_s)
        self.used_s.append(used_s)

    def as_bytes(self) -> bytes:
        """The moments, then what was used."""
        return self.at_s.tobytes() + self.used_s.tobytes()
