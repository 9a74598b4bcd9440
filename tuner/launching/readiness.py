"""Readiness check and model metadata of a server.

Each attempt uses a new connection. Blocking, with timeouts.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import time
from collections.abc import Callable, Mapping

from serving.values import Signature
from tuner.engines.description import RequestFormat
from tuner.errors import LaunchFailed

PERIOD_S = 0.02
RESPONSE_TIMEOUT_S = 10.0
"""Timeout of one attempt; a server's first request may be slow."""
MIN_TIMEOUT_S = 1.0
"""Minimum timeout of the last attempt, which explains a failure."""
MAX_REPORTED = 200
"""Maximum number of characters that an error quotes from a server."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessCheck:
    """Request that a ready server answers with 2xx."""

    path: str
    method: str = "GET"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""


def wait(
    host: str, port: int, sign: ReadinessCheck, *, timeout_s: float, check: Callable[[], None]
) -> None:
    """Wait until the server is ready.

    Args:
        check: called between attempts; raises an error if waiting is useless.

    Raises:
        LaunchFailed: `timeout`, with the last response, or any error that `check` raises.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        check()
        left_s = until_s - time.monotonic()
        why = _why_not_ready(
            host, port, sign, timeout_s=min(RESPONSE_TIMEOUT_S, max(left_s, MIN_TIMEOUT_S))
        )
        if why is None:
            return
        if time.monotonic() > until_s:
            check()
            asked = f"{sign.method} {sign.path}"
            raise LaunchFailed(
                "timeout", f"the server was not ready after {timeout_s:g} s: {asked} {why}"
            )
        time.sleep(PERIOD_S)


def signature(host: str, port: int, path: str, headers: Mapping[str, str]) -> Signature:
    """Return a model's Open Inference Protocol metadata, or raise LaunchFailed if it has none."""
    where = f"http://{host}:{port}{path}"
    try:
        check = ReadinessCheck(path=path, headers=headers)
        status, data = send(host, port, check, RESPONSE_TIMEOUT_S)
    except (OSError, http.client.HTTPException) as error:
        text = f"no server responds at {where}: {error}; is it running?"
        raise LaunchFailed("start", text) from error
    if status != http.HTTPStatus.OK:
        raise LaunchFailed("start", f"{where} answered {status}: {_shorten(data)}")
    try:
        return Signature.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchFailed("start", f"{where} is not the metadata of a model: {error!r}") from error


def told_signature(host: str, port: int, model: str, request: RequestFormat) -> Signature | None:
    """Return the model's `signature`, or None if the protocol is not Open Inference."""
    if request.protocol != "open-inference":
        return None
    return signature(host, port, request.metadata_path(model), request.headers)


def _why_not_ready(host: str, port: int, sign: ReadinessCheck, *, timeout_s: float) -> str | None:
    try:
        status, data = send(host, port, sign, timeout_s)
    except TimeoutError:
        return f"got no response within {timeout_s:.3g} s"
    except (OSError, http.client.HTTPException) as error:
        return f"failed: {error}" if str(error) else f"failed: {error!r}"
    if status // 100 == 2:
        return None
    told = _shorten(data)
    return f"got status {status}{': ' * bool(told)}{told}"


def send(
    host: str, port: int, sign: ReadinessCheck, timeout_s: float, *, max_bytes: int | None = None
) -> tuple[int, bytes]:
    """Send one request on a new connection; return the status and at most `max_bytes` of the body.

    Raises:
        OSError, http.client.HTTPException: the server does not respond.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(sign.method, sign.path, sign.body or None, dict(sign.headers))
        response = connection.getresponse()
        return response.status, response.read(max_bytes)
    finally:
        connection.close()


def _shorten(data: bytes) -> str:
    text = " ".join(data[: 4 * MAX_REPORTED].decode(errors="replace").split())
    return text if len(text) <= MAX_REPORTED else f"{text[: MAX_REPORTED - 4]} ..."
