"""Reaper: a process that removes the containers of a killed gateway.

    python -m serving.spawners.docker.reaper CONTROL_FD NAME DIRECTORY

A gateway that ends in order sends one byte. If the control socket ends without it, the reaper
removes the owner's containers and the directory, with retries. It has its own session, out of reach
of terminal signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

from serving.spawners.docker import client
from serving.spawners.docker.client import DockerError
from serving.system import daemon_threads
from serving.system.secret_variables import without_secrets

log = logging.getLogger(__name__)

_CLEAN = b"."
_END_S = 5.0
_RESTART_S = 1.0
"""Delay before a restart, as a new reaper may end as quickly."""
_ROUNDS = 3
"""Repeats, as a container in creation appears later."""
_ROUND_S = 1.0
_PATIENCE_S = 50.0
"""Time for a restarting engine."""
_STDERR = 2


class ReaperClient:
    """Gateway-side client of its reaper. All methods belong to the event loop's thread."""

    def __init__(self, name: str, directory: pathlib.Path) -> None:
        """Start a reaper for an owner's containers and directory.

        Raises:
            OSError: the process cannot be started.
        """
        self._words = (name, str(directory))
        self._process, self._sock = _start_reaper(self._words)
        self._watching = asyncio.create_task(self._watch(), name="watch the reaper")

    @property
    def pid(self) -> int:
        """Pid of the reaper."""
        return self._process.pid

    async def close(self, *, is_clean: bool) -> None:
        """End the reaper, after a clean-up unless `is_clean`; wait for it at most `_END_S`."""
        self._watching.cancel()
        await asyncio.wait({self._watching})
        if is_clean:
            with contextlib.suppress(OSError):
                self._sock.send(_CLEAN)
        self._sock.close()
        try:
            await daemon_threads.run_in_daemon_thread(functools.partial(self._process.wait, _END_S))
        except subprocess.TimeoutExpired:
            if is_clean:
                self._process.kill()
                await daemon_threads.run_in_daemon_thread(self._process.wait)
            else:
                log.warning("a reaper continues to remove what is left", extra={"keeper": self.pid})
                daemon_threads.run_in_daemon_thread(self._process.wait)

    async def _watch(self) -> None:
        """Restart the reaper when it ends."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                await loop.sock_recv(self._sock, 1)  # the reaper sends nothing: this is its end
            log.warning("the reaper of containers has ended; another one is started")
            self._sock.close()
            daemon_threads.run_in_daemon_thread(self._process.wait)
            await self._restart()

    async def _restart(self) -> None:
        while True:
            await asyncio.sleep(_RESTART_S)
            try:
                self._process, self._sock = _start_reaper(self._words)
            except OSError:
                log.exception("there is no reaper: if this process is killed, containers stay")
            else:
                return


def _start_reaper(words: tuple[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a reaper; return it and a non-blocking control socket.

    Not an asyncio process, which would end with the loop.

    Raises:
        OSError: the process cannot be started.
    """
    ours, theirs = socket.socketpair()
    module = "serving.spawners.docker.reaper"
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own words
                (sys.executable, "-m", module, str(theirs.fileno()), *words),
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,  # stdout belongs to the gateway
                pass_fds=(theirs.fileno(),),
                env=without_secrets(os.environ),
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return process, ours


def _write_line(text: str) -> None:
    """Write a line to the gateway's stderr, if open."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _remove_all(name: str) -> None:
    """Remove an owner's containers, including late ones.

    Raises:
        EngineError: the engine was unusable for `_PATIENCE_S`.
    """
    until_s = time.monotonic() + _PATIENCE_S
    rounds = 0
    while rounds < _ROUNDS:
        if rounds:
            time.sleep(_ROUND_S)
        try:
            with contextlib.closing(client.DockerClient.connect()) as engine:
                client.remove_all(engine, engine.of_owner(name))
            rounds += 1
        except DockerError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_ROUND_S)


def main() -> None:
    """Wait for the gateway's end."""
    descriptor, name, directory = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    with contextlib.suppress(ConnectionError):
        if control.recv(1) == _CLEAN:
            return
    try:
        _remove_all(name)
    except DockerError as error:
        _write_line(
            f"containers of {name} may be left: {error}; `tune doctor --clean` removes them"
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
