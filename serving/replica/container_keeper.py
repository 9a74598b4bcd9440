"""The keeper of a home's containers: what they belong to, and what removes them when their gateway was killed.

    python -m serving.replica.container_keeper CONTROL_FD

A small process beside the gateway. In, on the control socket, JSON lines: {"do": "own", "names", "directory", "facts"},
{"do": "keep", "for_s"} and {"do": "end", "clean"}. Where the socket ends without an "end", or that was not clean, the
keeper removes the containers of these owners, of which the first name tells itself, and the directory; an engine that
does not answer is asked again for a minute. It runs in a session of its own, where no signal of a terminal reaches it.

Where something is to be kept, containers with the label for it stay so long after the gateway was killed, while the
keeper waits on a socket in the directory for a gateway that takes them over. That one hands over its error output
(`succession`) and is told {"event": "left", "facts"}; which containers there are it asks the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.errors import NotReady
from serving.replica import blocking, container_engine, predecessor, succession
from serving.replica.container_engine import EngineError
from serving.secret_variables import without_secrets

log = logging.getLogger(__name__)

SOCKET = "keeper.sock"
"""Where the next gateway finds it, in the directory that it owns."""
_END_S = 5.0
_ROUNDS = 3
"""A container that was being made when the gateway died appears a moment later."""
_ROUND_S = 1.0
_PATIENCE_S = 50.0
"""An engine that is being restarted is away for a while."""
_STDERR = 2
_READ_BYTES = 65_536


class Keeper:
    """The gateway's end. All methods belong to the event loop's thread."""

    def __init__(
        self,
        pid: int,
        process: subprocess.Popen[bytes] | None,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.pid = pid
        """Its process."""
        self._process = process
        self._reader, self._writer = streams
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def started(cls) -> Keeper:
        """Start a keeper, which owns nothing yet.

        Raises:
            OSError: there can be no such process.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _started(theirs)
            ours.setblocking(False)
            return cls(process.pid, process, await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            ours.close()
            raise

    @classmethod
    async def taken_over(
        cls, directory: pathlib.Path, facts: Mapping[str, str], *, timeout_s: float
    ) -> Keeper:
        """Take over a keeper whose gateway was killed.

        Args:
            directory: which it owns.
            facts: what it was told must be the same; of another it removes all at once.
            timeout_s: longest wait for each word.

        Raises:
            NotReady: there is none, it is not this user's own, or keeps what this gateway cannot use.
        """
        pid, streams, told = await predecessor.reached(
            directory, SOCKET, "keeper", timeout_s=timeout_s
        )
        keeper = cls(pid, None, streams)
        try:
            predecessor.check_facts(told.get("facts"), facts, directory, "keeper")
        except NotReady:
            await keeper.close(is_clean=False)
            raise
        return keeper

    def listen(self, on_end: Callable[[], None]) -> None:
        """Call something where it ends on its own, and keeps nothing any more."""
        self._listening = asyncio.create_task(self._listen(on_end), name="hear the keeper")

    def own(self, names: Sequence[str], directory: pathlib.Path, facts: Mapping[str, str]) -> None:
        """Let it keep containers, and a directory.

        Args:
            names: of their owners.
            directory: in which the next gateway finds it.
            facts: which that must share.
        """
        owned = {"names": list(names), "directory": str(directory), "facts": dict(facts)}
        self._order({"do": "own", **owned})

    def keep(self, for_s: float) -> None:
        """Let it wait so long for the next gateway."""
        self._order({"do": "keep", "for_s": for_s})

    async def close(self, *, is_clean: bool) -> None:
        """Let it end; without being clean it removes what is left first, and is left alone if that takes long."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        self._order({"do": "end", "clean": is_clean})
        try:
            async with asyncio.timeout(_END_S):
                await self._gone()
        except TimeoutError:
            if is_clean:
                # It holds its end of the socket: the number is still its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            else:
                log.warning("a keeper goes on to remove what is left", extra={"keeper": self.pid})
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        if self._process is not None:
            reaped = blocking.asked(self._process.wait)
            await asyncio.wait({reaped}, timeout=_END_S if is_clean else 0.0)

    async def _listen(self, on_end: Callable[[], None]) -> None:
        await self._gone()
        self._writer.close()
        if self._process is not None:
            blocking.asked(self._process.wait)
        on_end()

    async def _gone(self) -> None:
        """It says nothing more: wait for its end of the socket to be closed."""
        with contextlib.suppress(OSError):
            while await self._reader.read(_READ_BYTES):
                pass

    def _order(self, order: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(json.dumps(order).encode() + b"\n")


class _Keeping:
    """The keeper's end."""

    def __init__(self, control: socket.socket) -> None:
        self._control: socket.socket | None = control
        self._received = b""
        self._names: Sequence[str] = ()
        self._directory = ""
        self._facts: Mapping[str, Any] = {}
        self._keep_s = 0.0
        self._listener: socket.socket | None = None
        self._is_told_to_end = False
        self._is_clean = False

    def run(self) -> None:
        """Wait for the end of the last gateway, and remove what it has left."""
        self._serve()
        while not self._is_told_to_end and self._found_next():
            self._serve()
        if self._listener is not None:  # who comes now need not wait
            self._listener.close()
        if self._is_clean or not self._names:
            return
        try:
            _remove_all(self._names)
        except EngineError as error:
            _say(
                f"containers of {self._names[0]} may be left: {error}; `tune doctor --clean` removes them"
            )
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self) -> None:
        """Carry out a gateway's orders, until it has gone."""
        assert self._control is not None
        self._received = b""
        while not self._is_told_to_end:
            try:
                data = self._control.recv(_READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._carry_out(json.loads(line))

    def _carry_out(self, order: Mapping[str, Any]) -> None:
        match order["do"]:
            case "own":
                self._names, self._directory = order["names"], order["directory"]
                self._facts = order["facts"]
            case "keep":
                self._keep_s = order["for_s"]
                self._listen()
            case "end":
                self._is_told_to_end, self._is_clean = True, order["clean"]

    def _listen(self) -> None:
        if self._listener is not None:
            return
        try:
            self._listener = succession.listener_in(self._directory, SOCKET)
        except OSError as error:
            _say(f"containers of {self._names[0]} cannot be taken over: {error}")

    def _found_next(self) -> bool:
        """The gateway was killed: wait for the next one, as long as containers are kept for it."""
        if self._control is not None:
            self._control.close()
        self._control = None
        if self._listener is None or self._keep_s <= 0.0:
            return False
        until_s = time.monotonic() + self._keep_s
        is_met = threading.Event()
        # An engine that is busy must not keep the next gateway waiting.
        threading.Thread(
            target=remove_others, args=[self._names, is_met.is_set], daemon=True
        ).start()
        while (left_s := until_s - time.monotonic()) > 0.0:
            if select.select([self._listener], [], [], left_s)[0]:
                self._control = succession.met(self._listener)
                if self._control is not None:
                    is_met.set()
                    if self._tell_next():
                        return True
        return False

    def _tell_next(self) -> bool:
        """Tell a gateway what this is; False where it has gone again."""
        assert self._control is not None
        told = {"event": "left", "facts": self._facts}
        try:
            self._control.sendall(json.dumps(told).encode() + b"\n")
        except OSError:
            self._control.close()
            return False
        return True


def _started(control: socket.socket) -> subprocess.Popen[bytes]:
    """Start a keeper on a control socket.

    None of asyncio's processes, which end with its loop: this one may have to go on.
    """
    words = (sys.executable, "-m", "serving.replica.container_keeper", str(control.fileno()))
    return subprocess.Popen(  # noqa: S603 - our own words
        words,
        stdin=subprocess.DEVNULL,
        stdout=_STDERR,  # stdout belongs to the gateway
        pass_fds=(control.fileno(),),
        env=without_secrets(os.environ),
        start_new_session=True,
    )


def _say(text: str) -> None:
    """A line for whoever still reads the gateway's error output."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def remove_others(names: Sequence[str], is_met: Callable[[], bool]) -> None:
    """Remove what is not kept, as far as the engine does it: the rest is removed later.

    Args:
        names: of the owners.
        is_met: whether the next gateway has come: what is listed from then on may be its own, under the same names.
    """
    with (
        contextlib.suppress(EngineError),
        contextlib.closing(container_engine.ContainerEngine.connect()) as engine,
    ):
        others = [one for name in names for one in engine.of_owner(name) if one.kept is None]
        for other in others:
            if is_met():
                return
            with contextlib.suppress(EngineError):
                engine.remove(other.container)


def _remove_all(names: Sequence[str]) -> None:
    """Remove the containers of owners, and those that still appear.

    Raises:
        EngineError: the engine could not be used for so long that this was given up.
    """
    until_s = time.monotonic() + _PATIENCE_S
    rounds = 0
    while rounds < _ROUNDS:
        if rounds:
            time.sleep(_ROUND_S)
        try:
            with contextlib.closing(container_engine.ContainerEngine.connect()) as engine:
                found = [one.container for name in names for one in engine.of_owner(name)]
                container_engine.remove_all(engine, found)
            rounds += 1
        except EngineError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_ROUND_S)


def main() -> None:
    """Wait for the gateway's end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    _Keeping(control).run()


if __name__ == "__main__":
    main()
