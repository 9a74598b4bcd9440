"""Kind xgboost: a booster that `save_model` wrote, as UBJSON or JSON, through XGBoost on the CPU.

In: `input` FP32 [-1, features], columns in the order of the training, NaN where a value is missing: XGBoost compares
in FP32, whatever it is given, so nothing is lost. Categories are their codes. Out, FP32: `scores`, the probabilities
(or margins, or ranks) of an objective of classes or ranks, [-1] of two classes and [-1, classes] of more; `prediction`
of any other.

A file that a classifier or regressor of XGBoost's scikit-learn interface saved answers as that does: with the trees up
to its best iteration where the training was stopped early. Any other one answers with all of its trees.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import xgboost
from numpy.typing import NDArray

from serving.models import Arrays, tabular
from serving.values import Signature

PLATFORM = "xgboost"
_OF_SCORES = ("binary:logistic", "binary:logitraw", "multi:softprob", "rank:")
"""Beginnings of objectives whose answers are scores."""


class Model:
    """One booster."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        path = tabular.existing(path, "the kind xgboost needs what Booster.save_model wrote")
        with tabular.as_load_failure(path, f"XGBoost {xgboost.__version__}"):
            self._booster = xgboost.Booster()
            # Of a buffer the form is found by its content, of a file by its suffix.
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
            (tabular.rows_spec(features, "FP32"),), self._output, answer, PLATFORM
        )

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Predict for a batch."""
        return {self._output: self._answer(inputs[tabular.INPUT])}

    def _answer(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        answer: NDArray[np.generic]
        if self._is_linear:  # only trees can be asked in place, without a copy
            matrix = xgboost.DMatrix(rows)
            answer = self._booster.predict(matrix, validate_features=False)
        else:
            answer = self._booster.inplace_predict(
                rows, iteration_range=self._rounds, validate_features=False
            )
        return answer


def _rounds(booster: xgboost.Booster) -> tuple[int, int]:
    """Iterations that answer, from the first to the one after the last; (0, 0): all."""
    best = booster.attr("best_iteration")
    if best is None or booster.attr("scikit_learn") is None:
        return 0, 0
    return 0, int(best) + 1
