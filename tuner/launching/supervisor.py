"""Supervisor of another engine's server, which ends all its processes with it or the tuner.

    python -m tuner.launching.supervisor        takes its order from a control channel

As a subreaper (PR_SET_CHILD_SUBREAPER) it inherits every orphaned descendant, even from another
session. In: one order with `command`, `environment`, `directory`, `groups` (files of control
groups to join), `signal`, `grace_s`. Out: {"pid": ...} or {"failed": why, "limits": whether a group
was the reason}, then {"ended": exit status, negative for a signal}. When the channel closes, the
server gets its signal, and after `grace_s` whatever is left gets SIGKILL. If the supervisor is
killed, the kernel kills the server (`end_with_parent`); its control group identifies the rest
(`serving.system.cgroups.manager`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import socket
import subprocess
import time
from typing import Any

from serving.system import process_identity
from serving.system.control_channel import Closed, ControlChannel
from serving.system.end_with_parent import end_with

_PR_SET_CHILD_SUBREAPER = 36
CLEANED_S = 5.0
"""Maximum time to wait until killed processes have ended."""
RETRY_S = 0.005


class Supervisor:
    """Supervisor of one server and its descendants."""

    def __init__(self, tuner: ControlChannel, order: dict[str, Any]) -> None:
        self._tuner = tuner
        self._order = order
        self._ended: int | None = None
        self._woken, self._wakeup = os.pipe()
        for descriptor in (self._woken, self._wakeup):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run the server until it or the tuner ends, and clean up."""
        if not self._start():
            return
        self._wait(until_s=None, watched=[self._woken, self._tuner.sock])
        if self._ended is None:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, self._order["signal"])
            self._wait(until_s=time.monotonic() + self._order["grace_s"], watched=[self._woken])
        if self._ended is not None:
            self._report(ended=self._ended)
        self._kill_the_rest()

    def _start(self) -> bool:
        order, parent = self._order, os.getpid()
        groups: list[int] = []

        def prepare() -> None:
            end_with(parent, signal.SIGKILL)
            for descriptor in groups:
                os.write(descriptor, b"0")

        try:
            groups += [os.open(path, os.O_WRONLY) for path in order["groups"]]
            self._process = subprocess.Popen(  # noqa: S603 - what the user's engine file says
                order["command"],
                env=order["environment"],
                cwd=order["directory"],
                stdin=subprocess.DEVNULL,
                stdout=2,
                stderr=2,
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            missing = error.filename or order["command"][0]
            self._report(failed=f"{missing}: {error.strerror or error}", limits=False)
            return False
        except subprocess.SubprocessError:  # from `prepare`: a group cannot be joined
            self._report(failed="the server cannot join its control group", limits=True)
            return False
        finally:
            for descriptor in groups:
                os.close(descriptor)
        self._report(pid=self._process.pid)
        return True

    def _report(self, **facts: object) -> None:
        with contextlib.suppress(Closed):
            self._tuner.send(facts)

    def _wait(self, *, until_s: float | None, watched: list[int | socket.socket]) -> None:
        while True:
            self._reap()
            if self._ended is not None:
                return
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            readable, _, _ = select.select(watched, [], [], left_s)
            if self._woken in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            if self._tuner.sock in readable:  # the tuner sends no more: this is its end
                return

    def _reap(self) -> bool:
        assert self._process is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._process.pid:
                self._ended = self._process.returncode = os.waitstatus_to_exitcode(status)

    def _kill_the_rest(self) -> None:
        until_s = time.monotonic() + CLEANED_S
        while self._reap() and time.monotonic() < until_s:
            for pid in _descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(RETRY_S)


def _descendants(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        if fields := process_identity.stat_fields(int(path.name)):
            parents[int(path.name)] = int(fields[1])
    found: set[int] = set()
    wave = {pid}
    while wave := {child for child, parent in parents.items() if parent in wave} - found:
        found |= wave
    return found


def main() -> None:
    """Execute the order from the tuner."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    tuner = ControlChannel.to_parent()
    with contextlib.suppress(Closed):
        order, _ = tuner.receive()
        Supervisor(tuner, order).run()


if __name__ == "__main__":
    main()
