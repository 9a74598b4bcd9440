"""Request bodies with their request lines and headers, for one model or many."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import UsageError
from tuner.load_generator import oip_body
from tuner.values.study_record import InputSummary

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""Allowed methods; a response to HEAD would announce a body but have none."""
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payloads:
    """Requests in the order in which they are sent, again and again."""

    requests: tuple[bytes, ...]
    """Bodies; a single empty one for requests without a body."""
    headers: Mapping[str, str]
    """Headers without Host and Content-Length, which the client adds."""
    path: str
    method: str = "POST"
    is_synthetic: bool = False
    """Whether inputs are random, so that latency may differ and quality is unknown."""
    description: str
    labels: NDArray[np.generic] | None = None
    """Correct answers (n, client_batch)."""
    client_batch: int = 1
    indexes: tuple[str, ...] = ()
    """Synthetic integer inputs, which may be out-of-range indexes."""
    guessed: tuple[str, ...] = ()
    sent: InputSummary | None = None
    answer: str = "open-inference"
    """Response format: a protocol or a datatype; empty if responses are not read."""

    @property
    def varies(self) -> bool:
        """Whether requests differ in size."""
        return len(set(map(len, self.requests))) > 1

    def __post_init__(self) -> None:
        if not self.requests:
            raise UsageError(f"{self.description}: no request to send")
        if self.method not in METHODS:
            raise UsageError(f"method {self.method!r}: expected one of {', '.join(METHODS)}")
        if not re.fullmatch(r"/[!-~]*", self.path):
            raise UsageError(f"path {self.path!r}: expected /... in ASCII, without spaces")
        for name, value in self.headers.items():
            if not (HEADER_NAME.fullmatch(name) and re.fullmatch(r"[\t -~\x80-\xff]*", value)):
                raise UsageError(f"header {name!r}: {value!r} is not allowed in an HTTP request")
            if name.lower() in {"content-length", "transfer-encoding", "connection"}:
                raise UsageError(f"header {name!r} is set by the client itself")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestRoute:
    """Path and headers of a request."""

    path: str
    headers: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultiModelPayloads:
    """Requests for many models in the order in which they are sent, again and again.

    The client joins heads and bodies only to send them, so a thousand models can share bodies.
    """

    heads: tuple[RequestRoute, ...]
    bodies: tuple[bytes, ...]
    order: Sequence[tuple[int, int]]
    """Index of each request's head and of its body."""
    indexes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.order):
            raise ValueError("a mixture of no requests: expected at least one")

    def order_bytes(self) -> bytes:
        """Return the flattened pairs of `order` as C integers."""
        return array("i", [place for pair in self.order for place in pair]).tobytes()


def raw(
    bodies: Sequence[bytes],
    *,
    path: str,
    method: str,
    headers: Mapping[str, str],
    description: str,
) -> Payloads:
    """Make payloads from unchanged bodies, for any HTTP server."""
    return Payloads(
        requests=tuple(bodies), headers=headers, path=path, method=method, description=description
    )


def of_items(
    items: Sequence[Sequence[oip_body.RequestInput]],
    *,
    path: str,
    description: str,
    labels: NDArray[np.generic] | None = None,
    client_batch: int = 1,
) -> Payloads:
    """Make Open Inference Protocol requests of `client_batch` items each; `labels` is (n,)."""
    if not items:
        raise UsageError(f"{description}: no request to send")
    groups = oip_body.groups(len(items), client_batch)
    stacked = [oip_body.stack([items[place] for place in group], description) for group in groups]
    return of_requests(
        stacked,
        path=path,
        description=description,
        labels=None if labels is None else labels[groups],
        client_batch=client_batch,
    )


def of_requests(
    requests: Sequence[Sequence[oip_body.RequestInput]],
    *,
    path: str,
    description: str,
    labels: NDArray[np.generic] | None = None,
    client_batch: int = 1,
) -> Payloads:
    """Make payloads from complete requests; `labels` is (n, client_batch)."""
    bodies, header_bytes = oip_body.encode(requests)
    if client_batch > 1:
        description = f"{description}, {client_batch} in each request"
    return Payloads(
        requests=bodies,
        headers={
            "Content-Type": "application/octet-stream",
            oip_body.LENGTH_HEADER: str(header_bytes),
        },
        path=path,
        description=description,
        labels=labels,
        client_batch=client_batch,
    )


def infer_path(model: str) -> str:
    """Return the inference path of the model's latest version."""
    return f"/v2/models/{urllib.parse.quote(model, safe='')}/infer"
