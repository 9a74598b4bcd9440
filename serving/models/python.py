"""Kind python: a user's own class or function.

Named `path/to/file.py:Name` or `package.module:Name`.

A class is made once per replica, with `path` (of its file) and `threads` where its constructor has
parameters of these names, and gets batches of arrays:

    class Model:
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]     # optional
        outputs = [{"name": "length", "datatype": "INT64", "shape": [-1]}]  # optional

        def __init__(self, path): ...
        def predict_batch(self, inputs):    # {name: (n, ...) array}, texts as arrays of bytes
            ...                             # -> {name: (n, ...) array}, or n answers to the first
        def preprocess(self, inputs): ...   # optional: what it returns, predict_batch gets
        def postprocess(self, outputs): ... # optional: gets what predict_batch returned
        sample_inputs = {"text": [...]}     # optional, or a method: with these it is warmed up

Both run in the replica like `predict_batch`, and their time is told apart from its. With a `postprocess`
the declared outputs are those of it. A class that already has a `signature`, such as one derived from
another kind's `Model`, need not declare what it takes over.

A function gets the list of the n items of its one input and returns a list of n answers, as in
Clipper; `inputs`, `outputs` and `sample_inputs` may be set on it, too. Without them the signature is `input` FP32
[-1, -1] and `output` FP32 [-1, -1]. Answers are brought to the declared datatype.

The code runs with the rights of the replica: serve only what you trust.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import ModelLoadFailed, ModelMissing, PredictionFailed, nearest
from serving.models import Arrays
from serving.values import Signature, TensorSpec

PLATFORM = "python"

_DEFAULT = Signature(
    inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, -1)),),
    outputs=(TensorSpec(name="output", datatype="FP32", shape=(-1, -1)),),
)


class Model:
    """A user's object behind the contract of the containers."""

    signature: Signature

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        where, _, name = str(path).rpartition(":")
        if path is None or not where:
            raise ModelLoadFailed(str(path), "expected path/to/file.py:Name or package.module:Name")
        try:
            target = _named(name, _import(where), str(path))
            if inspect.isclass(target):
                target = _make(target, file=pathlib.Path(inspect.getfile(target)), threads=threads)
            known = getattr(target, "signature", _DEFAULT)
            self.signature = Signature(
                inputs=_specs(getattr(target, "inputs", known.inputs)),
                outputs=_specs(getattr(target, "outputs", known.outputs)),
                platform=PLATFORM,
            )
        except ModelMissing:
            raise
        except Exception as error:  # the user's code may raise anything
            text = " ".join(str(error).split())
            raise ModelLoadFailed(str(path), f"{type(error).__name__}: {text}") from error
        self._takes_items = inspect.isroutine(target)
        predict = target if self._takes_items else getattr(target, "predict_batch", None)
        if not callable(predict):
            raise ModelLoadFailed(
                str(path), f"{name} is neither a function nor has it a method predict_batch(inputs)"
            )
        if self._takes_items and len(self.signature.inputs) != 1:
            raise ModelLoadFailed(
                str(path),
                f"the function {name} takes a list of items: declare one input, or use a class",
            )
        self._samples = getattr(target, "sample_inputs", None)
        self._predict = predict
        self._finish = getattr(target, "postprocess", None)
        self.preprocess: Callable[[Arrays], Any] | None = getattr(target, "preprocess", None)
        self.postprocess = self._finished if self._finish is not None else None

    def predict_batch(self, inputs: Any) -> Any:
        """Call the user's code.

        Args:
            inputs: arrays, or what `preprocess` made of them.

        Returns:
            Arrays, or what `postprocess` is to make arrays of.

        Raises:
            PredictionFailed: the answer lacks an output, or has not one answer per item.
        """
        if self._takes_items:
            answer = self._predict(list(inputs[self.signature.inputs[0].name]))
        else:
            answer = self._predict(inputs)
        if self.postprocess is not None:
            return answer
        is_counted = self.preprocess is None and self._has_items_first()
        return self._arrays(answer, len(next(iter(inputs.values()))) if is_counted else None)

    def sample_inputs(self) -> Mapping[str, Any] | None:
        """What the user's object has under this name, called where it is a method; None: nothing.

        Inputs by name; anything else is the samples of the first input.
        """
        samples = self._samples() if callable(self._samples) else self._samples
        if samples is None or isinstance(samples, Mapping):
            return samples
        return {self.signature.inputs[0].name: samples}

    def _has_items_first(self) -> bool:
        """Whether every input and output has its items along axis 0: else there is nothing to be counted."""
        specs = (*self.signature.inputs, *self.signature.outputs)
        return self.signature.is_batched and all(
            spec.shape and spec.item_axis == 0 for spec in specs
        )

    def _finished(self, outputs: Any) -> Arrays:
        """Outputs that the user's `postprocess` has made."""
        assert self._finish is not None
        return self._arrays(self._finish(outputs), None)

    def _arrays(self, answer: Any, count: int | None) -> Arrays:
        """An answer as the declared arrays, each of `count` items where that is known."""
        if not isinstance(answer, Mapping):
            answer = {self.signature.outputs[0].name: answer}
        return {spec.name: _checked(answer, spec, count) for spec in self.signature.outputs}


class _Uncached(importlib.machinery.SourceFileLoader):
    """Compiles a file whenever it is loaded.

    Kept bytecode is known by the second of the file's last change and its size: a model that is changed and
    deployed anew within that second would be the old one still.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"no bytecode is kept of {path}")


def _import(where: str) -> ModuleType:
    """The module at a file's path, whose folder becomes importable, or of a dotted name."""
    if not where.endswith(".py"):
        return importlib.import_module(where)
    file = pathlib.Path(where).absolute()
    module_name = f"served_{file.stem}"
    spec = importlib.util.spec_from_file_location(
        module_name, file, loader=_Uncached(module_name, str(file))
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.modules[module_name] = module  # dataclasses and pickles look their module up there
    spec.loader.exec_module(module)
    return module


def _named(name: str, module: ModuleType, path: str) -> Any:
    """The class or function of a name, or another thing that is to be a model."""
    target = getattr(module, name, None)
    if target is None:
        own = [
            known
            for known, value in vars(module).items()
            if (inspect.isclass(value) or inspect.isroutine(value))
            and getattr(value, "__module__", None) == module.__name__
        ]
        listed = f"it has {', '.join(own)}" if own else "it has none"
        hint = nearest(name, own)
        raise ModelMissing(path, f"there is no class or function {name!r} in it{hint} ({listed})")
    return target


def _make(target: type, *, file: pathlib.Path, threads: int) -> object:
    """An instance; the constructor gets what it asks for by name."""
    offered = {"path": file, "threads": threads}
    wanted = inspect.signature(target).parameters
    return target(**{name: value for name, value in offered.items() if name in wanted})


def _specs(declared: Iterable[Mapping[str, Any] | TensorSpec]) -> tuple[TensorSpec, ...]:
    """Declared tensors, as mappings or as values."""
    return tuple(
        item if isinstance(item, TensorSpec) else TensorSpec.from_json(item) for item in declared
    )


def _checked(answer: Mapping[str, Any], spec: TensorSpec, count: int | None) -> NDArray[np.generic]:
    """One output of an answer, in its declared datatype, with one entry per item where they were counted."""
    if spec.name not in answer:
        raise PredictionFailed(
            f"the model returned {sorted(answer)}, its declared output {spec.name!r} is missing"
        )
    given = answer[spec.name]
    if (
        spec.datatype == "BYTES"
    ):  # else NumPy makes texts of one length, and takes zeros off their ends
        array: NDArray[Any] = np.asarray(given, dtype=object)
    else:
        array = np.asarray(given).astype(_dtype(spec), copy=False)
    if count is not None and array.shape[:1] != (count,):
        raise PredictionFailed(
            f"the model returned {spec.name!r} of shape {list(array.shape)} for {count} items; "
            "expected one answer per item along the first axis"
        )
    return array


def _dtype(spec: TensorSpec) -> np.dtype[Any]:
    """NumPy's type of a datatype of numbers: UINT8 is uint8, FP32 is float32."""
    return np.dtype(spec.datatype.lower().replace("fp", "float"))
