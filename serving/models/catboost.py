"""Model kind `catboost`: a `.cbm` file on the CPU, one input per feature type (docs/models.md)."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import catboost
import numpy as np
from numpy.typing import NDArray

from serving.models import Arrays, as_load_failure, check_file, tabular
from serving.values import Signature, TensorSpec

CATEGORIES, TEXTS = "categories", "texts"
_OF_ONE_SIGN = ("Poisson", "Tweedie")


class Model:
    """CatBoost model with numeric, categorical and text features."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        path = check_file(path, "the kind catboost needs a .cbm file written by save_model")
        self._threads = threads
        with as_load_failure(path, f"CatBoost {catboost.__version__}"):
            self._model = catboost.CatBoost().load_model(str(path))
            if self._model.get_embedding_feature_indices():
                raise ValueError("it has embedding features, which cannot be served")
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
            answer = self._answer({spec.name: tabular.blank(spec) for spec in specs})
        self._output = tabular.SCORES if is_score else tabular.PREDICTION
        self.signature = tabular.signature(specs, self._output, answer, "catboost")

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Return the scores or predictions of a batch."""
        return {self._output: self._answer(inputs)}

    def _answer(self, inputs: Arrays) -> NDArray[np.generic]:
        if self._columns.keys() == {tabular.INPUT}:
            # Column-major arrays are used in place, row-major ones copied.
            rows = np.asfortranarray(inputs[tabular.INPUT])
        else:
            rows = self._build_pool(inputs)
        return np.asarray(
            self._model.predict(rows, prediction_type=self._form, thread_count=self._threads)
        )

    def _build_pool(self, inputs: Arrays) -> catboost.Pool:
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
    categories = model.get_cat_feature_indices()
    texts = model.get_text_feature_indices()
    others = {*categories, *texts}
    numbers = [place for place in range(len(model.feature_names_)) if place not in others]
    given = {tabular.INPUT: numbers, CATEGORIES: categories, TEXTS: texts}
    return {name: columns for name, columns in given.items() if columns}


def _form(model: catboost.CatBoost, *, is_score: bool) -> str:
    if is_score:
        return "Probability"
    loss = str(model.get_params().get("loss_function", ""))
    return "Exponent" if loss.startswith(_OF_ONE_SIGN) else "RawFormulaVal"
