"""Blocking client of the engine's admin port.

Each call uses a new connection, so the client survives a restart of the engine.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from serving.error_text import one_line
from tuner.errors import LaunchFailed
from tuner.launching import readiness
from tuner.launching.readiness import ReadinessCheck
from tuner.values.trial import Cause

READ_TIMEOUT_S = 10.0
CAUSES: dict[str, Cause] = {
    "oom": "oom",
    "crash": "start",
    "load": "start",
    "timeout": "timeout",
    "limits": "limits",
}
"""Cause of failure for each of the engine's reasons for rejecting settings."""


class AdminClient:
    """Client for one engine's admin port."""

    def __init__(self, host: str, port: int, *, token: str | None = None) -> None:
        self.host = host
        self.port = port
        self._fields = {} if token is None else {"Authorization": f"Bearer {token}"}

    def settings(self) -> dict[str, Any]:
        """Return generation, settings, limits and models, or raise LaunchFailed (`crash`)."""
        return self._read("/admin/settings")

    def replicas(self) -> dict[str, Any]:
        """Return replicas and deaths since the last apply, or raise LaunchFailed (`crash`)."""
        return self._read("/admin/replicas")

    def models(self) -> list[dict[str, Any]]:
        """Return the models of `GET /admin/models`, or raise LaunchFailed (`crash`)."""
        found: list[dict[str, Any]] = self._read("/admin/models")["models"]
        return found

    def deploy(self, model: str, name: str, *, timeout_s: float) -> None:
        """Load a bundled model or a file, and wait until it accepts requests as `name`.

        Raises:
            LaunchFailed: `start` with the engine's reason, or `crash` if the engine is gone.
        """
        body = {"model": model, "name": name}
        status, data = self._send("POST", "/admin/models", body, timeout_s=timeout_s)
        answer = _parse_json(data)
        if status != http.HTTPStatus.CREATED:
            text = one_line(answer.get("error", f"the engine answered {status}"))
            raise LaunchFailed("start", text)

    def apply(self, settings: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Apply settings to new replicas, and wait until they are ready.

        Raises:
            LaunchFailed: `oom`, `start`, `timeout`, `limits` or `constraint` if the engine rejects
                the settings and keeps the old ones; `crash` if it is gone.
        """
        body = {"settings": dict(settings), "restart_replicas": True, "keep_learned": False}
        status, data = self._send("PATCH", "/admin/settings", body, timeout_s=timeout_s)
        answer = _parse_json(data)
        if status == http.HTTPStatus.OK:
            return answer
        text = one_line(answer.get("error", f"the engine answered {status}"))
        if status == http.HTTPStatus.BAD_REQUEST:
            raise LaunchFailed("constraint", text)
        if status == http.HTTPStatus.CONFLICT:
            raise LaunchFailed(CAUSES.get(str(answer.get("reason")), "start"), text)
        raise LaunchFailed("crash", f"the engine answered {status} to new settings: {text}")

    def metrics(self) -> str:
        """Return the engine's Prometheus metrics, or raise LaunchFailed (`crash`)."""
        return self._page("/metrics").decode(errors="replace")

    def _read(self, path: str) -> dict[str, Any]:
        return _parse_json(self._page(path))

    def _page(self, path: str) -> bytes:
        status, data = self._send("GET", path, None, timeout_s=READ_TIMEOUT_S)
        if status != http.HTTPStatus.OK:
            text = one_line(_parse_json(data).get("error", "no reason given"))
            raise LaunchFailed("crash", f"the engine answered {status} to GET {path}: {text}")
        return data

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if content else {}
        fields = self._fields | kind
        request = ReadinessCheck(path=path, method=method, headers=fields, body=content)
        try:
            return readiness.send(self.host, self.port, request, timeout_s)
        except TimeoutError as error:
            raise LaunchFailed(
                "crash", f"no response from the engine to {method} {path} within {timeout_s:g} s"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise LaunchFailed(
                "crash", f"no response on the engine's admin port: {error!r}"
            ) from error


def _parse_json(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        parsed = {"error": data[:200].decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {"error": str(parsed)}
