"""Model kinds: one module per runtime, one contract, one registry.

Only a replica (or its fork server) imports a kind's module. Its `class Model` has

    __init__(self, path: pathlib.Path | None, *, threads: int)
    signature: Signature                       # from the file where possible
    predict_batch(self, inputs)                # {name: (n, ...) array} -> {name: (n, ...) array}

`predict_batch` keeps the items of axis 0 in order and may raise any exception. Optional:

    preprocess(self, inputs)       # makes the argument of `predict_batch`; timed as input
    postprocess(self, outputs)     # takes its result; timed as output
    sample_inputs(self)            # {name: (n, ...) array} for warm-up, or None
    is_pure = True                 # only computes: synthetic inputs may warm it up
    device                         # "cpu" or "cuda"

Kinds in `ON_DEVICE` also take `device`. The kind onnx also takes `digest` and `optimises`, as in
`load`; its `optimised` is the folder of the optimised model that was loaded, or None.

The kind `command` is a program that is the replica itself (docs/models.md).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import pathlib
from collections.abc import Iterator
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
        """Outputs of a batch; axis 0 is the item axis."""
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

EXTRAS = {
    "sklearn": "sklearn",
    "torch": "torch",
    "tensorflow": "tensorflow",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "catboost": "catboost",
    "mlflow": "mlflow",
}

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

ONLY_TRUSTED = ("mlflow",)
"""Kinds whose files run code when loaded; the operator must allow them."""

ON_DEVICE = ("onnx", "torch")
OF_THEIR_OWN = ("python", "command")
"""Kinds whose code chooses a device among the visible GPUs."""


def runtime_of(kind: str) -> str:
    """A kind's runtime and version, empty if unknown."""
    for package in RUNTIMES.get(kind, ()):
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


@contextlib.contextmanager
def as_load_failure(path: pathlib.Path, runtime: str) -> Iterator[None]:
    """Convert a reader's error to a one-line ModelLoadFailed with the runtime's version."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = (
            lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"
        )
        raise ModelLoadFailed(str(path), f"{reason} ({runtime})") from error


def load(
    kind: str,
    path: pathlib.Path | None,
    *,
    threads: int,
    device: str = "auto",
    digest: str | None = None,
    optimises: bool = False,
) -> LoadedModel:
    """Load a model.

    Args:
        kind: one of `KINDS`.
        path: its file or folder.
        threads: threads within one operator.
        device: `auto`, `cpu` or `cuda`.
        digest: SHA-256 of the file, by which the kind onnx finds an optimised model.
        optimises: whether to write a missing optimised model first.

    Raises:
        serving.errors.ModelLoadFailed: unknown kind, no runtime or device, or broken file.
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
    except OSError as error:  # such as LightGBM without libgomp
        raise ModelLoadFailed(
            str(path),
            f"kind {kind!r} needs a system library: {error}; on Debian, `apt-get install "
            "libgomp1` installs libgomp.so.1",
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
            f"accelerator.device is cuda, but the kind {kind} runs only on the CPU; kinds "
            f"for GPUs are {', '.join(ON_DEVICE + OF_THEIR_OWN)}",
        )
    model: LoadedModel = module.Model(path, threads=threads)
    return model
