"""Management commands and pages of a server, over HTTP, for Clipper's Python API."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from serving.api import admin_token
from serving.api.transport.trusted_hosts import is_loopback
from serving.clipper_admin.exceptions import ClipperException
from serving.system.secret_variables import ADMIN_TOKEN_VARIABLE, TOKEN_VARIABLE

CONTAINERLESS_MODEL_IMAGE = "NO_CONTAINER"
"""Image of a model that is only registered."""
_TIMEOUT_S = 120.0
_MAX_RESPONSE_BYTES = 64 * 2**20


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""URL opener that ignores proxies in the environment."""


def post(address: str, path: str, data: Mapping[str, Any]) -> str:
    """Send a management command and return the response, or raise ClipperException."""
    return _manage(address, path, json.dumps(data).encode())


def ping(address: str) -> str:
    """Ping the management REST API, or raise ClipperException."""
    return _manage(address, "/admin/ping", None)


def get(address: str, path: str) -> str:
    """Return a page of the query REST API, or raise ClipperException."""
    return _fetch(f"http://{address}{path}", os.environ.get(TOKEN_VARIABLE), None)


def _manage(address: str, path: str, body: bytes | None) -> str:
    host, _, port = address.rpartition(":")
    is_local = is_loopback(host.strip("[]"))
    token = os.environ.get(ADMIN_TOKEN_VARIABLE)
    if token is None and is_local:
        token = admin_token.of_port(int(port))
    return _fetch(f"{'http' if is_local else 'https'}://{address}{path}", token, body)


def _fetch(url: str, token: str | None, body: bytes | None) -> str:
    headers = {} if body is None else {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token.strip()}"
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - the scheme is the caller's
    try:
        with _direct.open(request, timeout=_TIMEOUT_S) as response:
            return str(response.read(_MAX_RESPONSE_BYTES), "utf-8", "replace")
    except urllib.error.HTTPError as error:
        text = str(error.read(_MAX_RESPONSE_BYTES), "utf-8", "replace")
        raise ClipperException(
            f"Received error status code: {error.code} and message: {text}"
        ) from None
    except (OSError, ValueError) as error:
        raise ClipperException(f"No response from the server at {url}: {error}") from error
