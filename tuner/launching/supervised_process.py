"""Client of a supervisor, which can end another engine's server with all its processes.

`supervisor` handles the server's children and a killed tuner. Blocking, with timeouts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from typing import Any

from serving.system import process_identity
from serving.system.control_channel import Closed, ControlledProcess
from tuner.errors import LaunchFailed
from tuner.launching import supervisor
from tuner.launching.output import Output
from tuner.values.trial import Cause

START_TIMEOUT_S = 20.0
"""Time to wait for the supervisor's first report, which takes two process starts."""
REPORT_TIMEOUT_S = 2.0
"""Time to wait for the report that a server has ended."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How a supervisor starts and ends a server."""

    command: tuple[str, ...]
    environment: dict[str, str]
    """The server's complete environment."""
    directory: str
    groups: tuple[str, ...]
    """Process files of the control groups that the server joins."""
    signal: int
    grace_s: float


class SupervisedProcess:
    """Server and all its processes, from `start` to `stop`."""

    def __init__(self, keeper: ControlledProcess, order: ProcessSpec) -> None:
        assert keeper.process.stdout is not None
        self._keeper = keeper
        self._order = order
        self._exit_status: int | None = None
        self.output = Output(keeper.process.stdout)
        self.pid = 0

    @classmethod
    def start(cls, order: ProcessSpec) -> SupervisedProcess:
        """Start a server's process, or raise LaunchFailed (`start`, `limits`) with the reason."""
        keeper = ControlledProcess.start("tuner.launching.supervisor", output=subprocess.PIPE)
        made = cls(keeper, order)
        try:
            with contextlib.suppress(Closed, TimeoutError):  # then the report says why, if anything
                made._keeper.send(dataclasses.asdict(order), timeout_s=START_TIMEOUT_S)
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
        if self._exit_status is None and process_identity.has_ended(self.pid):
            self.exit_status()
            return False
        return self._exit_status is None

    def exit_status(self) -> int | None:
        """Return the status, negative for a signal, or None if the supervisor ended the server."""
        if self._exit_status is None:
            report = self._next_report(REPORT_TIMEOUT_S)
            self._exit_status = None if report is None else report.get("ended")
        return self._exit_status

    def stop(self) -> None:
        """End the server and all its processes."""
        try:
            # If it is killed, the kernel kills the server with it.
            self._keeper.end(self._order.grace_s + supervisor.CLEANED_S + REPORT_TIMEOUT_S)
        finally:
            self.output.join()

    def _next_report(self, timeout_s: float) -> dict[str, Any] | None:
        with contextlib.suppress(Closed, TimeoutError):
            return self._keeper.receive(timeout_s=timeout_s)[0]
        return None


def _not_started(report: dict[str, Any] | None, output: Output) -> LaunchFailed:
    if report is None:
        output.join()
        said = output.last_line()
        return LaunchFailed("start", f"the server cannot be started{': ' * bool(said)}{said}")
    cause: Cause = "limits" if report["limits"] else "start"
    return LaunchFailed(cause, f"the server cannot be started: {report['failed']}")
