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

from serving.values import Signature, TensorSpec
from tuner.errors import WrongUse
from tuner.traffic import oip_body, stacking

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""HEAD is left out: its answers announce a body that does not come."""
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


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
    is_synthetic: bool = False,
    labels: NDArray[np.generic] | None = None,
    client_batch: int = 1,
) -> Payloads:
    """Requests of the Open Inference Protocol, one for each item or for `client_batch` of them.

    Args:
        items: one array per input, batch dimension included.
        path: of the requests.
        description: what they are, and how many.
        is_synthetic: whether the inputs are random.
        labels: (n,) the right answer of each item.
        client_batch: items in each request.

    Raises:
        WrongUse: no item, or items that cannot share a request.
    """
    if not items:
        raise WrongUse(f"{description}: there is no request to send")
    groups = stacking.groups(len(items), client_batch)
    stacked = [stacking.stacked([items[place] for place in group], description) for group in groups]
    bodies, header_bytes = oip_body.encode(stacked)
    if client_batch > 1:
        description = f"{description}, {client_batch} in each request"
    return Payloads(
        requests=bodies,
        headers={
            "Content-Type": "application/octet-stream",
            oip_body.LENGTH_HEADER: str(header_bytes),
        },
        path=path,
        is_synthetic=is_synthetic,
        description=description,
        labels=None if labels is None else labels[groups],
        client_batch=client_batch,
    )


def infer_path(model: str) -> str:
    """Path that answers inference of the model's newest version."""
    return f"/v2/models/{urllib.parse.quote(model, safe='')}/infer"


def synthetic(
    signature: Signature,
    n: int,
    rng: np.random.Generator,
    *,
    model: str,
    free_dimension: int = 1,
    client_batch: int = 1,
) -> Payloads:
    """Random inputs that fit a signature.

    Args:
        signature: inputs of the model; the first dimension is the batch, which is 1 where it is free.
        n: how many different items.
        rng: source of the values: floats standard normal, integers 0 to 9, BYTES eight letters.
        model: its name, for the path.
        free_dimension: length of every other free dimension.
        client_batch: items in each request.
    """
    items = [
        [_random_input(spec, rng, free_dimension) for spec in signature.inputs] for _ in range(n)
    ]
    return of_items(
        items,
        path=infer_path(model),
        description=f"{n} random inputs of the model's signature",
        is_synthetic=True,
        client_batch=client_batch,
    )


def _random_input(
    spec: TensorSpec, rng: np.random.Generator, free_dimension: int
) -> oip_body.Input:
    items = max(1, spec.shape[0]) if spec.shape else 1  # a batch that is fixed is sent whole
    shape = (items, *(free_dimension if length < 0 else length for length in spec.shape[1:]))
    if spec.datatype == "BYTES":
        words = ["".join(rng.choice(_LETTERS, 8)) for _ in range(int(np.prod(shape)))]
        return oip_body.Input(spec=spec, array=np.array(words, dtype=object).reshape(shape))
    kind = oip_body.DTYPES[spec.datatype]
    if kind.kind == "f":
        return oip_body.Input(spec=spec, array=rng.standard_normal(shape).astype(kind))
    high = 2 if kind.kind == "b" else 10
    return oip_body.Input(spec=spec, array=rng.integers(0, high, shape).astype(kind))
