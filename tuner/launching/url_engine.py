"""The user's running server, which a hook reconfigures and finally resets to the default.

The hook program gets the configuration as a JSON object on standard input and as variables
(`KNOB_BATCHING_MAX_SIZE` for `batching.max_size`), and exits with 0 once the server has applied it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable

from serving.system.secret_variables import without_secrets
from tuner.engines import template
from tuner.engines.description import UrlEngine
from tuner.errors import LaunchFailed
from tuner.launching import readiness
from tuner.launching.engine import EngineInfo
from tuner.launching.readiness import ReadinessCheck
from tuner.launching.replica_facts import ReplicaFacts
from tuner.values.configuration import Configuration

CONNECT_TIMEOUT_S = 1.0
MAX_READ = 1 << 20
"""Maximum number of bytes to read from the end of the hook's output."""
_log = logging.getLogger(__name__)


class UrlLauncher:
    """Launcher for one server; its first configuration is the default that `close` restores."""

    def __init__(
        self, engine: UrlEngine, *, model: str, sign: ReadinessCheck, say: Callable[[str], None]
    ) -> None:
        self.engine = engine
        self.model = model
        self.sign = sign
        self._say = say
        self._default: Configuration | None = None
        self._last: Configuration | None = None
        self.is_restarted = bool(engine.hook)
        why = "there is only one server, which gets one configuration at a time"
        self.why_not_interleaved = why if engine.hook else None

    def start(self, configuration: Configuration | None) -> UrlServer:
        """Apply a configuration to the server."""
        server = UrlServer(self)
        server.apply(configuration or self._default or Configuration({}))
        return server

    def note_configuration(self, configuration: Configuration) -> None:
        """Note which configuration the server is about to get."""
        if self._default is None:
            self._default = configuration
        self._last = configuration

    def close(self) -> None:
        """Restore the default configuration if another was applied; print a message on failure."""
        default, last = self._default, self._last
        if default is None or last == default:
            return
        self._last = default
        try:
            run_hook(self.engine, default)
        except LaunchFailed as error:
            self._say(f"the default configuration could not be restored: {error}")
            _log.warning("the default was not restored", extra={"fields": {"error": str(error)}})


class UrlServer:
    """The user's running server."""

    def __init__(self, launcher: UrlLauncher) -> None:
        self._launcher = launcher
        self._engine = launcher.engine
        self.host = launcher.engine.host
        self.port = launcher.engine.port
        self.pids: tuple[int, ...] = ()  # they may be anywhere

    def apply(self, configuration: Configuration) -> float:
        """Run the hook, wait until the server is ready, and return the seconds taken."""
        before_s = time.monotonic()
        self._launcher.note_configuration(configuration)
        run_hook(self._engine, configuration)
        readiness.wait(
            self.host,
            self.port,
            self._launcher.sign,
            timeout_s=self._engine.ready_timeout_s,
            check=lambda: None,
        )
        return time.monotonic() - before_s

    def describe(self) -> EngineInfo:
        """Describe the model, including its signature if the protocol reports it."""
        model = self._launcher.model
        return EngineInfo(
            model=model,
            kind="url",
            signature=readiness.told_signature(self.host, self.port, model, self._engine.request),
            limits="the server's own",
            is_here=is_of_this_machine(self.host),
            engine=self._engine.label,
        )

    def replica_facts(self) -> ReplicaFacts:
        """Return empty facts, since the server's processes are unknown."""
        return ReplicaFacts(replicas=(), deaths=())

    def is_running(self) -> bool:
        """Whether the server accepts connections."""
        try:
            with socket.create_connection((self.host, self.port), timeout=CONNECT_TIMEOUT_S):
                return True
        except OSError:
            return False

    def last_words(self) -> str:
        """Return a fixed text, since the server's output is unknown."""
        return "it accepts no connections"

    def stop(self) -> None:
        """Do nothing, since the server belongs to the user."""


def is_of_this_machine(host: str) -> bool:
    """Whether a host is this machine; only addresses of this machine can be bound."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, 0, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as sock, contextlib.suppress(OSError):
                sock.bind(address)
                return True
    return False


def run_hook(engine: UrlEngine, configuration: Configuration) -> None:
    """Run the hook, if there is one; raise LaunchFailed (`start`, `timeout`) if it fails."""
    if not engine.hook:
        return
    given = json.dumps(dict(configuration)).encode() + b"\n"
    with tempfile.TemporaryFile() as order, tempfile.TemporaryFile() as output:
        order.write(given)
        order.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - what the user asked for
                engine.hook,
                env={**without_secrets(os.environ), **variables(configuration)},
                stdin=order,
                stdout=output,  # a server that the hook starts would hold a pipe open
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not cut it off half-way
            )
        except OSError as error:
            text = f"the hook cannot be started: {engine.hook[0]}: {error.strerror or error}"
            raise LaunchFailed("start", text) from error
        try:
            status = process.wait(timeout=engine.hook_timeout_s)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            text = f"the hook did not end within {engine.hook_timeout_s:g} s"
            raise LaunchFailed("timeout", text) from error
        except BaseException:
            _kill(process)
            raise
        # A server that the hook started shares the file's offset, and may still print.
        begin = max(0, os.fstat(output.fileno()).st_size - MAX_READ)
        said = os.pread(output.fileno(), MAX_READ, begin).decode(errors="replace")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if lines:
        _log.info("hook said", extra={"fields": {"said": lines[-20:]}})
    if status:
        last = f"; last output: {lines[-1][:200]}" if lines else ""
        raise LaunchFailed("start", f"the hook ended with status {status}{last}")


def variables(configuration: Configuration) -> dict[str, str]:
    """Return the configuration as environment variables."""
    return {
        "KNOB_" + re.sub(r"\W", "_", name).upper(): template.format_value(value)
        for name, value in configuration.items()
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
