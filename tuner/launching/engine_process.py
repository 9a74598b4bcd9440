"""Owner of one `python -m serving` process, from its start to its end, with nothing left behind.

The process runs in a session of its own, so that Ctrl-C at a terminal reaches the tuner alone and
the tuner decides. The kernel sends it SIGTERM when the tuner's thread that started it ends in any
way (`end_with_parent`), so a `kill -9` of the tuner leaves no server; the server ends its own
replicas. Start it from a thread that lives as long as the engine shall.

In: model, settings, configurations. Out: facts (ports, limits), seconds, `ReplicaFacts`. Blocking,
with timeouts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from serving.accelerator import clocks
from serving.secret_variables import without_secrets
from serving.values import Signature
from tuner.errors import LaunchFailed, WrongUse
from tuner.launching import apply, end_with_parent, replica_facts
from tuner.launching.admin import AdminClient
from tuner.launching.engine import Served
from tuner.launching.output import Output
from tuner.launching.replica_facts import ReplicaFacts
from tuner.values import Configuration

START_TIMEOUT_S = 90.0
"""A server that is not ready after this long is given up; it loads a model in this time."""
APPLY_TIMEOUT_S = 60.0
"""Twice the engine's own time for a replica to become ready (replica.ready_timeout_s)."""
STOP_GRACE_S = 1.5
"""Between SIGTERM and SIGKILL: Ctrl-C must end a study within 3 s."""
ENDING_S = 0.5
"""For this long a server whose connections broke is expected to end."""
SERVER = ("-m", "serving")
SPEAKER = "python -m serving: "
"""What the server's own error lines begin with."""
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a server says when it is ready."""

    host: str
    port: int
    admin_port: int
    admin_token_file: str | None
    """With the token that the admin port asks for; None: it asks for none that is in a file."""
    pid: int
    limits: str
    """`enforced`, or `not enforced: <why>`."""


class ServingLauncher:
    """Starts servers of one model."""

    why_alone: str | None = None
    """Why two of them are not up at once; None: they can be."""
    is_restarted: bool = False
    """Whether each configuration is served by a process that was started for it, and has to settle."""

    def __init__(
        self,
        model: str,
        home: str | None = None,
        *,
        is_trusted: bool = False,
        always: Mapping[str, apply.Setting] = MappingProxyType({}),
    ) -> None:
        """Nothing is started yet.

        Args:
            model: name of a bundled model, or a file.
            home: where replicas live (`replica.home`); None: as the environment says.
            is_trusted: whether the model may run code from its files.
            always: settings that it has with every configuration that does not set them.
        """
        self._is_trusted = is_trusted
        self._model = model
        self._home = home
        self._always = always

    def start(self, configuration: Configuration | None) -> EngineProcess:
        """Start one; see `EngineProcess.start`."""
        return EngineProcess.start(
            self._model,
            configuration,
            home=self._home,
            is_trusted=self._is_trusted,
            always=self._always,
        )

    def close(self) -> None:
        """Nothing is left of servers that were stopped."""


class EngineProcess:
    """One running server; made by `start`, ended by `stop` or at the end of a `with` block."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        facts: EngineFacts,
        errors: Output,
        always: Mapping[str, apply.Setting] = MappingProxyType({}),
        *,
        token: str | None = None,
    ) -> None:
        self._process = process
        self._always = always
        self._errors = errors
        self.facts = facts
        self.admin = AdminClient(facts.host, facts.admin_port, token=token)

    @classmethod
    def start(
        cls,
        model: str | None,
        configuration: Configuration | None = None,
        *,
        home: str | None = None,
        is_trusted: bool = False,
        always: Mapping[str, apply.Setting] = MappingProxyType({}),
        timeout_s: float = START_TIMEOUT_S,
        program: Sequence[str] = SERVER,
    ) -> EngineProcess:
        """Start a server on free ports and wait until it is ready.

        Args:
            model: name of a bundled model, or a file; None: it starts without one.
            configuration: what it starts with; None: the engine's own defaults.
            home: where replicas live; None: as the environment says.
            is_trusted: whether the model may run code from its files.
            always: settings that it has with every configuration that does not set them.
            timeout_s: longest wait.
            program: arguments of Python that make the server.

        Raises:
            WrongUse: the server says that model or settings are wrong.
            LaunchFailed: `start` or `timeout`, with the server's own line.
        """
        process = subprocess.Popen(  # noqa: S603 - a list of our own making, no shell
            _command(program, model, configuration or Configuration({}), home, is_trusted, always),
            env=without_secrets(os.environ),  # they are for the owner's own servers
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        errors = Output(process.stderr)
        try:
            facts = _ready_facts(process, errors, timeout_s=timeout_s)
            token = _token_of(facts)
        except BaseException:
            _end(process, grace_s=STOP_GRACE_S)
            errors.join()
            process.stdout.close()
            raise
        _log.info("engine started", extra={"fields": dataclasses.asdict(facts)})
        return cls(process, facts, errors, always, token=token)

    @property
    def host(self) -> str:
        """Host of its ports."""
        return self.facts.host

    @property
    def port(self) -> int:
        """Its query port."""
        return self.facts.port

    @property
    def pids(self) -> tuple[int, ...]:
        """The gateway; the replicas tell of themselves."""
        return (self.facts.pid,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def apply(self, configuration: Configuration, *, timeout_s: float = APPLY_TIMEOUT_S) -> float:
        """Launch a configuration on new replicas; returns the seconds until they were ready.

        Raises:
            LaunchFailed: the configuration was refused, or the engine is gone (cause `crash`).
        """
        before_s = time.monotonic()
        settings = apply.complete_settings(configuration, self._always)
        self.admin.apply(settings, timeout_s=timeout_s)
        return time.monotonic() - before_s

    def served(self) -> Served:
        """What it says of its model.

        Raises:
            LaunchFailed: the engine is gone (cause `crash`).
        """
        answer = self.admin.settings()
        (model,) = answer["models"]
        return Served(
            model=str(model["name"]),
            version=str(model["version"]),
            kind=str(model["kind"]),
            signature=Signature.from_json(model["signature"]),
            limits=str(answer["limits"]),
            device=model.get("device"),
        )

    def replica_facts(self) -> ReplicaFacts:
        """What the replicas report now.

        Raises:
            LaunchFailed: the engine is gone (cause `crash`).
        """
        return replica_facts.parse(self.admin.replicas())

    def is_running(self) -> bool:
        """Whether the server process is alive."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """How the server ended, and the last line that it wrote.

        One that was killed cannot be asked for its status until the last of its threads has ended.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=ENDING_S)
        status = self._process.poll()
        how = "still running" if status is None else f"exit status {status}"
        if status is not None and status < 0:
            how = f"ended by {signal.Signals(-status).name}"
        last = self._errors.last_line().removeprefix(SPEAKER)
        return f"{how}; it said last: {last}" if last else how

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End the server: SIGTERM, then SIGKILL after `grace_s`; harmless when it has ended."""
        _end(self._process, grace_s=grace_s)
        clocks.restore_stale()  # one that had to be killed leaves the GPU as it was
        self._errors.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        _log.info(
            "engine stopped",
            extra={"fields": {"pid": self.facts.pid, "status": self._process.returncode}},
        )


def _command(
    program: Sequence[str],
    model: str | None,
    configuration: Configuration,
    home: str | None,
    is_trusted: bool,
    always: Mapping[str, apply.Setting],
) -> list[str]:
    what = ["--allow-empty"] if model is None else ["--model", model]
    if is_trusted:
        what.append("--trust")
    own = [sys.executable, "-I", "-S", end_with_parent.__file__, str(os.getpid())]
    command = [*own, sys.executable, *program, *what, "--port", "0", "--admin-port", "0"]
    command += ["--set", "server.grpc_port=null"]  # the load is sent over REST
    if home is not None:
        command += ["--set", f"replica.home={home}"]
    for name, value in apply.complete_settings(configuration, always).items():
        command += ["--set", f"{name}={json.dumps(value) if not isinstance(value, str) else value}"]
    return command


def _ready_facts(
    process: subprocess.Popen[bytes], errors: Output, *, timeout_s: float
) -> EngineFacts:
    assert process.stdout is not None
    deadline_s = time.monotonic() + timeout_s
    received = b""
    while not received.endswith(b"\n"):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise LaunchFailed("timeout", f"the server was not ready after {timeout_s:g} s")
        if not select.select([process.stdout], [], [], left_s)[0]:
            continue
        part = os.read(process.stdout.fileno(), 65536)
        if not part:
            raise _ended_early(process, errors)
        received += part
    return _parsed_ready(received)


def _parsed_ready(line: bytes) -> EngineFacts:
    try:
        said: dict[str, Any] = json.loads(line)
        return EngineFacts(
            **{field.name: said[field.name] for field in dataclasses.fields(EngineFacts)},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchFailed(
            "start", f"the server said {line[:200]!r} instead of that it is ready"
        ) from error


def _token_of(facts: EngineFacts) -> str | None:
    """What the admin port asks for.

    Raises:
        LaunchFailed: `start`, its file cannot be read.
    """
    if facts.admin_token_file is None:
        return None
    try:
        return pathlib.Path(facts.admin_token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        text = f"the token of the server's admin port cannot be read: {facts.admin_token_file}: {error}"
        raise LaunchFailed("start", text) from error


def _ended_early(process: subprocess.Popen[bytes], errors: Output) -> WrongUse | LaunchFailed:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_GRACE_S)
    errors.join()
    text = (
        errors.last_line().removeprefix(SPEAKER)
        or f"the server ended with status {process.returncode} before it was ready"
    )
    return (
        WrongUse(text) if process.returncode == WrongUse.exit_code else LaunchFailed("start", text)
    )


def _end(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what is left of its session, replicas too
    process.wait()
