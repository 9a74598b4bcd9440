"""Fork server: imports a model runtime once, then forks a replica on demand.

    python -m serving.replica.forkserver KIND RUNTIME_DIRECTORY [GROUP_DIRECTORY...]

On the control channel it receives {"do": "start", "worker", "socket", "procs": [..],
"environment": {..}} and {"do": "kill", "worker"}. It sends {"event": "warm", "forks", "warm_s"},
{"event": "started", "worker", "pid"} and {"event": "ended", "worker", "pid", "code" or "signal"}.

When the channel ends, the fork server kills its replicas and removes its groups and directory. So
it must outlive the gateway: it has its own session and no parent-death signal, which would also
fire when the thread that started it ends. Its replicas die with it (SIGKILL).

Only a single-threaded process can fork safely, as other threads' locks stay locked in the child.
ONNX Runtime starts a telemetry thread unless ORT_DISABLE_TELEMETRY is set. If a runtime starts
threads, replicas are new processes that import it themselves.
"""

from __future__ import annotations

import contextlib
import json
import logging
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

from serving.replica import process_entrypoint
from serving.replica.preload import import_runtime
from serving.system.cgroups import manager
from serving.system.control_channel import Closed, ControlChannel
from serving.system.end_with_parent import ignore_requests_to_end
from serving.system.log_lines import log_lines
from serving.wire import exit_codes

log = logging.getLogger(__name__)

_CLEANUP_S = 5.0
_RETRY_S = 0.005
_RECEIVED_BYTES = 65_536


class ForkServer:
    """Event loop of the fork server."""

    def __init__(self, control: ControlChannel, *, forks: bool) -> None:
        self._control = control
        self._forks = forks
        self._workers: dict[int, int] = {}  # living replicas: pid -> worker number
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)

    def run(self, warm_s: float) -> None:
        """Report that importing took `warm_s`, then execute orders until the channel ends."""
        self._tell({"event": "warm", "forks": self._forks, "warm_s": warm_s})
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes the loop
        poll = select.poll()
        poll.register(self._control.sock, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake_out.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wake_out.recv(_RECEIVED_BYTES)
                self._reap()
            if self._control.sock.fileno() in ready and not self._read_orders():
                return

    def kill_all(self) -> None:
        """Kill all replicas and wait up to `_CLEANUP_S` for them to exit."""
        until_s = time.monotonic() + _CLEANUP_S
        while self._workers and time.monotonic() < until_s:
            for pid in self._workers:
                os.kill(pid, signal.SIGKILL)
            self._reap(tell=False)
            time.sleep(_RETRY_S)

    def _read_orders(self) -> bool:
        try:
            orders = self._control.receive_all()
        except Closed:
            return False
        for order in orders:
            if order["do"] == "start":
                self._start(order)
            else:
                self._kill(order["worker"])
        return True

    def _start(self, order: dict[str, Any]) -> None:
        try:
            pid = self._fork(order) if self._forks else _spawn(order)
        except OSError as error:  # no memory or process left: only this replica is lost
            log.warning("a replica cannot be created", extra={"error": str(error)})
            ended = {"event": "ended", "worker": order["worker"], "code": exit_codes.NOT_MADE}
            self._tell(ended)
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
            for end in (self._control.sock, self._wake_in, self._wake_out):
                end.close()
            code = process_entrypoint.run(order, parent=template)
        except BaseException:
            log.exception("a replica ended with an exception")
        finally:
            logging.shutdown()
            os._exit(code)

    def _kill(self, worker: int) -> None:
        for pid, known in self._workers.items():
            if known == worker:
                os.kill(pid, signal.SIGKILL)  # not reaped, so the pid is still its own

    def _reap(self, *, tell: bool = True) -> None:
        while self._workers:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(found.si_pid, signal.SIGKILL)  # its children; the pid is still its own
            pid, status = os.waitpid(found.si_pid, 0)
            worker = self._workers.pop(pid, None)
            if worker is None or not tell:
                continue
            event: dict[str, object] = {"event": "ended", "worker": worker, "pid": pid}
            if os.WIFSIGNALED(status):
                event["signal"] = os.WTERMSIG(status)
            else:
                event["code"] = os.WEXITSTATUS(status)
            self._tell(event)

    def _tell(self, event: Mapping[str, object]) -> None:
        with contextlib.suppress(Closed):  # `run` sees it
            self._control.send(event)


def _spawn(order: Mapping[str, Any]) -> int:
    module = "serving.replica.process_entrypoint"
    arguments = [sys.executable, "-m", module, json.dumps(order), str(os.getpid())]
    return os.posix_spawn(sys.executable, arguments, os.environ)


def main() -> None:
    """Run the fork server."""
    began_s = time.monotonic()
    kind, directory, *groups = sys.argv[1:]
    log_lines(logging.WARNING)
    ignore_requests_to_end()
    control = ControlChannel.to_parent()
    forks = import_runtime(kind)
    template = ForkServer(control, forks=forks)
    try:
        template.run(time.monotonic() - began_s)
    finally:
        template.kill_all()
        for root in groups:
            manager.kill_and_remove(pathlib.Path(root))
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
