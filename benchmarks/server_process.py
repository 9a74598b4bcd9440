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
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 60.0
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


@contextlib.contextmanager
def luthier(model: str, settings: Mapping[str, object]) -> Iterator[int]:
    """Our server; yields its query port."""
    with luthier_process(model, settings) as (port, _):
        yield port


@contextlib.contextmanager
def luthier_process(
    model: str, settings: Mapping[str, object], *, tree: pathlib.Path = ROOT
) -> Iterator[tuple[int, int]]:
    """The server of a checkout; yields query port and process. Ready is the line of JSON that it prints."""
    command = [
        sys.executable,
        "-m",
        "serving",
        "--model",
        model,
        "--port",
        "0",
        "--admin-port",
        "0",
    ]
    for name, value in settings.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    environment = {"PYTHONPATH": str(tree)}
    with _session(command, environment, stdout=subprocess.PIPE, folder=tree) as (process, log):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ServerFailed(_last_words(command, log))
        port: int = json.loads(line)["port"]
        yield port, process.pid


@contextlib.contextmanager
def mosec_echo(batch_size: int, wait_ms: int) -> Iterator[int]:
    """Mosec with the no-op worker; yields its port. Ready is the first answered inference."""
    port = free_port()
    script = str(ROOT / "benchmarks" / "peers" / "mosec_echo.py")
    command = [sys.executable, script, "--address", "127.0.0.1", "--port", str(port)]
    environment = {"BATCH_SIZE": str(batch_size), "WAIT_MS": str(wait_ms)}
    with _session(command, environment, stdout=subprocess.DEVNULL) as (process, log):
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise ServerFailed(_last_words(command, log))
            time.sleep(0.05)
        yield port


def _answers(port: int) -> bool:
    try:
        return request(port, "POST", "/inference", b"ready?")[0] == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


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
