"""Fork servers that are forked from a process which has imported what they import: a second each is saved.

They are the product's from `main` on, each with its own session, channel, folder and groups.

    python -m tests.fakes.warm_fork_servers KIND     fork one for each order, until the standard input ends
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence

from serving.replica import forkserver
from serving.spawners.process import forkserver_client
from serving.system.control_channel import ControlledProcess

_ORDER_BYTES = 1 << 20


class _Forked:
    """The part of `subprocess.Popen` in use, for a grandchild, whose exit code is unknown and given as 0."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def wait(self, timeout_s: float) -> int:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            raise subprocess.TimeoutExpired("fork server", timeout_s)
        self.returncode = 0
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


class _Parents:
    """One process for each kind of model, started when it is first needed."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._lock = threading.Lock()
        self._parents: dict[str, socket.socket] = {}

    def start(
        self, _module: str, words: Sequence[str], *, environment: Mapping[str, str]
    ) -> ControlledProcess:
        """See `ControlledProcess.start`."""
        order = {"words": words, "environment": dict(environment), "folder": os.getcwd()}  # noqa: PTH109
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            parent = self._find_parent(words[0])
            socket.send_fds(parent, [json.dumps(order).encode()], [theirs.fileno(), 2])
            told, descriptors, _, _ = socket.recv_fds(parent, 100, 1)
        return ControlledProcess(_Forked(int(told), *descriptors), ours)  # type: ignore[arg-type]

    def _find_parent(self, kind: str) -> socket.socket:
        if kind not in self._parents:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.fakes.warm_fork_servers", kind],
                    stdin=theirs.fileno(),
                    cwd=pathlib.Path(__file__).parents[2],
                    env=forkserver_client.environment(os.environ),
                )
            self._stack.enter_context(process)
            self._stack.enter_context(ours)  # closed first, which ends the process
            self._parents[kind] = ours
        return self._parents[kind]


@contextlib.contextmanager
def warm_fork_servers() -> Iterator[type[ControlledProcess]]:
    """Yield what takes the place of `ControlledProcess` in `forkserver_client`."""
    with contextlib.ExitStack() as stack:
        parents = _Parents(stack)

        class Warm(ControlledProcess):
            start = parents.start  # type: ignore[assignment]

        yield Warm


def _serve(kind: str) -> None:
    with contextlib.suppress(ImportError):  # as in a kind `program`, or told by LOAD
        importlib.import_module(f"serving.models.{kind}")
    with socket.socket(fileno=os.dup(0)) as orders:
        while True:
            order, descriptors, _, _ = socket.recv_fds(orders, _ORDER_BYTES, 2)
            if not order:
                return
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            pid = os.fork()
            if pid == 0:
                orders.close()
                _become(json.loads(order), *descriptors)
            process = os.pidfd_open(pid)
            socket.send_fds(orders, [str(pid).encode()], [process])
            for descriptor in (process, *descriptors):
                os.close(descriptor)


def _become(order: Mapping[str, object], channel: int, output: int) -> None:
    code = 1
    try:
        os.setsid()
        for here, there in ((channel, 0), (output, 1), (output, 2)):
            os.dup2(here, there)
        os.close(channel)
        os.close(output)
        os.environ.clear()
        os.environ.update(order["environment"])  # type: ignore[call-overload]
        os.chdir(str(order["folder"]))
        sys.argv = ["forkserver", *order["words"]]  # type: ignore[misc]
        forkserver.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
