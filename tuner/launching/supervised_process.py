"""Client of a supervisor: another engine's server as one process that can be ended whole.

`supervisor` handles the server's children and a killed tuner. Blocking, with timeouts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from tuner.errors import LaunchFailed
from tuner.launching import supervisor
from tuner.launching.output import Output
from tuner.values.trial import Cause

START_TIMEOUT_S = 20.0
"""Wait for the supervisor's first report: two process starts."""
REPORT_TIMEOUT_S = 2.0
"""Wait for the report of an ended server."""
_SUPERVISOR = str(pathlib.Path(supervisor.__file__).resolve())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to start and end a server."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """All variables."""
    directory: pathlib.Path
    groups: tuple[pathlib.Path, ...]
    """Process files of control groups that the server joins."""
    stop_signal: signal.Signals
    grace_s: float

    def line(self) -> bytes:
        """Return the line for the supervisor."""
        data = {
            "command": self.command,
            "environment": dict(self.environment),
            "directory": str(self.directory),
            "groups": [str(path) for path in self.groups],
            "signal": int(self.stop_signal),
            "grace_s": self.grace_s,
        }
        return json.dumps(data).encode() + b"\n"


class SupervisedProcess:
    """Server with all its processes, from `start` to `stop`."""

    def __init__(self, keeper: subprocess.Popen[bytes], output: Output, order: ProcessSpec) -> None:
        self._keeper = keeper
        self._order = order
        self._reports = b""
        self._exit_status: int | None = None
        self.output = output
        self.pid = 0

    @classmethod
    def start(cls, order: ProcessSpec) -> SupervisedProcess:
        """Start a server's process.

        Raises:
            LaunchFailed: `start`, no such program or folder; `limits`.
        """
        keeper = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-I", "-S", _SUPERVISOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert keeper.stdin is not None
        assert keeper.stderr is not None
        made = cls(keeper, Output(keeper.stderr), order)
        try:
            with contextlib.suppress(BrokenPipeError):  # then the report says why, if anything
                keeper.stdin.write(order.line())
            report = made._next_report(START_TIMEOUT_S)
            if report is None or "pid" not in report:
                raise _not_started(report, made.output)
            made.pid = report["pid"]
        except BaseException:
            made.stop()
            raise
        return made

    def is_running(self) -> bool:
        """Whether the server's first process is alive."""
        if self._exit_status is None and _has_ended(self.pid):
            self.exit_status()
            return False
        return self._exit_status is None

    def exit_status(self) -> int | None:
        """Return its status, negative for a signal; None if ended by the supervisor."""
        if self._exit_status is None:
            report = self._next_report(REPORT_TIMEOUT_S)
            self._exit_status = None if report is None else report.get("ended")
        return self._exit_status

    def stop(self) -> None:
        """End the server with all its processes."""
        keeper = self._keeper
        if keeper.stdin is not None and not keeper.stdin.closed:
            keeper.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(timeout=self._order.grace_s + supervisor.CLEANED_S + REPORT_TIMEOUT_S)
        finally:
            if keeper.poll() is None:
                keeper.kill()  # the kernel kills the server with it
                keeper.wait()
            self.output.join()
            if keeper.stdout is not None:
                keeper.stdout.close()

    def _next_report(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the supervisor's next report; None at its end or the timeout."""
        stream = self._keeper.stdout
        if stream is None or stream.closed:
            return None
        until_s = time.monotonic() + timeout_s
        while b"\n" not in self._reports:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
                return None
            part = os.read(stream.fileno(), 65536)
            if not part:
                return None
            self._reports += part
        line, _, self._reports = self._reports.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def _not_started(report: dict[str, Any] | None, output: Output) -> LaunchFailed:
    if report is None:
        output.join()
        said = output.last_line()
        return LaunchFailed("start", f"the server cannot be started{': ' * bool(said)}{said}")
    cause: Cause = "limits" if report["limits"] else "start"
    return LaunchFailed(cause, f"the server cannot be started: {report['failed']}")


def _has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
