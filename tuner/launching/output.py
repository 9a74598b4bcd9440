"""Server output: its last lines in memory, and up to `MAX_LOGGED` lines in the study's log.

A thread drains the pipe, so that the server never blocks.
"""

from __future__ import annotations

import collections
import json
import logging
import signal
import threading
from typing import IO, Any

RETAINED_LINES = 20
MAX_LOGGED = 2_000
"""Maximum number of lines logged per server, to limit disk use."""
MAX_BYTES = 8_192
"""Maximum length of a line in bytes; longer lines are split."""
_log = logging.getLogger(__name__)


class Output:
    """Reader of a server's output."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: collections.deque[str] = collections.deque(maxlen=RETAINED_LINES)
        self._thread = threading.Thread(target=self._read, name="engine-output", daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """Return the last line that is not a log event, or else the text of the last event."""
        lines = list(self._lines)
        for line in reversed(lines):
            if not line.startswith("{"):
                return line
        return _event_text(lines[-1]) if lines else ""

    def join(self) -> None:
        """Wait until the stream ends, but not for surviving descendants."""
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._stream.close()

    def _read(self) -> None:
        said = 0
        for raw in iter(lambda: self._stream.readline(MAX_BYTES), b""):
            line = raw.decode(errors="replace").rstrip()
            if not line:
                continue
            self._lines.append(line)
            said += 1
            if said <= MAX_LOGGED:
                _log.info("engine said", extra={"fields": {"said": _parse_line(line)}})
        if said > MAX_LOGGED:
            fields = {"lines": said, "logged": MAX_LOGGED}
            _log.info("engine output beyond the limit is not logged", extra={"fields": fields})


def describe_exit(status: int) -> str:
    """Describe an exit status in words; a negative status is a signal."""
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _event_text(line: str) -> str:
    event = _parse_line(line)
    if not isinstance(event, dict):
        return line
    return str(event.get("error") or event.get("event") or line)
