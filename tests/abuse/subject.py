"""The server that is abused: a real one on loopback, on one core, in a control group where rights allow that.

In: settings and arguments. Out: a running process, its ports, and what it holds: memory, descriptors,
processes, temporary folders, control groups, and its log. It is started anew on the same ports after a
kill, so that whoever watches it goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tests.abuse import machine

READY_S = 30.0
_TOKEN_VARIABLES = {"LUTHIER_TOKEN", "LUTHIER_ADMIN_TOKEN"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSpec:
    """How a server is started."""

    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    arguments: Sequence[str] = ("--model", "echo")
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    memory_mib: int | None = 2048
    """Of its control group."""
    descriptors: int | None = None
    """`ulimit -n`."""
    token: str | None = None
    """Of the query ports."""
    wrapper: Sequence[str] = ()
    """Words before the command, such as `faketime`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a server holds at a moment."""

    memory_mib: float
    """Of all its processes."""
    descriptors: int
    """Of the gateway."""
    processes: int
    temporary: int
    """`luthier-*` in its temporary folder."""
    groups: int
    """Control groups of its processes."""

    def over(self, before: Holding) -> str:
        """What is more than before, memory apart, in words; empty: nothing."""
        return ", ".join(
            f"{getattr(self, name)} {name}, {getattr(before, name)} before"
            for name in ("descriptors", "processes", "temporary", "groups")
            if getattr(self, name) > getattr(before, name)
        )


class NotReady(Exception):
    """The server did not start."""


class Subject:
    """One server, through all its lives."""

    def __init__(self, folder: pathlib.Path, spec: SubjectSpec, *, is_pinned: bool = True) -> None:
        """Nothing is started yet.

        Args:
            folder: of its own; short, for it will hold sockets.
            spec: how it is started.
            is_pinned: whether it gets a core of its own and a control group.
        """
        self.folder = folder
        self.spec = spec
        self.port, self.admin_port, self.grpc_port = free_ports(3)
        self.log = folder / "log"
        self._is_pinned = is_pinned
        self._mark = secrets.token_hex(8)
        self._group: pathlib.Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self.facts: dict[str, Any] = {}
        self._lives: set[int] = set()
        """Process numbers of all gateways that were started."""
        self.ready_s = 0.0
        """How long the last start took."""
        for name in ("tmp", "cache", "run"):
            (folder / name).mkdir(exist_ok=True, mode=0o700)

    # Life

    def start(self) -> Subject:
        """Start it and wait until it is ready.

        Raises:
            NotReady: it ended, or took too long.
        """
        began_s = time.monotonic()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                self._words(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(),
                start_new_session=True,
            )
        line = _line_within(self._process, READY_S)
        if not line:
            self.end()
            raise NotReady(self.log_text()[-2000:])
        self.facts = json.loads(line)
        self._lives.add(self.pid)
        self.ready_s = time.monotonic() - began_s
        return self

    def launch_and_end(self, within_s: float = READY_S) -> int:
        """Start it where it is expected to end by itself; its exit code."""
        with self.log.open("a") as log:
            process = subprocess.Popen(
                self._words(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        try:
            return process.wait(within_s)
        finally:
            process.kill()
            process.wait()

    def stop(self, within_s: float = 30.0) -> int | None:
        """End it in order; its exit code."""
        process = self._process
        if process is None:
            return None
        process.terminate()
        try:
            return process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def kill(self) -> None:
        """End it as the kernel does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send the gateway a signal."""
        os.kill(self.pid, number)

    def restart(self) -> None:
        """Start it again after `kill` or `stop`."""
        self._close_pipe()
        self.start()

    def end(self) -> None:
        """End it and whatever it left."""
        self.stop(5.0)
        self._close_pipe()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self._group is not None:
            machine.remove_group(self._group)
            self._group = None

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Of the gateway."""
        assert self._process is not None
        return int(self.facts.get("pid", self._process.pid))

    @property
    def is_alive(self) -> bool:
        """Whether the gateway runs."""
        return self._process is not None and self._process.poll() is None

    def _words(self) -> list[str]:
        settings = {"server.grpc_port": self.grpc_port, **self.spec.settings}
        words = [*self.spec.wrapper, sys.executable, "-m", "serving", *self.spec.arguments]
        words += ["--port", str(self.port), "--admin-port", str(self.admin_port)]
        words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        if not self._is_pinned:
            return words
        before = machine.on_core(0)
        script = ""
        if self.spec.memory_mib is not None and self._group is None:
            self._group = machine.memory_group(f"luthier-abuse-{self._mark}", self.spec.memory_mib)
        if self._group is not None:
            script += f'echo $$ > "{self._group}/cgroup.procs"; '
        if self.spec.descriptors is not None:
            script += f"ulimit -n {self.spec.descriptors}; "
        return (
            [*before, "sh", "-c", f'{script}exec "$@"', "sh", *words] if script else before + words
        )

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("LUTHIER_")}
        given = {
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "ABUSE_SUBJECT": self._mark,
            **self.spec.environment,
        }
        if self.spec.token is not None:
            given["LUTHIER_TOKEN"] = self.spec.token
        return inherited | given

    # Questions

    def admin_token(self) -> str | None:
        """The token of the admin port, from the environment or from the file that the ready line names."""
        if "LUTHIER_ADMIN_TOKEN" in self.spec.environment:
            return self.spec.environment["LUTHIER_ADMIN_TOKEN"]
        for name, value in self.facts.items():
            if "token" in name and isinstance(value, str) and pathlib.Path(value).is_file():
                return pathlib.Path(value).read_text(encoding="ascii").strip()
        return None

    def authorization(self, *, admin: bool = False) -> dict[str, str]:
        """The field that a request needs; empty where none."""
        token = self.admin_token() if admin else self.spec.token
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        admin: bool = False,
        timeout_s: float = 20.0,
    ) -> tuple[int, bytes]:
        """One request by an honest client, with its token; status and body.

        Raises:
            OSError: nobody answers.
        """
        port = self.admin_port if admin else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        fields = {**self.authorization(admin=admin), **(headers or {})}
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, fields)
                response = connection.getresponse()
                return response.status, response.read()
            except http.client.HTTPException as error:
                raise ConnectionError(str(error)) from error

    def is_ready(self) -> bool:
        """Whether it says so."""
        try:
            return self.ask("GET", "/v2/health/ready", timeout_s=2.0)[0] == 200
        except OSError:
            return False

    def ready_within(self, seconds: float) -> float | None:
        """How long it took to be ready, None: it is not."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < seconds:
            if self.is_ready():
                return time.monotonic() - began_s
            time.sleep(0.02)
        return None

    def metrics(self) -> str:
        """Prometheus's text."""
        return self.ask("GET", "/metrics", admin=True)[1].decode()

    def replicas(self) -> list[dict[str, Any]]:
        """As the admin port shows them."""
        rows = json.loads(self.ask("GET", "/admin/replicas", admin=True)[1])["replicas"]
        assert isinstance(rows, list)
        return rows

    def memory_kills(self) -> int:
        """Processes in its control group that the kernel killed for memory."""
        return 0 if self._group is None else machine.out_of_memory_kills(self._group)

    # What it holds

    def processes(self) -> list[int]:
        """Those that were started for it, ended ones that nobody has waited for included."""
        return machine.marked(f"ABUSE_SUBJECT={self._mark}")

    def memory_mib(self) -> float:
        """Resident memory of all its processes."""
        return sum(machine.memory_mib(pid) for pid in self.processes())

    def holding(self) -> Holding:
        """What it holds now."""
        processes = self.processes()
        temporary = list((self.folder / "tmp").glob("luthier-*"))
        return Holding(
            memory_mib=sum(machine.memory_mib(pid) for pid in processes),
            descriptors=machine.descriptors(self.pid),
            processes=len(processes),
            temporary=len(temporary),
            groups=machine.groups_of(self._lives),
        )

    def log_text(self, start: int = 0) -> str:
        """Its log from a byte on."""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode("utf-8", "replace")

    def log_bytes(self) -> int:
        """Length of its log."""
        return self.log.stat().st_size if self.log.exists() else 0


def free_ports(count: int) -> list[int]:
    """Ports that nobody has."""
    with contextlib.ExitStack() as owns:
        socks = [owns.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


def _line_within(process: subprocess.Popen[str], seconds: float) -> str:
    """The first line of its output; empty: it ended, or is silent."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if readable else ""
