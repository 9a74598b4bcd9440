"""Model kind `lightgbm`: a booster in LightGBM's text format, on the CPU (docs/models.md)."""

from __future__ import annotations

import logging
import mmap
import pathlib

import lightgbm
import numpy as np
from numpy.typing import NDArray

from serving.models import Arrays, as_load_failure, check_file, tabular
from serving.values import Signature

_OF_SCORES = ("binary", "multiclass", "lambdarank", "rank_xendcg")
_SILENCE = logging.getLogger(f"{__name__}.silence")
_SILENCE.setLevel(logging.CRITICAL)  # errors that matter are raised
_OBJECTIVE, _END = b"\nobjective=", b"\nend of trees"


class Model:
    """Booster in LightGBM's text format."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        path = check_file(path, "the kind lightgbm needs a file written by Booster.save_model")
        self._threads = threads
        lightgbm.register_logger(_SILENCE)
        with as_load_failure(path, f"LightGBM {lightgbm.__version__}"):
            objective = _checked_objective(path)
            self._booster = lightgbm.Booster(model_file=path)
            features = self._booster.num_feature()
            answer = self._answer(np.zeros((1, features)))
        is_score = objective.startswith(_OF_SCORES)
        self._output = tabular.SCORES if is_score else tabular.PREDICTION
        self.signature = tabular.signature(
            (tabular.rows_spec(features, "FP64"),), self._output, answer, "lightgbm"
        )

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Return the scores or predictions of a batch."""
        return {self._output: self._answer(inputs[tabular.INPUT])}

    def _answer(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.asarray(self._booster.predict(rows, num_threads=self._threads))


def _checked_objective(path: pathlib.Path) -> str:
    """Return the objective in a file; empty if it is custom.

    Raises ValueError if the file is truncated, which would crash LightGBM.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        if text.find(_END) < 0:
            raise ValueError(
                "it is not a complete LightGBM model: the line 'end of trees' is missing"
            )
        place = text.find(_OBJECTIVE)
        text.seek(max(0, place + 1))
        line = text.readline()
    return line.decode().strip().partition("=")[2] if place >= 0 else ""
