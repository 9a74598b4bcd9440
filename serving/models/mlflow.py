"""Model kind `mlflow`: an MLflow model that runs code when loaded, such as a pickled estimator.

The operator must allow such models; other kinds serve MLflow models whose files they can load
(`serving.zoo.mlflow_folder`). The `sklearn` flavor is unpickled without MLflow. docs/models.md
describes inputs and outputs; the types of outputs come from the response to the input example,
otherwise from an estimator's response to zeros, otherwise from the signature.
"""

from __future__ import annotations

import json
import pathlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import threadpoolctl  # type: ignore[import-untyped]  # has no types
from numpy.typing import NDArray

from serving.errors import InferenceFailed, ModelLoadFailed
from serving.models import Arrays, as_load_failure, tabular
from serving.system import bounded_yaml
from serving.tensors import arrays
from serving.values import Signature, TensorSpec

FILE = "MLmodel"
TYPES = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    **dict.fromkeys(("string", "binary", "datetime"), "BYTES"),
}

Predict = Callable[[Any], Any]
Fields = Sequence[Mapping[str, Any]]


class Model:
    """MLflow model: an object with a `predict` method, and its input fields."""

    signature: Signature

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        if path is None or not (path / FILE).is_file():
            raise ModelLoadFailed(
                str(path), f"no such folder; the kind mlflow needs one with {FILE}"
            )
        with as_load_failure(path, "MLflow's folder"):
            data = bounded_yaml.read(path / FILE)
            signature = data.get("signature") or {}
            self._fields: Fields = json.loads(signature.get("inputs") or "[]")
            self._is_frame = any("tensor-spec" not in one for one in self._fields)
            flavors = data["flavors"]
            self.is_pure = "sklearn" in flavors
            if self.is_pure:
                loaded = _unpickle(path / flavors["sklearn"]["pickled_model"], threads)
                method = flavors.get("python_function", {}).get("predict_fn", "predict")
                self._predict: Predict = getattr(loaded, str(method))
                inputs = _inputs(self._fields) or (_matrix(loaded),)
            else:
                self._predict = _python_function(path).predict
                inputs = _inputs(self._fields)
            if not inputs:
                raise ValueError(
                    "it has no signature, which describes its inputs; store it with "
                    "signature=infer_signature(...)"
                )
            threadpoolctl.threadpool_limits(threads)  # in the libraries loaded by now
            self._samples = _example(path, data, inputs, self._fields)
            outputs = self._outputs(inputs, json.loads(signature.get("outputs") or "[]"))
        self.signature = Signature(inputs=inputs, outputs=outputs, platform="mlflow")

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Call `predict` once; raise InferenceFailed if an output is missing."""
        found = _arrays_by_name(self._predict(self._convert_inputs(inputs)))
        for spec in self.signature.outputs:
            if spec.name not in found:
                raise InferenceFailed(
                    f"the model returned {sorted(found)}, its output {spec.name!r} is missing"
                )
        return {spec.name: _cast(found[spec.name], spec) for spec in self.signature.outputs}

    def sample_inputs(self) -> Arrays | None:
        """Return the model's stored input example, if any."""
        return self._samples

    def _convert_inputs(self, inputs: Arrays) -> Any:
        if self._is_frame:
            kinds = {one.get("name", tabular.INPUT): one["type"] for one in self._fields}
            columns = {name: _column(inputs[name], kind) for name, kind in kinds.items()}
            return pd.DataFrame(columns)
        if len(inputs) == 1 and not any(one.get("name") for one in self._fields):
            return next(iter(inputs.values()))
        return dict(inputs)

    def _outputs(self, inputs: Sequence[TensorSpec], declared: Fields) -> tuple[TensorSpec, ...]:
        samples = self._samples
        if samples is None and self.is_pure:  # an estimator only computes
            samples = {spec.name: tabular.blank(spec) for spec in inputs}
        if samples is not None:
            answer = _arrays_by_name(self._predict(self._convert_inputs(samples)))
            return tuple(tabular.output_spec(name, array) for name, array in answer.items())
        if not declared:
            raise ValueError("neither an input example nor a signature describes its outputs")
        return _inputs(declared, unnamed=tabular.PREDICTION)


def _unpickle(file: pathlib.Path, threads: int) -> Any:
    with file.open("rb") as opened:
        estimator = pickle.load(opened)  # noqa: S301 - whoever started the server said to trust it
    if hasattr(estimator, "get_params"):
        jobs = [name for name in estimator.get_params() if name.endswith("n_jobs")]
        estimator.set_params(**dict.fromkeys(jobs, threads))
    return estimator


def _python_function(folder: pathlib.Path) -> Any:
    try:
        import mlflow.pyfunc  # noqa: PLC0415 - seconds, and not needed for estimators

        return mlflow.pyfunc.load_model(str(folder))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        hint = f"see {folder / 'requirements.txt'}"
        if package == "mlflow":
            hint = "pip install '.[mlflow]' in a clone of Luthier"
        raise ModelLoadFailed(
            str(folder), f"it needs the Python package {package!r}: {hint}"
        ) from error


def _matrix(estimator: Any) -> TensorSpec:
    features = getattr(estimator, "n_features_in_", None)
    if features is None:
        raise ValueError("neither a signature nor the estimator gives the number of features")
    return tabular.rows_spec(int(features), "FP64")


def _inputs(fields: Fields, unnamed: str = tabular.INPUT) -> tuple[TensorSpec, ...]:
    return tuple(_spec(one, str(one.get("name") or unnamed)) for one in fields)


def _spec(field: Mapping[str, Any], name: str) -> TensorSpec:
    if "tensor-spec" in field:
        tensor = field["tensor-spec"]
        datatype = arrays.datatype_of(np.empty(0, tensor["dtype"])) or "BYTES"
        shape = tuple(tensor["shape"])
        return TensorSpec(name=name, datatype=datatype, shape=shape)
    if field["type"] not in TYPES:
        raise ValueError(f"{name!r} is of type {field['type']}, expected one of {', '.join(TYPES)}")
    return TensorSpec(name=name, datatype=TYPES[field["type"]], shape=(-1,))


def _column(array: NDArray[Any], kind: str) -> Any:
    if kind == "string":
        return [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]
    if kind == "datetime":
        return pd.to_datetime([item.decode() for item in array.tolist()])
    return array


def _example(
    folder: pathlib.Path, data: Mapping[str, Any], inputs: Sequence[TensorSpec], fields: Fields
) -> Arrays | None:
    about = data.get("saved_input_example_info") or {}
    if about.get("type") not in {"dataframe", "ndarray"}:
        return None
    stored = json.loads((folder / about["artifact_path"]).read_text(encoding="utf-8"))
    if about["type"] == "dataframe":
        frame = pd.DataFrame(stored["data"], columns=stored.get("columns"))
        if not fields:
            return {tabular.INPUT: frame.to_numpy(np.float64)}
        given = {spec.name: frame[spec.name].to_numpy() for spec in inputs}
    else:
        given = stored["inputs"] if len(inputs) > 1 else {inputs[0].name: stored["inputs"]}
    return {spec.name: _as_sent(given[spec.name], spec) for spec in inputs}


def _cast(values: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    dtype = np.dtype(object) if spec.datatype == "BYTES" else arrays.DTYPES[spec.datatype]
    return values.astype(dtype, copy=False)


def _as_sent(values: Any, spec: TensorSpec) -> NDArray[Any]:
    if spec.datatype != "BYTES":
        return np.asarray(values, arrays.DTYPES[spec.datatype])
    array = np.asarray(values, object)
    flat = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel()]
    return np.array(flat, object).reshape(array.shape)


def _arrays_by_name(response: Any) -> dict[str, NDArray[Any]]:
    if isinstance(response, pd.DataFrame):
        return {str(name): response[name].to_numpy() for name in response.columns}
    if isinstance(response, Mapping):
        return {str(name): np.asarray(values) for name, values in response.items()}
    return {tabular.PREDICTION: np.asarray(response)}
