"""What Clipper's Python API needs of whoever runs servers and models, and how it speaks HTTP to them.

A manager starts and stops the server and the models' replicas; everything else goes through the
management REST. `process_manager.ProcessContainerManager` is the one here.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from serving import admin_token, credentials
from serving.clipper_admin.exceptions import ClipperException
from serving.secret_variables import ADMIN_TOKEN_VARIABLE, TOKEN_VARIABLE

CONTAINERLESS_MODEL_IMAGE = "NO_CONTAINER"
"""Stands for the image of a model that is registered only."""
_TIMEOUT_S = 120.0
"""A model's start may take this long."""
_LONGEST_ANSWER_BYTES = 64 * 2**20


class ContainerManager(Protocol):
    """Runs a server and its models. Each method raises ClipperException."""

    def start_clipper(self, *, cache_size: int) -> None:
        """Start a server, and return when it answers; the cache's size is in bytes."""
        ...

    def connect(self) -> None:
        """Find the server that runs."""
        ...

    def model_folder(self, name: str, version: str) -> str:
        """A folder for a version's files that the server can read; it exists."""
        ...

    def deploy_model(
        self, name: str, version: str, input_type: str, image: str, num_replicas: int = 1
    ) -> None:
        """Start replicas of a version, and return when they are ready."""
        ...

    def get_num_replicas(self, name: str, version: str) -> int:
        """Replicas of a version that are ready."""
        ...

    def set_num_replicas(
        self, name: str, version: str, input_type: str, image: str, num_replicas: int
    ) -> None:
        """So many replicas, ready when this returns."""
        ...

    def get_logs(self, logging_dir: str) -> list[str]:
        """Copy the logs into a folder; returns their paths."""
        ...

    def stop_models(self, models: Mapping[str, Sequence[str]]) -> None:
        """Stop all replicas of these versions."""
        ...

    def stop_all_model_containers(self) -> None:
        """Stop all replicas of all models."""
        ...

    def stop_all(self, *, graceful: bool = True) -> None:
        """Stop the models and the server; gracefully: after what it has taken on."""
        ...

    def get_admin_addr(self) -> str:
        """host:port of the management REST."""
        ...

    def get_query_addr(self) -> str:
        """host:port of the query REST."""
        ...

    def get_metric_addr(self) -> str:
        """host:port where Prometheus finds the metrics."""
        ...


def post(address: str, path: str, data: Mapping[str, Any]) -> str:
    """The text that a command of the management REST answers with.

    Raises:
        ClipperException: it was refused, or the server cannot be reached.
    """
    body = json.dumps(data).encode()
    return _answered(
        urllib.request.Request(  # noqa: S310 - the scheme is of `_url`
            _url(address, path),
            data=body,
            headers={"Content-Type": "application/json", **_token_field(address)},
            method="POST",
        )
    )


def ping(address: str) -> str:
    """What the management REST says to a ping.

    Raises:
        ClipperException: as `post`.
    """
    url, headers = _url(address, "/admin/ping"), _token_field(address)
    return _answered(urllib.request.Request(url, headers=headers))  # noqa: S310 - likewise


def get(address: str, path: str) -> str:
    """The text of a page of the query REST.

    Raises:
        ClipperException: it was refused, or the server cannot be reached.
    """
    headers = _bearer(os.environ.get(TOKEN_VARIABLE))
    return _answered(urllib.request.Request(f"http://{address}{path}", headers=headers))


def _url(address: str, path: str) -> str:
    """Beyond loopback a management REST speaks TLS alone."""
    scheme = "http" if credentials.is_loopback(_host(address)) else "https"
    return f"{scheme}://{address}{path}"


def _token_field(address: str) -> dict[str, str]:
    """The field with the admin port's token: of the environment, or what a server of this user has made."""
    token = os.environ.get(ADMIN_TOKEN_VARIABLE)
    if token is None and credentials.is_loopback(_host(address)):
        token = admin_token.of_port(int(address.rpartition(":")[2]))
    return _bearer(token)


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token.strip()}"}


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Servers are on this machine or in this network: no proxy stands between."""


def _answered(request: urllib.request.Request) -> str:
    try:
        with _direct.open(request, timeout=_TIMEOUT_S) as response:
            return str(response.read(_LONGEST_ANSWER_BYTES), "utf-8", "replace")
    except urllib.error.HTTPError as error:
        text = str(error.read(_LONGEST_ANSWER_BYTES), "utf-8", "replace")
        raise ClipperException(
            f"Received error status code: {error.code} and message: {text}"
        ) from None
    except (OSError, ValueError) as error:
        raise ClipperException(
            f"The server does not answer at {request.full_url}: {error}"
        ) from error
