"""Starts a server for a benchmark, waits until it answers, and ends all of its processes.

In: a command, and how to know that it is ready. Out: the port it serves. The server gets a session
of its own, so that nothing of it outlives the benchmark. Knows nothing of what is measured.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import serving
from serving.api import admin_token

ROOT = pathlib.Path(serving.__file__).resolve().parent.parent
"""Whose server is measured: what this process would import, be it a checkout or its compiled copy."""
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0


class ServerFailed(Exception):
    """The server did not start; the text holds the end of what it said."""


def free_port() -> int:
    """A port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def request(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], bytes]:
    """One request: status, headers with lower-case names, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, names, answer.read()
    finally:
        connection.close()


def administer(
    port: int, method: str, path: str, body: bytes = b""
) -> tuple[int, Mapping[str, str], bytes]:
    """One request to a server's admin port, with the token that it has made."""
    token = admin_token.of_port(port)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return request(port, method, path, body, headers)


class Served(NamedTuple):
    """Where our server is."""

    port: int
    admin_port: int
    grpc_port: int
    """0: it has none."""
    pid: int
    gateways: tuple[int, ...] = ()
    """Processes of the gateways, if there are several under `pid`."""


def form(tree: pathlib.Path) -> str:
    """Which form of the request path a tree holds: `python` or `compiled`."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", "import serving; print(serving.form())"]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@contextlib.contextmanager
def luthier(
    model: str, settings: Mapping[str, object], *, tree: pathlib.Path = ROOT
) -> Iterator[int]:
    """Our server; yields its query port."""
    with served(model, settings, tree=tree) as where:
        yield where.port


@contextlib.contextmanager
def served(
    model: str,
    settings: Mapping[str, object],
    *,
    tree: pathlib.Path = ROOT,
    program: Sequence[str] = ("-m", "serving"),
) -> Iterator[Served]:
    """The server of a checkout, and what it says of itself. Ready is the line of JSON that it prints."""
    command = [sys.executable, *program, "--model", model]
    command += ["--port", "0", "--admin-port", "0"]
    for name, value in settings.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    environment = {"PYTHONPATH": str(tree)}
    with _session(command, environment, stdout=subprocess.PIPE, folder=tree) as (process, log):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ServerFailed(_last_words(command, log))
        facts = json.loads(line)
        yield Served(
            facts["port"],
            facts["admin_port"],
            facts.get("grpc_port") or 0,
            facts["pid"],
            tuple(one["pid"] for one in facts.get("gateways", ())),
        )


@contextlib.contextmanager
def script(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    port: int,
    is_ready: Callable[[], bool],
) -> Iterator[int]:
    """Any server that is told its port; yields the port once the server is ready.

    What it writes to the temporary folder goes with it.
    """
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _session(command, {**environment, "TMPDIR": folder}, stdout=subprocess.DEVNULL) as (
            process,
            log,
        ),
    ):
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise ServerFailed(_last_words(command, log))
            time.sleep(0.05)
        yield port


@contextlib.contextmanager
def _session(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int,
    folder: pathlib.Path = ROOT,
) -> Iterator[tuple[subprocess.Popen[str], pathlib.Path]]:
    with tempfile.TemporaryDirectory() as logs:
        log = pathlib.Path(logs) / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environment},
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        try:
            yield process, log
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _last_words(command: Sequence[str], log: pathlib.Path) -> str:
    said = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    return f"`{' '.join(command[1:])}` did not start:\n{said}"
