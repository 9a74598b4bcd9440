"""What runs inside a replica: one file per kind of model, one contract, one registry.

A kind's module is imported only by a replica (or its template), never by the gateway. It offers
`class Model` with

    __init__(self, path: pathlib.Path | None, *, threads: int)
    signature: Signature                       # read from the file where it tells
    predict_batch(self, inputs)                # {name: (n, ...) array} -> {name: (n, ...) array}

`predict_batch` keeps the order and the number of items along axis 0 and may raise any exception: the host
contains it. Optional:

    preprocess(self, inputs)       # what `predict_batch` is called with; its time counts as input
    postprocess(self, outputs)     # from what `predict_batch` returned; its time counts as output
    sample_inputs(self)            # {name: (n, ...) array} with which it is warmed up, or None
    is_pure = True                 # it does nothing but compute: made-up inputs may warm it up
    device                         # "cpu" or "cuda": where it runs, for those who ask

The kinds of `ON_DEVICE` are told where to run: `__init__(self, path, *, threads, device)`.

The kind onnx is also told what its file holds, for an optimised copy that is loaded quicker:
`__init__(self, path, *, threads, device, digest, optimises)`.

The kind `command` is the exception: a program in any language that is a replica itself
(docs/models.md).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pathlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.errors import ModelLoadFailed
from serving.values import Signature

Arrays = dict[str, "NDArray[np.generic]"]


class LoadedModel(Protocol):
    """A model in a replica's memory."""

    signature: Signature

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Outputs for a batch; axis 0 is the item axis of every input and output."""
        ...


KINDS: dict[str, str] = {
    "onnx": "serving.models.onnx",
    "sklearn": "serving.models.sklearn",
    "torch": "serving.models.torch",
    "tensorflow": "serving.models.tensorflow",
    "xgboost": "serving.models.xgboost",
    "lightgbm": "serving.models.lightgbm",
    "catboost": "serving.models.catboost",
    "mlflow": "serving.models.mlflow",
    "python": "serving.models.python",
    "command": "serving.models.command",
    "echo": "serving.models.echo",
}
"""Kind -> module that holds its `Model` class."""

EXTRAS = {
    "sklearn": "sklearn",
    "torch": "torch",
    "tensorflow": "tensorflow",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "catboost": "catboost",
    "mlflow": "mlflow",
}
"""Kind -> extra that brings its runtime; the other runtimes are installed with Luthier."""

RUNTIMES: dict[str, tuple[str, ...]] = {
    "onnx": ("onnxruntime", "onnxruntime-gpu"),
    "sklearn": ("scikit-learn",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "xgboost": ("xgboost", "xgboost-cpu"),
    "lightgbm": ("lightgbm",),
    "catboost": ("catboost",),
    "mlflow": ("mlflow", "mlflow-skinny"),
}
"""Kind -> packages of which one runs it."""

ONLY_TRUSTED = ("mlflow",)
"""Kinds whose files run code when they are loaded, which whoever starts the server must have allowed."""

ON_DEVICE = ("onnx", "torch")
"""Kinds that run where `accelerator.device` says."""
OF_THEIR_OWN = ("python", "command")
"""Kinds whose code decides for itself; the GPUs that it sees are all that is decided for it."""


def runtime_of(kind: str) -> str:
    """The installed runtime of a kind with its version; empty where it has none, or none is known."""
    for package in RUNTIMES.get(kind, ()):
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def load(
    kind: str,
    path: pathlib.Path | None,
    *,
    threads: int,
    device: str = "auto",
    digest: str | None = None,
    optimises: bool = False,
) -> LoadedModel:
    """Load a model of a kind.

    Args:
        kind: one of `KINDS`.
        path: its file or folder.
        threads: what it may use inside one operator.
        device: `auto`, `cpu` or `cuda`.
        digest: SHA-256 of the file, of which the kind onnx may have an optimised copy; None: unknown.
        optimises: whether that is written first where there is none.

    Raises:
        serving.errors.ModelLoadFailed: the kind is unknown, its runtime is not installed or cannot run on
        the device, or the file is broken.
    """
    if kind not in KINDS:
        raise ModelLoadFailed(str(path), f"kind {kind!r} is not one of {', '.join(KINDS)}")
    try:
        module = importlib.import_module(KINDS[kind])
    except ModuleNotFoundError as error:
        hint = (
            f"pip install '.[{EXTRAS[kind]}]' in a clone of Luthier"
            if kind in EXTRAS
            else "install Luthier again"
        )
        package = (error.name or "").partition(".")[0]
        raise ModelLoadFailed(
            str(path), f"kind {kind!r} needs the Python package {package!r}: {hint}"
        ) from error
    except OSError as error:  # as of LightGBM without libgomp
        raise ModelLoadFailed(
            str(path),
            f"kind {kind!r} needs a library of the system: {error}; on Debian libgomp.so.1 comes with "
            "`apt-get install libgomp1`",
        ) from error
    if kind == "onnx":
        copied: LoadedModel = module.Model(
            path, threads=threads, device=device, digest=digest, optimises=optimises
        )
        return copied
    if kind in ON_DEVICE:
        placed: LoadedModel = module.Model(path, threads=threads, device=device)
        return placed
    if device == "cuda" and kind not in OF_THEIR_OWN:
        raise ModelLoadFailed(
            str(path),
            f"accelerator.device is cuda, but the kind {kind} runs on the CPU; kinds for GPUs are "
            f"{', '.join(ON_DEVICE + OF_THEIR_OWN)}",
        )
    model: LoadedModel = module.Model(path, threads=threads)
    return model
