"""Model kind `python`: a user's class or function, given as `file.py:Name` or `module:Name`.

docs/models.md lists its attributes. Declared outputs are those of `postprocess`. A class with a
`signature`, such as a subclass of another kind's `Model`, may omit what it inherits. The code runs
with the replica's rights.
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

from serving.error_text import nearest, one_line
from serving.errors import InferenceFailed, ModelLoadFailed, ModelMissing
from serving.models import Arrays
from serving.tensors import arrays
from serving.values import Signature, TensorSpec

_DEFAULT = Signature(
    inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, -1)),),
    outputs=(TensorSpec(name="output", datatype="FP32", shape=(-1, -1)),),
)


class Model:
    """Adapter from a user's object to the contract of model kinds."""

    signature: Signature

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        where, _, name = str(path).rpartition(":")
        if path is None or not where:
            raise ModelLoadFailed(str(path), "expected path/to/file.py:Name or package.module:Name")
        try:
            target = _find_target(name, _import(where), str(path))
            if inspect.isclass(target):
                target = _make(target, file=pathlib.Path(inspect.getfile(target)), threads=threads)
            known = getattr(target, "signature", _DEFAULT)
            self.signature = Signature(
                inputs=_specs(getattr(target, "inputs", known.inputs)),
                outputs=_specs(getattr(target, "outputs", known.outputs)),
                platform="python",
            )
        except ModelMissing:
            raise
        except Exception as error:  # user code may raise anything
            text = f"{type(error).__name__}: {one_line(error)}"
            raise ModelLoadFailed(str(path), text) from error
        self._takes_items = inspect.isroutine(target)
        predict = target if self._takes_items else getattr(target, "predict_batch", None)
        if not callable(predict):
            raise ModelLoadFailed(
                str(path), f"{name} is neither a function nor has a method predict_batch(inputs)"
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
        self.postprocess = self._run_postprocess if self._finish is not None else None

    def predict_batch(self, inputs: Any) -> Any:
        """Call the user's code; raise InferenceFailed if an output is missing or incomplete."""
        answer = self._predict(
            list(inputs[self.signature.inputs[0].name]) if self._takes_items else inputs
        )
        if self.postprocess is not None:
            return answer
        is_counted = self.preprocess is None and self._has_items_first()
        return self._arrays(answer, len(next(iter(inputs.values()))) if is_counted else None)

    def sample_inputs(self) -> Mapping[str, Any] | None:
        """Return the user's `sample_inputs`, if any; unnamed samples are for the first input."""
        samples = self._samples() if callable(self._samples) else self._samples
        if samples is None or isinstance(samples, Mapping):
            return samples
        return {self.signature.inputs[0].name: samples}

    def _has_items_first(self) -> bool:
        specs = (*self.signature.inputs, *self.signature.outputs)
        return self.signature.is_batched and all(
            spec.shape and spec.item_axis == 0 for spec in specs
        )

    def _run_postprocess(self, outputs: Any) -> Arrays:
        assert self._finish is not None
        return self._arrays(self._finish(outputs), None)

    def _arrays(self, response: Any, count: int | None) -> Arrays:
        if not isinstance(response, Mapping):
            response = {self.signature.outputs[0].name: response}
        return {spec.name: _check_output(response, spec, count) for spec in self.signature.outputs}


class _Uncached(importlib.machinery.SourceFileLoader):
    """Source loader without bytecode, which would hide a redeployment within a second."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"no bytecode is saved for {path}")


def _import(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    file = pathlib.Path(where).absolute()
    module_name = f"served_{file.stem}"
    loader = _Uncached(module_name, str(file))
    spec = importlib.util.spec_from_loader(module_name, loader)
    assert spec is not None, "the loader knows its file"
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.modules[module_name] = module  # dataclasses and pickle look it up
    loader.exec_module(module)
    return module


def _find_target(name: str, module: ModuleType, path: str) -> Any:
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
    offered = {"path": file, "threads": threads}
    wanted = inspect.signature(target).parameters
    return target(**{name: value for name, value in offered.items() if name in wanted})


def _specs(declared: Iterable[Mapping[str, Any] | TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(
        item if isinstance(item, TensorSpec) else TensorSpec.from_json(item) for item in declared
    )


def _check_output(
    response: Mapping[str, Any], spec: TensorSpec, count: int | None
) -> NDArray[np.generic]:
    if spec.name not in response:
        raise InferenceFailed(
            f"the model returned {sorted(response)}, its declared output {spec.name!r} is missing"
        )
    given = response[spec.name]
    if spec.datatype == "BYTES":  # NumPy would pad strings to one length and strip trailing zeros
        array: NDArray[Any] = np.asarray(given, dtype=object)
    else:
        array = np.asarray(given).astype(arrays.DTYPES[spec.datatype], copy=False)
    if count is not None and array.shape[:1] != (count,):
        raise InferenceFailed(
            f"the model returned {spec.name!r} of shape {list(array.shape)} for {count} items; "
            "expected one answer per item along the first axis"
        )
    return array
