"""Model kind `sklearn`: a fitted scikit-learn estimator, from a file that cannot run code.

- `.skops`: estimators and pipelines of scikit-learn's own parts, certain to load only with the
  version that stored them.
- `.npz`: arrays of a logistic regression, for any version: `coef` (classes, or 1 if binary;
  features), `intercept`, `classes`, and optionally `input_name`, `input_datatype`, `input_shape`
  (of one item).

docs/models.md describes inputs and outputs; items with several dimensions are flattened.
"""

from __future__ import annotations

import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import sklearn
import skops.io
import threadpoolctl  # type: ignore[import-untyped]  # has no types, comes with scikit-learn
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from serving.errors import InvalidRequest, ModelLoadFailed
from serving.models import Arrays, as_load_failure, check_file, decode_texts
from serving.values import Signature, TensorSpec

TRUSTED_PARTS = frozenset(
    {
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.metrics._dist_metrics.EuclideanDistance64",
        "sklearn.neighbors._ball_tree.BallTree",
        "sklearn.neighbors._kd_tree.KDTree",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.tree._tree.Tree",
        "sklearn.utils._bunch.Bunch",
    }
)
"""Parts of common estimators that skops does not trust by default.

None can run code; a forged tree can crash only the replica (skops pull request 535).
"""
INPUT_ATTRIBUTE = "serving_input"

_DATATYPES = {"f": "FP64", "i": "INT64", "u": "INT64", "b": "BOOL"}
_TYPES: dict[str, type] = {"FP64": np.float64, "INT64": np.int64, "BOOL": np.bool_, "BYTES": object}


class Model:
    """Fitted scikit-learn estimator."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        path = check_file(path, "the kind sklearn needs a .skops or .npz file")
        self._threads = threads
        self._pools = _Pools()
        with as_load_failure(path, f"scikit-learn {sklearn.__version__}"):
            self._estimator, declared = _read(path)
            jobs = [name for name in self._estimator.get_params() if name.endswith("n_jobs")]
            self._estimator.set_params(**dict.fromkeys(jobs, threads))
            self._input = _input_spec(self._estimator, declared)
            self._has_scores = hasattr(self._estimator, "predict_proba") and not isinstance(
                self._estimator.classes_,
                list,  # several targets
            )
            # Estimators describe their outputs poorly, so predict once.
            empty = "" if self._input.datatype == "BYTES" else 0
            name, answer = self._answer(np.full((1, *self._input.shape[1:]), empty))
        datatype = "FP32" if self._has_scores else _DATATYPES.get(answer.dtype.kind, "BYTES")
        self._output = TensorSpec(name=name, datatype=datatype, shape=(-1, *answer.shape[1:]))
        self.signature = Signature(
            inputs=(self._input,), outputs=(self._output,), platform="sklearn"
        )

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Predict a batch; raise InvalidRequest if the input is missing or its shape is wrong."""
        expected = self._input
        if set(inputs) != {expected.name}:
            raise InvalidRequest(f"inputs {sorted(inputs)}: expected one, named {expected.name!r}")
        array = inputs[expected.name]
        if array.shape[1:] != expected.shape[1:]:
            raise InvalidRequest(
                f"input {expected.name!r}: expected shape {list(expected.shape)}, "
                f"given {list(array.shape)}"
            )
        name, answer = self._answer(array)
        wanted = np.float32 if self._has_scores else _TYPES[self._output.datatype]
        return {name: answer.astype(wanted, copy=False)}

    def _answer(self, array: NDArray[np.generic]) -> tuple[str, NDArray[Any]]:
        rows = decode_texts(array) if self._input.datatype == "BYTES" else array
        if rows.ndim > 2:
            rows = rows.reshape(len(rows), -1)
        self._pools.limit(self._threads)
        if self._has_scores:
            return "scores", np.asarray(self._estimator.predict_proba(rows))
        return "prediction", np.asarray(self._estimator.predict(rows))


class _Pools:
    """Process-wide limit on scikit-learn's thread pools (OpenMP, BLAS), set only on change."""

    _in_force: int | None = None

    def __init__(self) -> None:
        self._controller = threadpoolctl.ThreadpoolController()
        _Pools._in_force = None  # libraries loaded since have no limit

    def limit(self, threads: int) -> None:
        if _Pools._in_force != threads:
            self._controller.limit(limits=threads)
            _Pools._in_force = threads


def _read(path: pathlib.Path) -> tuple[Any, Mapping[str, Any] | None]:
    if path.suffix.lower() == ".npz":
        return _read_coefficients(path)
    if not zipfile.is_zipfile(path):
        raise ModelLoadFailed(
            str(path),
            "not a skops file, and pickle and joblib files are refused because they run code when "
            "loaded; to convert one, run where it was made: import joblib, skops.io; "
            f"skops.io.dump(joblib.load({path.name!r}), {path.with_suffix('.skops').name!r})",
        )
    doubtful = set(skops.io.get_untrusted_types(file=path))
    untrusted = doubtful - TRUSTED_PARTS
    if untrusted:
        raise ValueError(
            f"it holds types that are not trusted: {', '.join(sorted(untrusted))}; use "
            "scikit-learn's own, convert the model to ONNX, or serve it with the kind python"
        )
    estimator = skops.io.load(path, trusted=sorted(doubtful))
    if not hasattr(estimator, "predict") or not hasattr(estimator, "get_params"):
        name = type(estimator).__name__
        raise ValueError(f"it holds a {name}, expected a scikit-learn estimator")
    return estimator, getattr(estimator, INPUT_ATTRIBUTE, None)


def _read_coefficients(path: pathlib.Path) -> tuple[Any, Mapping[str, Any] | None]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        missing = {"coef", "intercept", "classes"} - set(arrays)
        if missing:
            raise ValueError(f"missing array {', '.join(sorted(missing))}")
        estimator = LogisticRegression()
        estimator.coef_ = arrays["coef"]
        estimator.intercept_ = arrays["intercept"]
        estimator.classes_ = arrays["classes"]
        estimator.n_features_in_ = estimator.coef_.shape[1]
        if "input_name" not in arrays:
            return estimator, None
        return estimator, {
            "name": arrays["input_name"].item(),
            "datatype": arrays["input_datatype"].item(),
            "shape": arrays["input_shape"].tolist(),
        }


def _input_spec(estimator: Any, declared: Mapping[str, Any] | None) -> TensorSpec:
    if declared is not None:
        spec = TensorSpec.from_json(declared)
        return TensorSpec(name=spec.name, datatype=spec.datatype, shape=(-1, *spec.shape))
    features = getattr(estimator, "n_features_in_", None)
    if features is None:
        raise ValueError(
            f"the number of the estimator's features is unknown; set {INPUT_ATTRIBUTE} = "
            '{"name": ..., "datatype": ..., "shape": [...]} on it before storing it'
        )
    return TensorSpec(name="input", datatype="FP64", shape=(-1, int(features)))
