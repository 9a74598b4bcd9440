"""Owner of a `python -m serving` process that leaves nothing behind.

The process has its own session, so Ctrl-C reaches only the tuner. The kernel sends it SIGTERM when
the thread that started it ends (`end_with_parent`), even after `kill -9`, so that thread must
outlive the engine. Blocking, with timeouts.
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
from typing import Any, ClassVar, Self

from serving.accelerator import clocks
from serving.system import end_with_parent
from serving.system.secret_variables import without_secrets
from serving.values import Signature
from tuner.errors import LaunchFailed, UsageError
from tuner.launching import apply, replica_facts
from tuner.launching.admin import AdminClient
from tuner.launching.engine import EngineInfo
from tuner.launching.output import Output, describe_exit
from tuner.launching.pod import Pod, PodLimiter
from tuner.launching.replica_facts import ReplicaFacts, ReportedDeath
from tuner.values.configuration import Configuration

START_TIMEOUT_S = 90.0
"""Timeout of a start, which includes loading a model."""
APPLY_TIMEOUT_S = 60.0
"""Timeout for applying settings: twice the engine's limit for a replica to become ready."""
STOP_GRACE_S = 1.5
"""Time from SIGTERM to SIGKILL; Ctrl-C must end a study within 3 s."""
ENDING_S = 0.5
"""Time to wait until a server whose connections broke has ended."""
SERVER = ("-m", "serving")
SPEAKER = "python -m serving: "
"""Prefix of the server's own error lines."""
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLine:
    """Content of the line that a server prints when it is ready."""

    host: str
    port: int
    admin_port: int
    admin_token_file: str | None
    pid: int
    limits: str
    """`enforced`, or `not enforced: <why>`."""


@dataclasses.dataclass(eq=False)
class LuthierLauncher:
    """Launcher of servers for one model."""

    model: str
    spawner: str | None = None
    """How replicas are started (`replica.spawner`), or None to let the environment determine it."""
    is_trusted: bool = False
    """Whether the model may run code from its files."""
    always: Mapping[str, apply.Setting] = dataclasses.field(default_factory=dict)
    """Settings for configurations that lack them."""
    pods: PodLimiter | None = None
    """Limits of whole servers; None: each replica has its own."""
    why_not_interleaved: ClassVar[str | None] = None
    is_restarted: ClassVar[bool] = False

    def start(self, configuration: Configuration | None) -> LuthierProcess:
        """Start a server; see `LuthierProcess.start`."""
        return LuthierProcess.start(
            self.model,
            configuration,
            spawner=self.spawner,
            is_trusted=self.is_trusted,
            always=self.always,
            pods=self.pods,
        )

    def close(self) -> None:
        """Remove the control groups, if servers have some."""
        if self.pods is not None:
            self.pods.close()


class LuthierProcess:
    """Running server, from `start` to `stop` or the end of a `with` block."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        facts: ReadyLine,
        errors: Output,
        always: Mapping[str, apply.Setting] = MappingProxyType({}),
        *,
        token: str | None = None,
        pod: Pod | None = None,
    ) -> None:
        self._pod = pod
        self._process = process
        self._always = always
        self._errors = errors
        self.facts = facts
        self.host = facts.host
        self.port = facts.port
        self.pids = (facts.pid,)
        """Process id of the gateway; for the replicas, see `replica_facts`."""
        self.admin = AdminClient(facts.host, facts.admin_port, token=token)

    @classmethod
    def start(
        cls,
        model: str | None,
        configuration: Configuration | None = None,
        *,
        spawner: str | None = None,
        is_trusted: bool = False,
        always: Mapping[str, apply.Setting] = MappingProxyType({}),
        pods: PodLimiter | None = None,
        timeout_s: float = START_TIMEOUT_S,
        program: Sequence[str] = SERVER,
    ) -> LuthierProcess:
        """Start a server on free ports and wait until it is ready.

        Args:
            model: bundled model or file; None for no model.
            configuration: None for the engine's own defaults.
            program: Python arguments that run the server.

        Raises:
            UsageError: the server rejects model or settings.
            LaunchFailed: `start` or `timeout`, with the last line that the server printed.
        """
        configuration = configuration or Configuration({})
        pod = None if pods is None else pods.limit(configuration)
        command = _command(program, model, configuration, spawner, is_trusted, always)
        if pod is not None:
            command += ["--set", "replica.limits=pod"]
        process = subprocess.Popen(  # noqa: S603 - a list made here, no shell
            command,
            env=without_secrets(os.environ),  # meant for the owner's own servers
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        errors = Output(process.stderr)
        try:
            if pod is not None:
                pod.join(process.pid)
            facts = _ready_facts(process, errors, timeout_s=timeout_s)
            token = _token_of(facts)
        except BaseException as error:
            _end(process, grace_s=STOP_GRACE_S)
            errors.join()
            process.stdout.close()
            oom = None if pod is None else pod.oom_text()
            if pod is not None:
                pod.close()
            if oom is not None and isinstance(error, LaunchFailed):
                text = f"the server ended before it was ready: {oom}"
                raise LaunchFailed("oom", text) from error
            raise
        _log.info("engine started", extra={"fields": dataclasses.asdict(facts)})
        return cls(process, facts, errors, always, token=token, pod=pod)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def apply(self, configuration: Configuration, *, timeout_s: float = APPLY_TIMEOUT_S) -> float:
        """Apply a configuration to new replicas, and return the seconds until they are ready."""
        before_s = time.monotonic()
        settings = apply.complete_settings(configuration, self._always)
        pod = self._pod
        with contextlib.nullcontext() if pod is None else pod.changing(configuration):
            self.admin.apply(settings, timeout_s=timeout_s)
        return time.monotonic() - before_s

    def describe(self) -> EngineInfo:
        """Describe the served model."""
        answer = self.admin.settings()
        (model,) = answer["models"]
        return EngineInfo(
            model=str(model["name"]),
            kind=str(model["kind"]),
            signature=Signature.from_json(model["signature"]),
            limits=str(answer["limits"]),
            device=model.get("device"),
        )

    def replica_facts(self) -> ReplicaFacts:
        """Return the replicas' current report, or the death of the whole server for memory."""
        try:
            return replica_facts.parse(self.admin.replicas())
        except LaunchFailed:
            if self.is_running() or (oom := self._oom_text()) is None:
                raise
            death = ReportedDeath(reason="oom", text=oom, who="the server")
            return ReplicaFacts(replicas=(), deaths=(death,))

    def is_running(self) -> bool:
        """Whether the server process is alive."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """Return how the server ended, with its last line of output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=ENDING_S)
        status = self._process.poll()
        how = "still running" if status is None else describe_exit(status)
        if (oom := self._oom_text()) is not None:
            return f"{how}; {oom}"
        last = self._errors.last_line().removeprefix(SPEAKER)
        return f"{how}; last output: {last}" if last else how

    def _oom_text(self) -> str | None:
        return None if self._pod is None else self._pod.oom_text()

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Stop the server with SIGTERM, and with SIGKILL after `grace_s`."""
        _end(self._process, grace_s=grace_s)
        clocks.restore_stale()  # a killed server leaves GPU clocks changed
        self._errors.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._pod is not None:
            self._pod.close()
        _log.info(
            "engine stopped",
            extra={"fields": {"pid": self.facts.pid, "status": self._process.returncode}},
        )


def _command(
    program: Sequence[str],
    model: str | None,
    configuration: Configuration,
    spawner: str | None,
    is_trusted: bool,
    always: Mapping[str, apply.Setting],
) -> list[str]:
    what = ["--allow-empty"] if model is None else ["--model", model]
    if is_trusted:
        what.append("--trust")
    own = [sys.executable, "-I", "-S", end_with_parent.__file__, str(os.getpid())]
    command = [*own, sys.executable, *program, *what, "--port", "0", "--admin-port", "0"]
    command += ["--set", "server.grpc_port=null"]  # the load is sent over REST
    if spawner is not None:
        command += ["--set", f"replica.spawner={spawner}"]
    for name, value in apply.complete_settings(configuration, always).items():
        command += ["--set", f"{name}={json.dumps(value) if not isinstance(value, str) else value}"]
    return command


def _ready_facts(
    process: subprocess.Popen[bytes], errors: Output, *, timeout_s: float
) -> ReadyLine:
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


def _parsed_ready(line: bytes) -> ReadyLine:
    try:
        said: dict[str, Any] = json.loads(line)
        return ReadyLine(
            **{field.name: said[field.name] for field in dataclasses.fields(ReadyLine)},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchFailed(
            "start", f"the server printed {line[:200]!r} instead of its ready line"
        ) from error


def _token_of(facts: ReadyLine) -> str | None:
    if facts.admin_token_file is None:
        return None
    try:
        return pathlib.Path(facts.admin_token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        text = (
            f"the token of the server's admin port cannot be read: {facts.admin_token_file}: "
            f"{error}"
        )
        raise LaunchFailed("start", text) from error


def _ended_early(process: subprocess.Popen[bytes], errors: Output) -> UsageError | LaunchFailed:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_GRACE_S)
    errors.join()
    text = (
        errors.last_line().removeprefix(SPEAKER)
        or f"the server ended with status {process.returncode} before it was ready"
    )
    return (
        UsageError(text)
        if process.returncode == UsageError.exit_code
        else LaunchFailed("start", text)
    )


def _end(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the rest of its session, replicas too
    process.wait()
