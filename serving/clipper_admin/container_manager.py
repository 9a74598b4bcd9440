"""Management commands and pages of a server over HTTP, for Clipper's Python API."""

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


def post(address: str, path: str, data: Mapping[str, Any]) -> str:
    """Send a management command and return the response.

    Raises:
        ClipperException: rejected or unreachable.
    """
    body = json.dumps(data).encode()
    return _fetch(
        urllib.request.Request(  # noqa: S310 - the scheme is of `_url`
            _url(address, path),
            data=body,
            headers={"Content-Type": "application/json", **_token_field(address)},
            method="POST",
        )
    )


def ping(address: str) -> str:
    """Ping the management REST.

    Raises:
        ClipperException: as `post`.
    """
    url, headers = _url(address, "/admin/ping"), _token_field(address)
    return _fetch(urllib.request.Request(url, headers=headers))  # noqa: S310 - likewise


def get(address: str, path: str) -> str:
    """Return a page of the query REST.

    Raises:
        ClipperException: rejected or unreachable.
    """
    headers = _bearer(os.environ.get(TOKEN_VARIABLE))
    return _fetch(urllib.request.Request(f"http://{address}{path}", headers=headers))


def _url(address: str, path: str) -> str:
    scheme = "http" if is_loopback(_host(address)) else "https"
    return f"{scheme}://{address}{path}"


def _token_field(address: str) -> dict[str, str]:
    token = os.environ.get(ADMIN_TOKEN_VARIABLE)
    if token is None and is_loopback(_host(address)):
        token = admin_token.of_port(int(address.rpartition(":")[2]))
    return _bearer(token)


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token.strip()}"}


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without a proxy."""


def _fetch(request: urllib.request.Request) -> str:
    try:
        with _direct.open(request, timeout=_TIMEOUT_S) as response:
            return str(response.read(_MAX_RESPONSE_BYTES), "utf-8", "replace")
    except urllib.error.HTTPError as error:
        text = str(error.read(_MAX_RESPONSE_BYTES), "utf-8", "replace")
        raise ClipperException(
            f"Received error status code: {error.code} and message: {text}"
        ) from None
    except (OSError, ValueError) as error:
        raise ClipperException(
            f"No response from the server at {request.full_url}: {error}"
        ) from error
