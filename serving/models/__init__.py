"""Model kinds: one module per runtime, one contract, one registry.

Only a replica (or its fork server) imports a kind's module. Its `class Model` has

    __init__(self, path: pathlib.Path | None, *, threads: int)
    signature: Signature                       # from the file where possible
    predict_batch(self, inputs)                # {name: (n, ...) array} -> {name: (n, ...) array}

`predict_batch` keeps the items of axis 0 in order and may raise any exception. Optional members:

    preprocess(self, inputs)       # makes the argument of `predict_batch`; timed as input
    postprocess(self, outputs)     # takes its result; timed as output
    sample_inputs(self)            # {name: (n, ...) array} for warm-up, or None
    is_pure = True                 # only computes: synthetic inputs may warm it up
    device                         # "cpu" or "cuda"

Kinds in `ON_DEVICE` also take `device`. The `onnx` kind also takes `digest` and `optimises`, as in
`load`; its `optimised` is the folder of the optimised model that was loaded, or None.

The `command` kind has no module: its program is the replica itself (docs/models.md).
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from serving.errors import ModelLoadFailed
from serving.values import Signature

Arrays = dict[str, "NDArray[np.generic]"]


class LoadedModel(Protocol):
    """A model in a replica's memory."""

    signature: Signature

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Return the outputs of a batch; axis 0 is the item axis."""
        ...


KINDS = (
    *("onnx", "sklearn", "torch", "tensorflow", "xgboost", "lightgbm", "catboost", "mlflow"),
    *("python", "command", "echo"),
)
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
EXTRAS = RUNTIMES.keys() - {"onnx"}
"""Kinds whose runtime is an extra of the same name in pyproject.toml."""

ONLY_TRUSTED = ("mlflow",)
"""Kinds whose files run code when loaded; the operator must allow them."""

ON_DEVICE = ("onnx", "torch")
OF_THEIR_OWN = ("python", "command")
"""Kinds whose code chooses a device among the visible GPUs."""


def runtime_of(kind: str) -> str:
    """Return a kind's runtime and its version, or an empty string if unknown."""
    metadata = importlib.import_module("importlib.metadata")  # slow, and needed in few starts
    for package in RUNTIMES.get(kind, ()):
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    return ""


def check_file(path: pathlib.Path | None, needed: str) -> pathlib.Path:
    """Return the model's file, or raise ModelLoadFailed if there is none."""
    if path is None or not path.is_file():
        raise ModelLoadFailed(str(path), f"no such file; {needed}")
    return path


_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+\.(cc|cpp|h):\d+: ")
"""Time and source location that a library puts before an error message."""


@contextlib.contextmanager
def as_load_failure(path: pathlib.Path, runtime: str) -> Iterator[None]:
    """Convert a library's error into a one-line ModelLoadFailed with the library's version."""
    try:
        yield
    except ModelLoadFailed:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = _PLACE.sub("", lines[0]) if lines else "no reason given"
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__}: {reason}"
        raise ModelLoadFailed(str(path), f"{reason} ({runtime})") from error


def decode_texts(array: NDArray[Any]) -> NDArray[np.object_]:
    """Return an array of bytes as an array of strings, for runtimes that do not take bytes."""
    flat = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
    return np.array(flat, dtype=object).reshape(array.shape)


def load(
    kind: str,
    path: pathlib.Path | None,
    *,
    threads: int,
    device: str = "auto",
    digest: str | None = None,
    optimises: bool = False,
) -> LoadedModel:
    """Load a model of one of `KINDS`, or raise ModelLoadFailed.

    Args:
        path: the model's file or folder.
        threads: number of threads within one operator.
        device: `auto`, `cpu` or `cuda`.
        digest: SHA-256 of the file, by which the `onnx` kind finds an optimised model.
        optimises: whether to write a missing optimised model first.
    """
    if kind not in KINDS:
        raise ModelLoadFailed(str(path), f"kind {kind!r} is not one of {', '.join(KINDS)}")
    if kind == "command":
        raise ModelLoadFailed(
            str(path), "the kind command is a separate program, started instead of this replica"
        )
    try:
        module = importlib.import_module(f"{__name__}.{kind}")
    except ModuleNotFoundError as error:
        hint = "install Luthier again"
        if kind in EXTRAS:
            hint = f"pip install '.[{kind}]' in a clone of Luthier"
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
    options: dict[str, object] = {"threads": threads}
    if kind in ON_DEVICE:
        options["device"] = device
    elif device == "cuda" and kind not in OF_THEIR_OWN:
        raise ModelLoadFailed(
            str(path),
            f"accelerator.device is cuda, but the kind {kind} runs only on the CPU; kinds "
            f"for GPUs are {', '.join(ON_DEVICE + OF_THEIR_OWN)}",
        )
    if kind == "onnx":
        options |= {"digest": digest, "optimises": optimises}
    model: LoadedModel = module.Model(path, **options)
    return model
