"""Kind tensorflow: a SavedModel (a folder with `saved_model.pb`) on the CPU through TensorFlow.

In: {input name: (n, ...) array}, texts as object arrays of bytes. Out: every output of the signature,
texts likewise. Names, datatypes and shapes are those of the SavedModel's signature `serving_default`.

TensorFlow's pools of threads are made once for a process: every model of a replica gets those of the
first. A SavedModel is a program, which can read and write files: serve only what you trust.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from serving.errors import ModelLoadFailed
from serving.models import Arrays
from serving.values import Signature, TensorSpec

# Read when the library is loaded: without it, facts about its build are written as if they were faults.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

PLATFORM = "tensorflow_savedmodel"
SIGNATURE = "serving_default"
MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")

DATATYPES: dict[str, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
"""TensorFlow's type by its name -> Open Inference Protocol datatype."""


class Model:
    """The default signature of one SavedModel."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        if path is None or not any((path / name).is_file() for name in MODEL_FILES):
            raise ModelLoadFailed(
                str(path),
                "no SavedModel; the kind tensorflow needs the folder that holds saved_model.pb, "
                "made by tf.saved_model.save or model.export",
            )
        with _as_load_failure(path):
            _set_threads(threads)
            self._loaded = tf.saved_model.load(str(path))  # its variables live as long as it does
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
                platform=PLATFORM,
            )

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Call the function once.

        Raises:
            MemoryError: it found no memory.
            RuntimeError: an operator failed, in one line.
        """
        try:
            tensors = {spec.name: tf.constant(inputs[spec.name]) for spec in self.signature.inputs}
            answer = self._function(**tensors)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError from error
        except tf.errors.OpError as error:
            raise RuntimeError(_reason(error)) from error
        return {name: value.numpy() for name, value in answer.items()}


def _set_threads(threads: int) -> None:
    """One pool inside an operator, and operators one after another.

    Raises:
        RuntimeError: another model of this process has set them otherwise.
    """
    # A process that can see no other device reads no driver, and starts sooner.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _default_signature(loaded: Any) -> Any:
    """The function that a server is meant to call."""
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
    """The telling line of a text that begins with where in the graph it was, and ends with nodes."""
    lines = [line for line in error.message.splitlines() if line and not line.startswith("\t")]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


@contextlib.contextmanager
def _as_load_failure(path: pathlib.Path) -> Iterator[None]:
    """Whatever a broken folder makes the reader raise is one error of one line."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = (
            lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"
        )
        raise ModelLoadFailed(str(path), f"{reason} (TensorFlow {tf.__version__})") from error
