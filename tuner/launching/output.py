"""What a server writes: read to its end, the last lines kept, the rest in the study's log.

In: the read end of a pipe. Out: the last line for an error, and one event per line. A reader of its
own takes it off the pipe, so that a talkative server never waits for the tuner; what it says beyond
`MOST_LOGGED` lines is counted and not kept.
"""

from __future__ import annotations

import collections
import json
import logging
import threading
from typing import IO, Any

KEPT_LINES = 20
MOST_LOGGED = 2_000
"""Lines of one server that go to the log: one that logs each request would fill the disk."""
MOST_BYTES = 8_192
"""Of one line; what is longer is cut into several."""
_log = logging.getLogger(__name__)


class Output:
    """Reads a server's output to its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._read, name="engine-output", daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """The newest line that is not a log event, else the newest event's text."""
        lines = list(self._lines)
        for line in reversed(lines):
            if not line.startswith("{"):
                return line
        return _event_text(lines[-1]) if lines else ""

    def join(self) -> None:
        """Wait for the end of the stream; a process that outlives its server must not hold us."""
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._stream.close()

    def _read(self) -> None:
        said = 0
        for raw in iter(lambda: self._stream.readline(MOST_BYTES), b""):
            line = raw.decode(errors="replace").rstrip()
            if not line:
                continue
            self._lines.append(line)
            said += 1
            if said <= MOST_LOGGED:
                _log.info("engine said", extra={"fields": {"said": _parsed(line)}})
        if said > MOST_LOGGED:
            fields = {"lines": said, "logged": MOST_LOGGED}
            _log.info("engine said more than is logged", extra={"fields": fields})


def _parsed(line: str) -> Any:
    """The server's event as data, or the line as it is."""
    try:
        return json.loads(line)
    except ValueError:
        return line


def _event_text(line: str) -> str:
    event = _parsed(line)
    if not isinstance(event, dict):
        return line
    return str(event.get("error") or event.get("event") or line)
