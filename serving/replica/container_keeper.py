"""The keeper of a home's containers: removes them when the gateway that owns them was killed.

    python -m serving.replica.container_keeper NAME DIRECTORY

A small process beside the gateway that reads its standard input. A gateway that ends in order writes one byte
when nothing is left; without it the end of the input means that the gateway is gone, and the keeper
removes the containers with the home's name and its directory. It runs in a session of its own, where no signal
of a terminal reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import shutil
import signal
import sys
import time

from serving.replica import container_engine
from serving.replica.container_engine import EngineError

_CLEAN = b"."
_END_S = 10.0
_ROUNDS = 3
"""A container that was being made when the gateway died appears a moment later."""
_ROUND_S = 1.0
_STDERR = 2


class Keeper:
    """The gateway's end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, name: str, directory: pathlib.Path) -> Keeper:
        """Start a keeper for the home of a name."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "serving.replica.container_keeper",
            name,
            str(directory),
            stdin=asyncio.subprocess.PIPE,
            stdout=_STDERR,  # stdout belongs to the gateway
            start_new_session=True,
        )
        return cls(process)

    async def close(self, *, is_clean: bool) -> None:
        """Let it end; without being clean it removes what is left first."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            if is_clean:
                stdin.write(_CLEAN)
                await stdin.drain()
            stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def _remove_all(name: str) -> None:
    for turn in range(_ROUNDS):
        if turn:
            time.sleep(_ROUND_S)
        engine = container_engine.ContainerEngine.connect()
        container_engine.remove_all(engine, engine.of_owner(name))


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
