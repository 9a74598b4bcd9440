"""The keeper of a home's containers: removes them when the gateway that owns them was killed.

    python -m serving.replica.container_keeper NAME DIRECTORY

A small process beside the gateway that reads its standard input. A gateway that ends in order writes one byte
when nothing is left; without it the end of the input means that the gateway is gone, and the keeper
removes the containers with the home's name and its directory; an engine that does not answer is asked again for a
minute. It runs in a session of its own, where no signal of a terminal reaches it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from serving.replica import blocking, container_engine
from serving.replica.container_engine import EngineError

log = logging.getLogger(__name__)

_CLEAN = b"."
_END_S = 5.0
_ROUNDS = 3
"""A container that was being made when the gateway died appears a moment later."""
_ROUND_S = 1.0
_PATIENCE_S = 50.0
"""An engine that is being restarted is away for a while."""
_STDERR = 2


class Keeper:
    """The gateway's end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, name: str, directory: pathlib.Path) -> Keeper:
        """Start a keeper for the home of a name."""
        # None of asyncio's, which ends its processes with the loop: this one may have to go on.
        words = (sys.executable, "-m", "serving.replica.container_keeper", name, str(directory))
        return cls(
            subprocess.Popen(  # noqa: S603 - our own words
                words,
                stdin=subprocess.PIPE,
                stdout=_STDERR,  # stdout belongs to the gateway
                start_new_session=True,
            )
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    async def close(self, *, is_clean: bool) -> None:
        """Let it end; without being clean it removes what is left first, and is left alone if that takes long."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            if is_clean:
                stdin.write(_CLEAN)
            stdin.close()
        wait = functools.partial(self._process.wait, _END_S)
        try:
            await blocking.asked(wait)
        except subprocess.TimeoutExpired:
            if is_clean:
                self._process.kill()
                await blocking.asked(wait)
            else:
                log.warning("a keeper goes on to remove what is left", extra={"keeper": self.pid})
                blocking.asked(self._process.wait)


def _remove_all(name: str) -> None:
    """Remove a home's containers, and those that still appear.

    Raises:
        EngineError: the engine could not be used for so long that this was given up.
    """
    until_s = time.monotonic() + _PATIENCE_S
    rounds = 0
    while rounds < _ROUNDS:
        if rounds:
            time.sleep(_ROUND_S)
        try:
            engine = container_engine.ContainerEngine.connect()
            container_engine.remove_all(engine, engine.of_owner(name))
            rounds += 1
        except EngineError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_ROUND_S)


def main() -> None:
    """Wait for the gateway's end."""
    name, directory = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1) == _CLEAN:
        return
    try:
        _remove_all(name)
    except EngineError as error:
        sys.stderr.write(
            f"containers of {name} may be left: {error}; `tune doctor --clean` removes them\n"
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
