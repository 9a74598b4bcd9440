"""What is sent: whole request bodies, and the line and headers that go with them.

In: raw bodies, or inputs of a model by its signature. Out: `Payloads`. Bodies for models are Open
Inference Protocol v2 requests in binary form (`oip_body`), of one item each or of as many as the
client batches (`stacking`). This file reads no files (`payload_files` does) and knows no sockets.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import WrongUse
from tuner.traffic import oip_body, stacking
from tuner.values import SentInputs

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""HEAD is left out: its answers announce a body that does not come."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payloads:
    """Requests in the order they are sent; after the last one comes the first again."""

    requests: tuple[bytes, ...]
    """Bodies; one empty body where none is sent."""
    headers: Mapping[str, str]
    """Sent with every request; Host and Content-Length are added by the client."""
    path: str
    method: str = "POST"
    is_synthetic: bool = False
    """Random inputs. Their latency may differ from real ones', and quality cannot be judged."""
    description: str
    """For notes and reports: what it is, and how many."""
    labels: NDArray[np.generic] | None = None
    """(n, client_batch) the right answers of each request's items, where the file has them."""
    client_batch: int = 1
    """Items in each request."""
    indexes: tuple[str, ...] = ()
    """Inputs of whole numbers that were made up, of which an index may be out of range."""
    guessed: tuple[str, ...] = ()
    """Inputs that were given small whole numbers because nobody told which they take."""
    sent: SentInputs | None = None
    """The same, input by input; None where the server does not tell them."""
    answer: str = "open-inference"
    """How an answer is read: a protocol's form, the datatype of the numbers that it is made of, or
    empty: it is not."""

    def __post_init__(self) -> None:
        if not self.requests:
            raise WrongUse(f"{self.description}: there is no request to send")
        if self.method not in METHODS:
            raise WrongUse(f"method {self.method!r}: expected one of {', '.join(METHODS)}")
        if not re.fullmatch(r"/[!-~]*", self.path):
            raise WrongUse(f"path {self.path!r}: expected /... in ASCII, without spaces")
        for name, value in self.headers.items():
            if not re.fullmatch(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name) or not re.fullmatch(
                r"[\t -~\x80-\xff]*", value
            ):
                raise WrongUse(f"header {name!r}: {value!r} cannot stand in an HTTP request")
            if name.lower() in {"content-length", "transfer-encoding", "connection"}:
                raise WrongUse(f"header {name!r} is set by the client itself")


def raw(
    bodies: Sequence[bytes],
    *,
    path: str,
    method: str,
    headers: Mapping[str, str],
    description: str,
) -> Payloads:
    """Bodies as they are, for any HTTP server."""
    return Payloads(
        requests=tuple(bodies), headers=headers, path=path, method=method, description=description
    )


def of_items(
    items: Sequence[Sequence[oip_body.Input]],
    *,
    path: str,
    description: str,
    labels: NDArray[np.generic] | None = None,
    client_batch: int = 1,
) -> Payloads:
    """Requests of the Open Inference Protocol, one for each item or for `client_batch` of them.

    Args:
        items: one array per input, batch dimension included.
        path: of the requests.
        description: what they are, and how many.
        labels: (n,) the right answer of each item.
        client_batch: items in each request.

    Raises:
        WrongUse: no item, or items that cannot share a request.
    """
    if not items:
        raise WrongUse(f"{description}: there is no request to send")
    groups = stacking.groups(len(items), client_batch)
    stacked = [stacking.stacked([items[place] for place in group], description) for group in groups]
    return of_requests(
        stacked,
        path=path,
        description=description,
        labels=None if labels is None else labels[groups],
        client_batch=client_batch,
    )


def of_requests(
    requests: Sequence[Sequence[oip_body.Input]],
    *,
    path: str,
    description: str,
    labels: NDArray[np.generic] | None = None,
    client_batch: int = 1,
) -> Payloads:
    """Requests of the Open Inference Protocol as they are; `labels` is (n, client_batch)."""
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
    """Path that answers inference of the model's newest version."""
    return f"/v2/models/{urllib.parse.quote(model, safe='')}/infer"
