"""Model kind `xgboost`: a booster saved as UBJSON or JSON, on the CPU (docs/models.md).

Models from the scikit-learn interface with early stopping use trees up to the best iteration.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import xgboost
from numpy.typing import NDArray

from serving.models import Arrays, as_load_failure, check_file, tabular
from serving.values import Signature

_OF_SCORES = ("binary:logistic", "binary:logitraw", "multi:softprob", "rank:")


class Model:
    """Booster in XGBoost's own file format."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        path = check_file(path, "the kind xgboost needs a file written by Booster.save_model")
        with as_load_failure(path, f"XGBoost {xgboost.__version__}"):
            self._booster = xgboost.Booster()
            # From a buffer the format is detected by content, from a file by suffix.
            self._booster.load_model(bytearray(path.read_bytes()))
            self._booster.set_param({"nthread": threads})
            learner = json.loads(self._booster.save_config())["learner"]
            self._is_linear = learner["gradient_booster"]["name"] == "gblinear"
            self._rounds = _rounds(self._booster)
            features = self._booster.num_features()
            answer = self._answer(np.zeros((1, features), np.float32))
            is_score = learner["objective"]["name"].startswith(_OF_SCORES)
        self._output = tabular.SCORES if is_score else tabular.PREDICTION
        self.signature = tabular.signature(
            (tabular.rows_spec(features, "FP32"),), self._output, answer, "xgboost"
        )

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Return the scores or predictions of a batch."""
        return {self._output: self._answer(inputs[tabular.INPUT])}

    def _answer(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        answer: NDArray[np.generic]
        if self._is_linear:  # only trees support prediction without a copy
            matrix = xgboost.DMatrix(rows)
            answer = self._booster.predict(matrix, validate_features=False)
        else:
            answer = self._booster.inplace_predict(
                rows, iteration_range=self._rounds, validate_features=False
            )
        return answer


def _rounds(booster: xgboost.Booster) -> tuple[int, int]:
    best = booster.attr("best_iteration")
    if best is None or booster.attr("scikit_learn") is None:
        return 0, 0
    return 0, int(best) + 1
