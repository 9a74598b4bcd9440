"""Reaper: a process that removes the containers of a killed gateway.

    python -m serving.spawners.docker.reaper NAME DIRECTORY

A gateway that ends normally sends one message. If the channel ends without that message, the reaper
removes the owner's containers and the directory, with retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import time

from serving.spawners.docker import containers
from serving.spawners.docker.containers import DockerError
from serving.system.control_channel import Closed, ControlChannel, ControlledProcess
from serving.system.daemon_threads import run_in_daemon_thread
from serving.system.end_with_parent import ignore_requests_to_end
from serving.system.secret_variables import without_secrets

log = logging.getLogger(__name__)

_END_S = 5.0
_RESTART_S = 1.0
"""Delay before a restart, as a new reaper may end just as quickly."""
_ROUNDS = 3
"""Rounds of removal, as a container that is being created appears later."""
_ROUND_S = 1.0
_PATIENCE_S = 50.0
"""Time allowed for the engine to restart."""


class ReaperClient:
    """The gateway's connection to its reaper. Not thread-safe."""

    def __init__(self, name: str, directory: pathlib.Path) -> None:
        """Start a reaper for an owner's containers and directory, or raise OSError."""
        self._words = (name, str(directory))
        self._child = _start_reaper(self._words)
        self._watching = asyncio.create_task(self._watch(), name="watch the reaper")

    @property
    def pid(self) -> int:
        """Process id of the reaper."""
        return self._child.process.pid

    async def close(self, *, is_clean: bool) -> None:
        """End the reaper, after a clean-up unless `is_clean`; wait for it at most `_END_S`."""
        self._watching.cancel()
        await asyncio.wait({self._watching})
        if is_clean:
            with contextlib.suppress(Closed):
                self._child.send({"do": "leave"})
            await run_in_daemon_thread(self._child.end, _END_S)
            return
        self._child.sock.close()
        try:
            await run_in_daemon_thread(self._child.process.wait, _END_S)
        except subprocess.TimeoutExpired:
            log.warning("a reaper continues to remove what is left", extra={"keeper": self.pid})
            run_in_daemon_thread(self._child.process.wait)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                await loop.sock_recv(self._child.sock, 1)  # it sends nothing: this is its end
            log.warning("the reaper of containers has ended; another one is started")
            self._child.sock.close()
            run_in_daemon_thread(self._child.process.wait)
            while self._child.sock.fileno() < 0:
                await asyncio.sleep(_RESTART_S)
                try:
                    self._child = _start_reaper(self._words)
                except OSError:
                    log.exception("there is no reaper: if this process is killed, containers stay")


def _start_reaper(words: tuple[str, str]) -> ControlledProcess:
    return ControlledProcess.start(
        "serving.spawners.docker.reaper", words, environment=without_secrets(os.environ)
    )


def _remove_all(name: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    rounds = 0
    while True:
        try:
            with contextlib.closing(containers.DockerClient.connect()) as engine:
                containers.remove_all(engine, engine.of_owner(name))
            rounds += 1
        except DockerError:
            if time.monotonic() > until_s:
                raise
        if rounds == _ROUNDS:
            return
        time.sleep(_ROUND_S)


def main() -> None:
    """Wait for the gateway's end, and clean up if it was killed."""
    name, directory = sys.argv[1:]
    ignore_requests_to_end()
    with contextlib.suppress(Closed):
        ControlChannel.to_parent().receive()
        return
    try:
        _remove_all(name)
    except DockerError as error:
        with contextlib.suppress(OSError):  # the gateway's stderr may be closed
            print(  # noqa: T201 - for the user of the gateway
                f"containers of {name} may be left: {error}; `tune doctor --clean` removes them",
                file=sys.stderr,
                flush=True,
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
