"""Kind catboost: a model that `save_model` wrote in CatBoost's own form (`.cbm`), through CatBoost on the CPU.

In, each where the model has features of it, columns in the order of the training: `input` FP32 [-1, n], its features
that are numbers, NaN where a value is missing (CatBoost compares in FP32); `categories` BYTES [-1, n], those that are
categories, as they were written for the training; `texts` BYTES [-1, n], those that are texts. Out: `scores` FP64
[-1, classes], probabilities in the order of the training's classes; `prediction` FP64 of any other loss, [-1] of one
target, [-1, targets] of more.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import catboost
import numpy as np
from numpy.typing import NDArray

from serving.models import Arrays, tabular
from serving.values import Signature, TensorSpec

PLATFORM = "catboost"
CATEGORIES, TEXTS = "categories", "texts"
_OF_ONE_SIGN = ("Poisson", "Tweedie")
"""Losses whose answer is the exponent of what the trees say, as the library's own regressor has it."""


class Model:
    """One model and the number of threads that it may use."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        path = tabular.existing(path, "the kind catboost needs what save_model wrote, a .cbm file")
        self._threads = threads
        with tabular.as_load_failure(path, f"CatBoost {catboost.__version__}"):
            self._model = catboost.CatBoost().load_model(str(path))
            if self._model.get_embedding_feature_indices():
                raise ValueError("it has features that are embeddings, which cannot be served")
            self._columns = _columns(self._model)
            is_score = bool(len(self._model.classes_))
            self._form = _form(self._model, is_score=is_score)
            specs = tuple(
                TensorSpec(
                    name=name,
                    datatype="FP32" if name == tabular.INPUT else "BYTES",
                    shape=(-1, len(columns)),
                )
                for name, columns in self._columns.items()
            )
            answer = self._answer({spec.name: _blank(spec) for spec in specs})
        self._output = tabular.SCORES if is_score else tabular.PREDICTION
        self.signature = tabular.signature(specs, self._output, answer, PLATFORM)

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Predict for a batch."""
        return {self._output: self._answer(inputs)}

    def _answer(self, inputs: Arrays) -> NDArray[np.generic]:
        if self._columns.keys() == {tabular.INPUT}:
            rows = np.asfortranarray(
                inputs[tabular.INPUT]
            )  # columns are taken as they are, rows copied
        else:
            rows = self._mixed(inputs)
        return np.asarray(
            self._model.predict(rows, prediction_type=self._form, thread_count=self._threads)
        )

    def _mixed(self, inputs: Arrays) -> catboost.Pool:
        """Rows of numbers and texts, each in the columns of the training."""
        count = len(next(iter(inputs.values())))
        rows = np.empty((count, sum(map(len, self._columns.values()))), object)
        for name, columns in self._columns.items():
            rows[:, columns] = inputs[name]
        return catboost.Pool(
            rows,
            cat_features=self._columns.get(CATEGORIES),
            text_features=self._columns.get(TEXTS),
            thread_count=self._threads,
        )


def _columns(model: catboost.CatBoost) -> Mapping[str, list[int]]:
    """Input -> its features' places among all; of inputs that have any."""
    categories = model.get_cat_feature_indices()
    texts = model.get_text_feature_indices()
    numbers = [
        place
        for place in range(len(model.feature_names_))
        if place not in categories and place not in texts
    ]
    given = {tabular.INPUT: numbers, CATEGORIES: categories, TEXTS: texts}
    return {name: columns for name, columns in given.items() if columns}


def _form(model: catboost.CatBoost, *, is_score: bool) -> str:
    """What the model is asked for, by the library's name."""
    if is_score:
        return "Probability"
    loss = str(model.get_params().get("loss_function", ""))
    return "Exponent" if loss.startswith(_OF_ONE_SIGN) else "RawFormulaVal"


def _blank(spec: TensorSpec) -> NDArray[np.generic]:
    """One row of zeros, or of empty texts."""
    shape = (1, *spec.shape[1:])
    return np.zeros(shape, np.float32) if spec.datatype == "FP32" else np.full(shape, b"", object)
