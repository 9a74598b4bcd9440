"""Are a server's answers those of the bare runtime? Asked with Triton's clients over REST and gRPC.

In: a running server, inputs, and the bare model. Out: the largest relative differences, alone, as the
same batch, and in company. The difference of two tensors is the largest one between their elements,
over the largest element of the bare one: a probability of 1e-9 need not have five right digits.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import server_process
import tritonclient.grpc
import tritonclient.http
from gallery_bare import Arrays, Call
from numpy.typing import NDArray

from serving.values import Signature

SAME, TOGETHER = 1e-5, 1e-4
"""Most that the same batch may differ, and an item alone from itself in a batch."""
SIZES = range(2, 9)
TIMEOUT_S = 30.0


class AllAlike(Exception):
    """Answers that cannot be told apart."""


class Client(Protocol):
    """One of Triton's clients, as far as it is used."""

    def answers(self, requests: Sequence[Arrays]) -> Iterator[Sequence[NDArray[Any]]]:
        """The outputs of requests that are under way at the same time."""
        ...


class Rest:
    """REST, tensors in binary form."""

    def __init__(self, where: server_process.Served, model: str, signature: Signature) -> None:
        self._client = tritonclient.http.InferenceServerClient(
            f"127.0.0.1:{where.port}", concurrency=max(SIZES), network_timeout=TIMEOUT_S
        )
        self._model, self._signature = model, signature

    def answers(self, requests: Sequence[Arrays]) -> Iterator[Sequence[NDArray[Any]]]:
        """The outputs of requests that are under way at the same time."""
        outputs = [each.name for each in self._signature.outputs]
        asked = [
            self._client.async_infer(
                self._model,
                _inputs(tritonclient.http.InferInput, arrays, self._signature),
                outputs=[tritonclient.http.InferRequestedOutput(name) for name in outputs],
            )
            for arrays in requests
        ]
        for each in asked:
            found = each.get_result(timeout=TIMEOUT_S)
            yield [found.as_numpy(name) for name in outputs]


class Grpc:
    """gRPC."""

    def __init__(self, where: server_process.Served, model: str, signature: Signature) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{where.grpc_port}")
        self._model, self._signature = model, signature

    def answers(self, requests: Sequence[Arrays]) -> Iterator[Sequence[NDArray[Any]]]:
        """The outputs of requests that are under way at the same time."""
        asked: list[concurrent.futures.Future[Any]] = []
        for arrays in requests:
            asked.append(concurrent.futures.Future())
            self._client.async_infer(
                self._model,
                _inputs(tritonclient.grpc.InferInput, arrays, self._signature),
                callback=functools.partial(_told, asked[-1]),
                client_timeout=TIMEOUT_S,
            )
        for each in asked:
            found = each.result(TIMEOUT_S)
            yield [found.as_numpy(spec.name) for spec in self._signature.outputs]


def _told(asked: concurrent.futures.Future[Any], result: Any, error: Exception | None) -> None:
    """What Triton's client calls with an answer, by these names."""
    if error is None:
        asked.set_result(result)
    else:
        asked.set_exception(error)


PROTOCOLS: dict[str, type[Rest | Grpc]] = {"REST": Rest, "gRPC": Grpc}


def _inputs(kind: Any, arrays: Arrays, signature: Signature) -> list[Any]:
    given = []
    for spec in signature.inputs:
        array = arrays[spec.name]
        one = kind(spec.name, list(array.shape), spec.datatype)
        one.set_data_from_numpy(array)
        given.append(one)
    return given


class Expected(NamedTuple):
    """What is right."""

    alone: Sequence[Sequence[NDArray[Any]]]
    batches: Mapping[int, Sequence[NDArray[Any]]]
    """By their size."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What came of one protocol."""

    same: float
    """The same request, or the same batch, on both sides."""
    together: float | None
    """Items that were sent at once, against the bare runtime's answers to each alone; None: it is not
    batched."""

    @property
    def are_right(self) -> bool:
        """Whether both are within what is allowed."""
        return self.same <= SAME and (self.together is None or self.together <= TOGETHER)


def expected(items: Sequence[Arrays], bare: Call, signature: Signature) -> Expected:
    """What the bare model answers to items alone and, where the model is batched, to batches of them.

    Raises:
        AllAlike: it answers the same to all of them, so that a server that mixed them up would be right.
    """
    alone = [bare(each) for each in items]
    if all(difference(each, alone[0]) <= TOGETHER for each in alone):
        raise AllAlike("the model answers the same to every input, so that answers tell nothing")
    if not signature.is_batched:
        return Expected(alone, {})
    return Expected(alone, {n: bare(joined(items[:n], signature)) for n in SIZES})


def compared(
    client: Client, items: Sequence[Arrays], right: Expected, signature: Signature
) -> Answers:
    """Ask for items alone, as client's batches of 2 to 8, and at once.

    Args:
        client: of one protocol.
        items: eight requests of one item each.
        right: what the bare model answers to them.
        signature: of the model.
    """
    alone = [next(iter(client.answers([each]))) for each in items]
    same = _largest(alone, right.alone)
    if not signature.is_batched:
        return Answers(same=max(same, _largest(client.answers(items), right.alone)), together=None)
    together = 0.0
    for size, batch in right.batches.items():
        ours = next(iter(client.answers([joined(items[:size], signature)])))
        same = max(same, difference(ours, batch))
        together = max(together, _largest(client.answers(items[:size]), right.alone[:size]))
    return Answers(same=same, together=together)


def compared_in_order(client: Client, items: Sequence[Arrays], bare: Call) -> Answers:
    """Ask one after another a model that keeps a state, which begins anew where the size of the batch changes."""
    wider = {
        name: np.concatenate([one, one]) if one.ndim else one for name, one in items[0].items()
    }
    bare(wider)
    next(iter(client.answers([wider])))
    pairs = [(next(iter(client.answers([each]))), bare(each)) for each in items]
    return Answers(same=max(difference(*pair) for pair in pairs), together=None)


def _largest(
    ours: Iterable[Sequence[NDArray[Any]]], theirs: Iterable[Sequence[NDArray[Any]]]
) -> float:
    return max(difference(*pair) for pair in zip(ours, theirs, strict=True))


def joined(items: Sequence[Arrays], signature: Signature) -> dict[str, NDArray[Any]]:
    """One request of several items; what they share is sent once."""
    return {
        spec.name: items[0][spec.name]
        if spec.item_axis is None
        else np.concatenate([each[spec.name] for each in items], axis=spec.item_axis)
        for spec in signature.inputs
    }


def difference(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> float:
    """The largest relative difference over all outputs; infinite where a shape differs."""
    return max(_difference(*each) for each in zip(ours, theirs, strict=True))


def _difference(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    if ours.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(ours.astype(str), theirs.astype(str)) else float("inf")
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    finite = np.isfinite(other)
    scale = float(np.abs(other[finite]).max(initial=0.0))
    return float(np.abs(one - other)[finite].max(initial=0.0)) / (scale or 1.0)


def largest_batch(port: int, model: str) -> int:
    """Of the batches that ran since the model was loaded, by the server's own statistics."""
    _, _, body = server_process.request(port, "GET", f"/v2/models/{model}/stats")
    batches = json.loads(body)["model_stats"][0].get("batch_stats", [])
    return max((int(each["batch_size"]) for each in batches), default=1)
