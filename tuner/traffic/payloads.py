"""What is sent: whole request bodies, and the line and headers that go with them.

In: raw bodies, or inputs of a model by its signature. Out: `Payloads`. Bodies for models are Open
Inference Protocol v2 requests in binary form, one item each (`oip_body`). This file reads no files
(`payload_files` does) and knows no sockets.
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
from tuner.traffic import oip_body

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
    """(n,) the right answer of each request, where the file has them."""
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
) -> Payloads:
    """Requests of the Open Inference Protocol, one for each item."""
    if not items:
        raise WrongUse(f"{description}: there is no request to send")
    bodies, header_bytes = oip_body.encode(items)
    return Payloads(
        requests=bodies,
        headers={
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(header_bytes),
        },
        path=path,
        is_synthetic=is_synthetic,
        description=description,
        labels=labels,
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
) -> Payloads:
    """Random inputs that fit a signature.

    Args:
        signature: inputs of the model; the first dimension is the batch, which is 1 where it is free.
        n: how many different requests.
        rng: source of the values: floats standard normal, integers 0 to 9, BYTES eight letters.
        model: its name, for the path.
        free_dimension: length of every other free dimension.
    """
    items = [
        [_random_input(spec, rng, free_dimension) for spec in signature.inputs] for _ in range(n)
    ]
    return of_items(
        items,
        path=infer_path(model),
        description=f"{n} random inputs of the model's signature",
        is_synthetic=True,
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
