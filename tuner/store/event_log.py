"""`log.jsonl`: the events of one command, one JSON object a line.

Any module logs with the standard library: `logging.getLogger(__name__).info("trial ended",
extra={"fields": {...}})`. The command that owns the run attaches one `EventLog`, which keeps events
until it knows the folder they belong to. Time stamps are Unix seconds, for people. A line that
cannot be written (full disk) is dropped: the log never ends a study.
"""

from __future__ import annotations

import json
import logging
import pathlib
import tempfile
import traceback
from typing import Any, Self

LOGGERS = ("tuner", "serving")
KEPT_EVENTS = 1000
"""Most events kept before a folder is known."""


class EventLog(logging.Handler):
    """Writes events to a file that becomes known later; use as a context manager."""

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
        """Send what was kept, and everything from now on, to the end of a file."""
        self._path = path
        waiting, self._waiting = self._waiting, []
        self._append("".join(waiting))

    def path_for_details(self) -> pathlib.Path:
        """The file with the details of an unexpected end, in the temporary folder if need be."""
        if self._path is None:
            with tempfile.NamedTemporaryFile(
                prefix="luthier-", suffix=".jsonl", delete=False
            ) as file:
                self.write_to(pathlib.Path(file.name))
        assert self._path is not None
        return self._path

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event."""
        line = json.dumps(_event(record), default=str) + "\n"
        if self._path is not None:
            self._append(line)
        elif len(self._waiting) < KEPT_EVENTS:
            self._waiting.append(line)

    def _append(self, text: str) -> None:
        assert self._path is not None
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            return


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
