"""`log.jsonl`: events of one command, one JSON object per line.

Modules log as usual: `logging.getLogger(__name__).info("trial ended", extra={"fields": {...}})`.
Events are buffered until the folder is known. Lines that cannot be written are dropped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import tempfile
import traceback
from typing import Any, Self

LOGGERS = ("tuner", "serving")
RETAINED_EVENTS = 1000


class EventLog(logging.Handler):
    """Log handler that keeps events until its file is known; use as a context manager."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._path: pathlib.Path | None = None
        self._waiting: list[str] = []

    def __enter__(self) -> Self:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        return self

    def __exit__(self, *_exception: object) -> None:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.propagate = True
        self.close()

    def write_to(self, path: pathlib.Path) -> None:
        """Write buffered and future events to a file."""
        self._path = path
        waiting, self._waiting = self._waiting, []
        self._append("".join(waiting))

    def path_for_details(self) -> pathlib.Path:
        """Return the log file, or a new temporary one if none is known yet."""
        if self._path is None:
            with tempfile.NamedTemporaryFile(
                prefix="luthier-", suffix=".jsonl", delete=False
            ) as file:
                self.write_to(pathlib.Path(file.name))
        assert self._path is not None
        return self._path

    def emit(self, record: logging.LogRecord) -> None:
        """Write or buffer an event."""
        line = json.dumps(_event(record), default=str) + "\n"
        if self._path is not None:
            self._append(line)
        elif len(self._waiting) < RETAINED_EVENTS:
            self._waiting.append(line)

    def _append(self, text: str) -> None:
        assert self._path is not None
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(text)


def _event(record: logging.LogRecord) -> dict[str, Any]:
    event: dict[str, Any] = {
        "at": round(record.created, 3),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
    }
    event |= getattr(record, "fields", {})
    if record.exc_info and record.exc_info[1] is not None:
        event["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
    return event
