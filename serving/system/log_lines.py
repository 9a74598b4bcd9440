"""JSON log lines on stderr, shared by gateway, fork servers and replicas; `pid` tells which."""

from __future__ import annotations

import json
import logging

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formatter that writes one JSON object per record, including its `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
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
    """Configure this process's logging; call only from main modules."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler])
