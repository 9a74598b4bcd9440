"""The template process: imports a model runtime once, then forks a replica whenever one is asked for.

    python -m serving.replica.template CONTROL_FD KIND

In, on the control socket, JSON lines: {"do": "own", "directory", "limits": {"kind", "roots"}, "program"},
{"do": "start", "worker", "socket", "procs": [..], "environment": {..}, "kept", "cpu", "memory_mb"}, {"do": "limit",
"worker", "cpu", "memory_mb"}, {"do": "kill", "worker"} and {"do": "end"}. Out: {"event": "warm", "forks", "warm_s"},
{"event": "started", "worker", "pid"} and {"event": "ended", "worker", "pid", "code" or "signal"}. What a forked
process does is in `child`.

It owns the clean-up. When the gateway says "end", or the control socket ends because it was killed, the
template kills its replicas, removes the groups and the directory that it was told to own, and
exits. So it must outlive its parent: it has no parent-death signal (that would also fire when the
gateway's thread ends that started it) and runs in a session of its own, where no signal of a terminal
reaches it. Its replicas have one, SIGKILL, so that nothing outlives a killed template.

Replicas that were started as "kept", which says for how long ("takeover_s") and what the next gateway must know of
them, are not killed at once with their gateway: they stay for so long, while the template waits on a socket in its
directory for a gateway that takes it over. That one hands over its error output (`error_output`) and is told {"event":
"left", "program", "forks", "limits", "last", "workers": [..]}, and everything goes on as before.

Only a process of one thread can be forked safely: what other threads hold is locked for ever in the
child. numpy with one BLAS thread starts none; ONNX Runtime starts one on import, for telemetry, unless
ORT_DISABLE_TELEMETRY is set (`forker.environment`). Should a runtime start threads all the same, replicas are
started as fresh processes instead, which takes as long as the import.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import pathlib
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from serving.replica import child, limits, succession
from serving.replica.log_lines import log_lines
from serving.replica.warm import warm_up

log = logging.getLogger(__name__)

_CLEANUP_S = 5.0
_RETRY_S = 0.005
_RECEIVED_BYTES = 65_536
SOCKET = "template.sock"
"""Where the next gateway finds it, in the directory that it owns."""


class Template:
    """The loop: orders in, forks and reports out."""

    def __init__(self, control: socket.socket, *, forks: bool) -> None:
        self._control: socket.socket | None = control
        self._forks = forks
        self._workers: dict[int, int] = {}
        """Pid of every living replica -> its worker number."""
        self._kept: dict[int, dict[str, Any]] = {}
        """Worker -> what the next gateway is told of it; the others end with their gateway."""
        self._last = 0
        """The highest worker number so far."""
        self._directory: str | None = None
        self._limits: dict[str, Any] = {}
        self._program: dict[str, Any] = {}
        self._listener: socket.socket | None = None
        self._is_told_to_end = False
        self._received = b""
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)

    def warm(self, warm_s: float) -> None:
        """Tell that orders can be carried out."""
        self._tell({"event": "warm", "forks": self._forks, "warm_s": warm_s})

    def run(self) -> None:
        """Serve orders until the last gateway has gone."""
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self._serve()
        while not self._is_told_to_end and self._found_next():
            self._serve()

    def close(self) -> None:
        """Kill what lives, and remove what it was told to own; takes a bounded time."""
        until_s = time.monotonic() + _CLEANUP_S
        while self._workers and time.monotonic() < until_s:
            self._kill(*self._workers.values())
            self._reap(tell=False)
            time.sleep(_RETRY_S)
        for root in dict.fromkeys(self._limits.get("roots", {}).values()):
            limits.cleaned(pathlib.Path(root))
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self) -> None:
        """Carry out a gateway's orders, until it has gone."""
        assert self._control is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake_out.fileno() in ready:
                self._drain_wakeups()
                self._reap()
            if self._control.fileno() in ready and not self._read_orders():
                return

    def _found_next(self) -> bool:
        """The gateway was killed: wait for the next one, as long as a replica is kept for it."""
        if self._control is not None:
            self._control.close()
        self._control, self._received = None, b""
        self._kill(*(worker for worker in self._workers.values() if worker not in self._kept))
        if self._listener is None:
            return False
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        began_s = time.monotonic()
        while True:
            self._reap(tell=False)
            kept = [self._kept[one] for one in self._workers.values() if one in self._kept]
            longest_s = max((one["kept"]["takeover_s"] for one in kept), default=0.0)
            left_s = began_s + longest_s - time.monotonic()
            if left_s <= 0.0:
                return False
            ready = {descriptor for descriptor, _ in poll.poll(math.ceil(1e3 * left_s))}
            if self._wake_out.fileno() in ready:
                self._drain_wakeups()
            if self._listener.fileno() in ready:
                self._control = succession.met(self._listener)
                if self._control is not None:
                    self._tell(self._left())
                    return True

    def _left(self) -> dict[str, Any]:
        """What the next gateway is told."""
        workers = [
            {"worker": worker, "pid": pid, **self._kept[worker]}
            for pid, worker in self._workers.items()
            if worker in self._kept
        ]
        return {
            "event": "left",
            "program": self._program,
            "forks": self._forks,
            "limits": self._limits,
            "last": self._last,
            "workers": workers,
        }

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(_RECEIVED_BYTES):
                pass

    def _read_orders(self) -> bool:
        """Carry out what has come; False at the end of the control socket."""
        assert self._control is not None
        try:
            data = self._control.recv(_RECEIVED_BYTES)
        except ConnectionError:
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            match order["do"]:
                case "start":
                    self._start(order)
                case "kill":
                    self._kill(order["worker"])
                case "limit":
                    if order["worker"] in self._kept:
                        self._kept[order["worker"]] |= _limits_of(order)
                case "own":
                    self._directory, self._limits = order["directory"], order["limits"]
                    self._program = order["program"]
                case "end":
                    self._is_told_to_end = True
        return bool(data) and not self._is_told_to_end

    def _start(self, order: dict[str, Any]) -> None:
        self._last = max(self._last, order["worker"])
        if order.get("kept") is not None and self._listens():
            self._kept[order["worker"]] = {"kept": order["kept"], **_limits_of(order)}
        try:
            pid = self._fork(order) if self._forks else _spawn(order)
        except OSError as error:  # no memory or process left: that replica's loss, not the others'
            log.warning("a replica cannot be made", extra={"error": str(error)})
            self._kept.pop(order["worker"], None)
            self._tell({"event": "ended", "worker": order["worker"], "code": child.EXIT_NOT_MADE})
            return
        self._workers[pid] = order["worker"]
        self._tell({"event": "started", "worker": order["worker"], "pid": pid})

    def _fork(self, order: dict[str, Any]) -> int:
        template = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._listener, self._wake_in, self._wake_out):
                if end is not None:
                    end.close()
            code = child.become(order, parent=template)
        except BaseException:
            log.exception("a replica ended by an exception")
        finally:
            logging.shutdown()
            os._exit(code)

    def _listens(self) -> bool:
        """Whether the next gateway will find this template."""
        if self._listener is None and self._directory is not None:
            try:
                self._listener = succession.listener_in(self._directory, SOCKET)
            except OSError as error:
                log.warning("replicas cannot be taken over", extra={"error": str(error)})
        return self._listener is not None

    def _kill(self, *workers: int) -> None:
        for pid, known in self._workers.items():
            if known in workers:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def _reap(self, *, tell: bool = True) -> None:
        while self._workers:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(
                    found.si_pid, signal.SIGKILL
                )  # what it started; its number is still its own
            pid, status = os.waitpid(found.si_pid, 0)
            worker = self._workers.pop(pid, None)
            if worker is not None:
                self._kept.pop(worker, None)
            if worker is None or not tell:
                continue
            event: dict[str, object] = {"event": "ended", "worker": worker, "pid": pid}
            if os.WIFSIGNALED(status):
                event["signal"] = os.WTERMSIG(status)
            else:
                event["code"] = os.WEXITSTATUS(status)
            self._tell(event)

    def _tell(self, event: Mapping[str, object]) -> None:
        if self._control is not None:
            with contextlib.suppress(ConnectionError):  # the end of the socket is seen by `_serve`
                self._control.sendall(json.dumps(event).encode() + b"\n")


def _limits_of(order: Mapping[str, Any]) -> dict[str, Any]:
    return {"cpu": order["cpu"], "memory_mb": order["memory_mb"]}


def _spawn(order: Mapping[str, Any]) -> int:
    """Start a replica as a process that shares nothing with this one."""
    module = "serving.replica.child"
    arguments = [sys.executable, "-m", module, json.dumps(order), str(os.getpid())]
    return os.posix_spawn(sys.executable, arguments, os.environ)


def _nothing(_signal: int, _frame: object) -> None:
    """A handler, so that the signal wakes the loop."""


def main() -> None:
    """Run the template with the arguments of the command line."""
    began_s = time.monotonic()
    descriptor, kind = sys.argv[1:]
    log_lines(logging.WARNING)
    child.ignore_requests_to_end()
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    forks = warm_up(kind)
    template = Template(control, forks=forks)
    warm_s = time.monotonic() - began_s
    try:
        template.warm(warm_s)
        template.run()
    finally:
        template.close()


if __name__ == "__main__":
    main()
