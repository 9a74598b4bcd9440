"""Model calls shared by several requests, for servers that pass arrays (Triton, Ray Serve)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.errors import InferenceFailed
from serving.models import Arrays, LoadedModel

_Key = tuple[tuple[str, str, tuple[int, ...]], ...]


class BatchRunner:
    """Runner of a loaded model; not thread-safe."""

    def __init__(self, model: LoadedModel) -> None:
        self.signature = model.signature
        self._predict_batch: Any = model.predict_batch  # its result is not checked yet
        self._preprocess: Any = getattr(model, "preprocess", None)
        self._postprocess: Any = getattr(model, "postprocess", None)

    def run(self, requests: Sequence[Arrays]) -> list[Arrays | Exception]:
        """Run requests, in one call per shape and datatype if the batch axis is free.

        Each request is {input name: (n, ...) array}; its response is {output name: (n, ...) array},
        or the exception that its call raised.
        """
        groups: dict[object, list[int]] = {}
        for index, request in enumerate(requests):
            key: object = _key(request) if self.signature.is_batched else index
            groups.setdefault(key, []).append(index)
        answers: list[Arrays | Exception] = [InferenceFailed("not run")] * len(requests)
        for indexes in groups.values():
            try:
                outputs = self._outputs([requests[index] for index in indexes])
            except Exception as error:  # a model may raise anything
                outputs = [error] * len(indexes)
            for index, answer in zip(indexes, outputs, strict=True):
                answers[index] = answer
        return answers

    def _outputs(self, requests: list[Arrays]) -> list[Arrays | Exception]:
        if len(requests) == 1:
            return [self._call(requests[0])]
        counts = [len(next(iter(request.values()))) for request in requests]
        joined = {
            name: np.concatenate([request[name] for request in requests]) for name in requests[0]
        }
        outputs = self._call(joined)
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != sum(counts):
                raise InferenceFailed(
                    f"the model returned {name!r} of shape {list(array.shape)} for {sum(counts)} items"
                )
        ends = np.cumsum(counts)
        return [
            {name: array[end - count : end] for name, array in outputs.items()}
            for count, end in zip(counts, ends, strict=True)
        ]

    def _call(self, inputs: Any) -> Arrays:
        if self._preprocess is not None:
            inputs = self._preprocess(inputs)
        outputs = self._predict_batch(inputs)
        if self._postprocess is not None:
            outputs = self._postprocess(outputs)
        names = [spec.name for spec in self.signature.outputs]
        if not isinstance(outputs, Mapping) or not set(names) <= outputs.keys():
            raise InferenceFailed(f"the model did not return its outputs {', '.join(names)}")
        return {name: np.asarray(outputs[name]) for name in names}


def _key(request: Arrays) -> _Key:
    return tuple(
        (name, array.dtype.str, array.shape[1:]) for name, array in sorted(request.items())
    )
