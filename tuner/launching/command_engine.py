"""Launcher for the server of an engine file, with a new process for each configuration.

A launch takes free ports, a new folder with the engine file's files, a control group with
`engine.cpu` and `engine.memory_mb`, and a process. If the tuner is killed, the next tuner or `tune
doctor --clean` removes its groups (`serving.system.cgroups.manager`). Blocking.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import shutil
import socket
import tempfile
import time

from serving.errors import LimitsUnavailable
from serving.system import process_identity
from serving.system.cgroups import manager
from serving.system.cgroups.cgroup import ControlGroup, Usage
from serving.system.cgroups.manager import CgroupManager
from serving.system.secret_variables import without_secrets
from tuner.engines import template
from tuner.engines.description import CommandEngine
from tuner.errors import LaunchFailed
from tuner.launching import readiness
from tuner.launching.engine import EngineInfo
from tuner.launching.output import describe_exit
from tuner.launching.pod import oom_text
from tuner.launching.readiness import ReadinessCheck
from tuner.launching.replica_facts import ReplicaFact, ReplicaFacts, ReportedDeath
from tuner.launching.supervised_process import ProcessSpec, SupervisedProcess
from tuner.values.configuration import Configuration

HOST = "127.0.0.1"
CPU, MEMORY = "engine.cpu", "engine.memory_mb"
_log = logging.getLogger(__name__)


class CommandLauncher:
    """Launcher for one engine file; its control groups exist until `close`."""

    why_not_interleaved: str | None = None
    is_restarted: bool = True

    def __init__(
        self,
        engine: CommandEngine,
        defaults: Configuration,
        *,
        model: str,
        file: str,
        sign: ReadinessCheck,
    ) -> None:
        """Prepare without starting anything.

        Args:
            defaults: values of the engine file's knobs that are not searched.
            model: name of the model in the study.
            file: value of `{model}`.
        """
        self.engine = engine
        self.defaults = defaults
        self.model = model
        self.file = file
        self.sign = sign
        self.limits = CgroupManager(process_identity.this_process().new_name())
        self._is_open = False
        self._count = 0

    def start(self, configuration: Configuration | None) -> CommandServer:
        """Start a server, or raise LaunchFailed with the server's last line of output."""
        if not self._is_open:
            manager.cleanup_stale()
            self.limits.open()
            self._is_open = True
        server = CommandServer(self)
        server.apply(configuration or Configuration({}))
        return server

    def group(self) -> ControlGroup | None:
        """Return a control group for the next server, or None if groups are unsupported."""
        self._count += 1
        try:
            return self.limits.group(self._count)
        except LimitsUnavailable as error:
            raise LaunchFailed("limits", str(error)) from error

    def close(self) -> None:
        """Remove the control groups."""
        if self._is_open:
            self.limits.close()


class CommandServer:
    """Server that restarts for each configuration."""

    def __init__(self, launcher: CommandLauncher) -> None:
        self._launcher = launcher
        self._engine = launcher.engine
        self._process: SupervisedProcess | None = None
        self._group: ControlGroup | None = None
        self._memory_mb: int | None = None
        self._work: pathlib.Path | None = None
        self.host = HOST
        self.port = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes in the control group or, without one, of the first process."""
        if self._process is None:
            return ()
        if self._group is None:
            return (self._process.pid,)
        words = self._group.procs_files[0].read_text(encoding="ascii").split()
        return tuple(pid for pid in map(int, words) if pid > 0)  # 0: of another namespace

    def apply(self, configuration: Configuration) -> float:
        """Restart the server; return the seconds until it is ready. On failure, no server runs."""
        before_s = time.monotonic()
        self.stop()
        whole = Configuration({**self._launcher.defaults, **configuration})
        try:
            self._start(whole)
            readiness.wait(
                self.host,
                self.port,
                self._launcher.sign,
                timeout_s=self._engine.ready_timeout_s,
                check=self._check_alive,
            )
        except LaunchFailed as error:
            said = "" if error.cause != "timeout" else self._last_output()
            self.stop()
            raise LaunchFailed(error.cause, f"{error.text}{said}") from error
        except BaseException:
            self.stop()
            raise
        seconds = time.monotonic() - before_s
        _log.info("engine started", extra={"fields": {"port": self.port, "seconds": seconds}})
        return seconds

    def describe(self) -> EngineInfo:
        """Describe the model, including its signature if the protocol reports it."""
        model = self._launcher.model
        return EngineInfo(
            model=model,
            kind=self._engine.name,
            signature=readiness.told_signature(self.host, self.port, model, self._engine.request),
            limits=self._launcher.limits.support.text,
            engine=self._engine.label,
        )

    def replica_facts(self) -> ReplicaFacts:
        """Return the server as one replica, which has died if a process was killed for memory."""
        oom = self._oom_text()
        process = self._process
        if oom is None and (process is None or not process.is_running()):
            raise LaunchFailed("crash", f"the server has ended: {self.last_words()}")
        usage = Usage() if self._group is None else self._group.usage()
        whole = ReplicaFact(
            pid=None,  # `pids` has them all
            peak_memory_mb=usage.peak_memory_mb,
            cpu_s=usage.cpu_s,
            throttled_s=usage.throttled_s,
        )
        deaths = () if oom is None else (ReportedDeath(reason="oom", text=oom, who="the server"),)
        return ReplicaFacts(replicas=(whole,), deaths=deaths)

    def is_running(self) -> bool:
        """Whether the server's first process is alive."""
        return self._process is not None and self._process.is_running()

    def last_words(self) -> str:
        """Return how the server ended, with its last line of output."""
        if self._process is None:
            return "it was not started"
        how = "still running"
        if not self._process.is_running():
            status = self._process.exit_status()
            how = "ended with its supervisor" if status is None else describe_exit(status)
        return f"{how}{self._last_output()}"

    def stop(self) -> None:
        """End all processes of the server, and remove its control group and folder."""
        process, self._process = self._process, None
        group, self._group = self._group, None
        work, self._work = self._work, None
        try:
            if process is not None:
                process.stop()
        finally:
            if group is not None:
                self._launcher.limits.kill(group)
            if work is not None:
                shutil.rmtree(work, ignore_errors=True)

    def _start(self, configuration: Configuration) -> None:
        engine = self._engine
        name = process_identity.this_process().new_name()
        self._work = pathlib.Path(tempfile.gettempdir()) / name
        self._work.mkdir(mode=0o700)
        values = self._values(configuration, self._work)
        for name, text in engine.files.items():
            path = self._work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(template.fill(text, values), encoding="utf-8")
        self._group = self._make_control_group(configuration)
        environment = without_secrets(os.environ)  # meant for the owner's own servers
        environment |= {
            name: template.fill(text, values) for name, text in engine.environment.items()
        }
        order = ProcessSpec(
            command=tuple(template.fill(word, values) for word in engine.command),
            environment=environment,
            directory=template.fill(engine.directory, values),
            groups=() if self._group is None else tuple(map(str, self._group.procs_files)),
            signal=int(engine.stop_signal),
            grace_s=engine.stop_grace_s,
        )
        self._process = SupervisedProcess.start(order)

    def _values(self, configuration: Configuration, work: pathlib.Path) -> dict[str, str]:
        names = [name for name in self._engine.places if template.is_port(name)]
        ports = dict(zip(names, _free_ports(len(names)), strict=True))
        self.port = ports["port"]
        return {
            **template.of_knobs(configuration),
            **{name: str(port) for name, port in ports.items()},
            "model": self._launcher.file,
            "folder": str(self._engine.file.parent),
            "work": str(work),
            "python": self._engine.python,
        }

    def _make_control_group(self, configuration: Configuration) -> ControlGroup | None:
        cpu, memory_mb = configuration.get(CPU), configuration.get(MEMORY)
        self._memory_mb = int(memory_mb) if memory_mb is not None else None
        group = self._launcher.group()
        if group is not None and (cpu is not None or memory_mb is not None):
            try:
                group.set_limits(cpu=None if cpu is None else float(cpu), memory_mb=self._memory_mb)
            except LimitsUnavailable as error:
                self._launcher.limits.kill(group)
                raise LaunchFailed("limits", str(error)) from error
        return group

    def _check_alive(self) -> None:
        oom = self._oom_text()
        if oom is not None:
            raise LaunchFailed("oom", f"the server ended before it was ready: {oom}")
        if not self.is_running():
            text = f"the server ended before it was ready: {self.last_words()}"
            raise LaunchFailed("start", text)

    def _oom_text(self) -> str | None:
        if self._group is None:
            return None
        return oom_text(self._group, self._memory_mb, knob=MEMORY)

    def _last_output(self) -> str:
        if self._process is None:
            return ""
        with contextlib.suppress(RuntimeError):
            if not self._process.is_running():
                self._process.output.join()
        last = self._process.output.last_line()
        return f"; last output: {last}" if last else ""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
