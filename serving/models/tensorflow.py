"""Model kind `tensorflow`: a SavedModel folder in TensorFlow, on the CPU.

Thread pools are process-wide: all models of a replica use those of the first model. A SavedModel
can read and write files: serve only models that you trust.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from serving.errors import ModelLoadFailed
from serving.models import Arrays, as_load_failure
from serving.tensors import arrays
from serving.values import Signature, TensorSpec

# Read on import; without it, build details are logged as warnings.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

SIGNATURE = "serving_default"
MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")

DATATYPES = {dtype.name: name for name, dtype in arrays.DTYPES.items()} | {"string": "BYTES"}


class Model:
    """SavedModel, called through its default signature."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        if path is None or not any((path / name).is_file() for name in MODEL_FILES):
            raise ModelLoadFailed(
                str(path),
                "no SavedModel; the kind tensorflow needs the folder that holds saved_model.pb, "
                "made by tf.saved_model.save or model.export",
            )
        with as_load_failure(path, f"TensorFlow {tf.__version__}"):
            _set_threads(threads)
            self._loaded = tf.saved_model.load(str(path))  # keeps its variables alive
            self._function = _default_signature(self._loaded)
            _, inputs = self._function.structured_input_signature
            outputs = self._function.structured_outputs
            specs = tuple(_spec(name, inputs[name]) for name in sorted(inputs))
            for spec in specs:
                if spec.shape[:1] != (-1,):
                    raise ValueError(
                        f"input {spec.name!r} has the fixed shape {list(spec.shape)}, which takes "
                        "no batches; store it with None as the first dimension"
                    )
            self.signature = Signature(
                inputs=specs,
                outputs=tuple(_spec(name, outputs[name]) for name in sorted(outputs)),
                platform="tensorflow_savedmodel",
            )

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Call the function once; failures raise MemoryError or a one-line RuntimeError."""
        try:
            tensors = {spec.name: tf.constant(inputs[spec.name]) for spec in self.signature.inputs}
            answer = self._function(**tensors)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError from error
        except tf.errors.OpError as error:
            raise RuntimeError(_reason(error)) from error
        return {name: value.numpy() for name, value in answer.items()}


def _set_threads(threads: int) -> None:
    """Run one operator at a time, or raise RuntimeError if another model set other limits."""
    # Without visible GPUs no driver is read, which speeds up the start.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _default_signature(loaded: Any) -> Any:
    signatures: Mapping[str, Any] = loaded.signatures
    if SIGNATURE not in signatures:
        raise ValueError(
            f"it has no signature {SIGNATURE!r} but {', '.join(signatures) or 'none at all'}; "
            f"store it with tf.saved_model.save(model, folder, signatures=model.function)"
        )
    return signatures[SIGNATURE]


def _spec(name: str, tensor: Any) -> TensorSpec:
    if tensor.dtype.name not in DATATYPES:
        raise ValueError(
            f"{name!r} is of type {tensor.dtype.name}, expected one of {', '.join(DATATYPES)}"
        )
    if tensor.shape.rank is None:
        raise ValueError(
            f"{name!r} has no fixed number of dimensions; give it one in the input_signature"
        )
    return TensorSpec(
        name=name,
        datatype=DATATYPES[tensor.dtype.name],
        shape=tuple(-1 if size is None else int(size) for size in tensor.shape),
    )


def _reason(error: Any) -> str:
    lines = [line for line in error.message.splitlines() if line and not line.startswith("\t")]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
