"""Kind lightgbm: a booster that `save_model` wrote as text, through LightGBM on the CPU.

In: `input` FP64 [-1, features], columns in the order of the training, NaN where a value is missing: LightGBM's
thresholds are FP64, and FP32 may fall on the other side of one. Categories are their codes. Out, FP64: `scores`, the
probabilities of an objective of classes, or ranks: [-1] of two classes, [-1, classes] of more; `prediction` of any
other.
"""

from __future__ import annotations

import mmap
import pathlib

import lightgbm
import numpy as np
from numpy.typing import NDArray

from serving.models import Arrays, tabular
from serving.values import Signature

PLATFORM = "lightgbm"
_OF_SCORES = ("binary", "multiclass", "lambdarank", "rank_xendcg")
"""Beginnings of objectives whose answers are scores."""
_OBJECTIVE, _END = b"\nobjective=", b"\nend of trees"


class _Silence:
    """A logger for what the library would write to the output: what matters of it is raised."""

    def info(self, text: str) -> None:
        """Of progress."""

    def warning(self, text: str) -> None:
        """Of what it makes up for."""


class Model:
    """One booster and the number of threads that it may use."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        path = tabular.existing(path, "the kind lightgbm needs what Booster.save_model wrote")
        self._threads = threads
        lightgbm.register_logger(_Silence())
        with tabular.as_load_failure(path, f"LightGBM {lightgbm.__version__}"):
            objective = _checked_objective(path)
            self._booster = lightgbm.Booster(model_file=path)
            features = self._booster.num_feature()
            answer = self._answer(np.zeros((1, features)))
        is_score = objective.startswith(_OF_SCORES)
        self._output = tabular.SCORES if is_score else tabular.PREDICTION
        self.signature = tabular.signature(
            (tabular.rows_spec(features, "FP64"),), self._output, answer, PLATFORM
        )

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Predict for a batch."""
        return {self._output: self._answer(inputs[tabular.INPUT])}

    def _answer(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.asarray(self._booster.predict(rows, num_threads=self._threads))


def _checked_objective(path: pathlib.Path) -> str:
    """The objective of a file; empty where the training had one of its own.

    Raises:
        ValueError: the file was cut off, of which the library would die instead of raising.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        if text.find(_END) < 0:
            raise ValueError("it is not a whole LightGBM model: it has no line 'end of trees'")
        place = text.find(_OBJECTIVE)
        text.seek(max(0, place + 1))
        line = text.readline()
    return line.decode().strip().partition("=")[2] if place >= 0 else ""
