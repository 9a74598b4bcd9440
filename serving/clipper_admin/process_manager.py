"""Container manager without containers: a local server process with its replicas.

`start_clipper` starts `python -m serving`; `connect` uses a running server; `stop_all` ends either
one.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from serving.clipper_admin.container_manager import ping, post
from serving.clipper_admin.exceptions import ClipperException

log = logging.getLogger(__name__)

_POLL_S = 0.02


class ProcessContainerManager:
    """Manager of a local server process."""

    def __init__(
        self,
        cluster_name: str = "default-cluster",
        *,
        host: str = "127.0.0.1",
        clipper_query_port: int = 1337,
        clipper_management_port: int = 1338,
        command: Sequence[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        """Store the settings; start nothing.

        Args:
            cluster_name: name used in folder names.
            clipper_query_port, clipper_management_port: 0 means a free port.
            command: command that starts a server; default: `python -m serving`.
            folder: folder for model files and the log; default: a temporary one.
            start_timeout_s: maximum time until the server is ready.
            stop_timeout_s: time after which a stopping server is killed.
        """
        self.cluster_name = cluster_name
        self.cluster_identifier = cluster_name
        """Alias of `cluster_name`, which the released `clipper_admin` logs."""
        self._host = host
        self._query_port = clipper_query_port
        self._management_port = clipper_management_port
        self._command = command
        self._folder = None if folder is None else pathlib.Path(folder)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def start_clipper(self, *, cache_size: int) -> None:
        """Start a server and wait until it is ready."""
        if self._process is not None and self._process.poll() is None:
            raise ClipperException(
                f"The server of cluster {self.cluster_name} is already running (pid "
                f"{self._process.pid})"
            )
        command = list(self._command or self._default_command(cache_size))
        with self._log_path().open("ab") as errors, self._output_path().open("wb") as output:
            # Files and a session of its own let the server outlive this process.
            self._process = subprocess.Popen(  # noqa: S603  # the user's own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        try:
            facts = self._ready_line(self._process)
        except BaseException:
            self._end(graceful=False)
            raise
        self._host = str(facts.get("host", self._host))
        self._query_port = int(facts["port"])
        self._management_port = int(facts["admin_port"])
        self.connect()
        log.info("server started", extra={"pid": self._process.pid, "port": self._query_port})

    def _default_command(self, cache_size: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "serving",
            "--allow-empty",
            "--host",
            self._host,
            "--port",
            str(self._query_port),
            "--admin-port",
            str(self._management_port),
            "--set",
            f"cache.capacity_mb={round(cache_size / 2**20)}",
        ]

    def _ready_line(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        until_s = time.monotonic() + self._start_timeout_s
        while True:
            has_ended = process.poll() is not None
            line, end, _ = self._output_path().read_bytes().partition(b"\n")
            if end:
                return _facts(line)
            if has_ended:
                raise ClipperException(f"The server ended before it was ready{self._last_words()}")
            if time.monotonic() > until_s:
                raise ClipperException(
                    f"The server was not ready after {self._start_timeout_s:g} s"
                    f"{self._last_words()}"
                )
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        lines = self._log_path().read_text(encoding="utf-8", errors="replace").splitlines()
        return f": {lines[-1]}" if lines else ""

    def connect(self) -> None:
        """Check that a server responds."""
        answer = ping(self.get_admin_addr())
        if answer != "PONG":
            raise ClipperException(
                f"{self.get_admin_addr()} answers a ping with {answer[:40]!r}, expected "
                "PONG: it is not a management port"
            )

    def stop_all(self, *, graceful: bool = True) -> None:
        """Stop the server, even if another process started it, or raise ClipperException."""
        if self._process is not None:
            self._end(graceful=graceful)
            return
        self._operate("shutdown" if graceful else "shutdown?graceful=false")
        until_s = time.monotonic() + self._stop_timeout_s
        while self._answers():
            if time.monotonic() > until_s:
                raise ClipperException(
                    f"The server at {self.get_admin_addr()} was told to stop and still "
                    f"responds after {self._stop_timeout_s:g} s"
                )
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        try:
            self.connect()
        except ClipperException:
            return False
        return True

    def _end(self, *, graceful: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if graceful:
            process.terminate()
        else:
            process.kill()
        try:
            process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def model_folder(self, name: str, version: str) -> str:
        """Create the folder for the files of a version, and return its path."""
        folder = self._files() / "models" / name / version
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def deploy_model(
        self, name: str, version: str, input_type: str, image: str, num_replicas: int = 1
    ) -> None:
        """Start a version's replicas; `image` is the argument of `python -m serving --model`."""
        self._operate(
            "start_containers",
            model_name=name,
            model_version=version,
            container_name=image,
            input_type=input_type,
            num_replicas=num_replicas,
        )

    def get_num_replicas(self, name: str, version: str) -> int:
        """Return a version's number of ready replicas."""
        answer = self._operate("get_num_replicas", model_name=name, model_version=version)
        return int(answer)

    def set_num_replicas(
        self,
        name: str,
        version: str,
        input_type: str,  # noqa: ARG002  # Clipper's interface; the server knows both
        image: str,  # noqa: ARG002
        num_replicas: int,
    ) -> None:
        """Set the number of a version's replicas."""
        self._operate(
            "set_num_replicas", model_name=name, model_version=version, num_replicas=num_replicas
        )

    def stop_models(self, models: Mapping[str, Sequence[str]]) -> None:
        """Stop all replicas of the given versions."""
        self._operate(
            "stop_containers", models={name: list(versions) for name, versions in models.items()}
        )

    def stop_all_model_containers(self) -> None:
        """Stop all replicas of all models."""
        listed = json.loads(
            post(self.get_admin_addr(), "/admin/get_all_containers", {"verbose": True})
        )
        models: dict[str, list[str]] = {}
        for container in listed:
            models.setdefault(container["model_name"], []).append(container["model_version"])
        self.stop_models(models)

    def _operate(self, command: str, **data: object) -> str:
        return post(self.get_admin_addr(), f"/admin/{command}", data)

    def get_logs(self, logging_dir: str) -> list[str]:
        """Copy the log of a server started here into a folder."""
        target = pathlib.Path(logging_dir)
        target.mkdir(parents=True, exist_ok=True)
        if not self._log_path().exists():
            return []
        return [str(shutil.copy(self._log_path(), target / f"{self.cluster_name}.log"))]

    def get_admin_addr(self) -> str:
        """Return host:port of the management REST API."""
        return f"{self._url_host()}:{self._management_port}"

    def get_query_addr(self) -> str:
        """Return host:port of the query REST API."""
        return f"{self._url_host()}:{self._query_port}"

    def get_metric_addr(self) -> str:
        """Return host:port of the Prometheus metrics."""
        return self.get_admin_addr()

    def _url_host(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    def _files(self) -> pathlib.Path:
        if self._folder is None:
            self._folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.cluster_name}-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _log_path(self) -> pathlib.Path:
        return self._files() / "server.log"

    def _output_path(self) -> pathlib.Path:
        return self._files() / "server.out"


def _facts(line: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(line)
        if facts["event"] == "ready" and facts["port"] and facts["admin_port"]:
            return dict(facts)
    except (ValueError, KeyError, TypeError):
        pass
    shown = line[:200].decode("utf-8", "replace")
    raise ClipperException(f"The server printed {shown!r} instead of its ready line")
