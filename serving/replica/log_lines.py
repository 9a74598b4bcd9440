"""Logs as lines of JSON on stderr, one object per event: the form that gateway, template and replicas share.

In: log records, whose fields beside the message were given by `extra`. Out: lines, told apart by `pid`,
for all these processes write to one stream.
"""

from __future__ import annotations

import json
import logging

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object per event, with its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        event: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "room": record.name,
            "pid": record.process,
        }
        event |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def log_lines(level: int | str) -> None:
    """Have this process log so, from a level on; for the file that a process starts with."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler])
