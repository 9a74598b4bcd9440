"""Kind torch: a TorchScript archive or an exported program (`.pt2`), on the CPU or a GPU.

Inputs are in the order of `forward`; an argument that is a number gets the one in its array, of
shape []. Outputs: one tensor, a tuple in signature order, or a dictionary by name. PyTorch has no
texts.

The signature is the first of:

1. `signature.yaml` in the archive (`extra_files` of `torch.jit.save` and `torch.export.save`);
2. a file beside the model: `net.signature.yaml` for `net.pt`;
3. the model: an exported program's names, datatypes and shapes (dynamic dimensions are free),
   or a traced module's example, with a free first dimension.

    inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
    outputs: [{name: scores, datatype: FP32, shape: [-1, 10]}]

Pickles, also state dicts, are rejected because they run code. Both formats hold PyTorch code, which
is not sandboxed: serve only what you trust.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.export.passes
import torch.export.pt2_archive  # imported here so the fork server spends its seconds once
from numpy.typing import NDArray
from torch.utils import _pytree as trees

from serving.errors import InferenceFailed, InvalidRequest, ModelLoadFailed
from serving.models import Arrays, as_load_failure, cuda
from serving.system import bounded_yaml
from serving.values import Signature, TensorSpec

PLATFORMS = {"script": "pytorch_torchscript", "program": "pytorch_export"}
SIGNATURE_FILE = "signature.yaml"

DATATYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
"""PyTorch type -> Open Inference Protocol datatype; cast bfloat16 inside the model."""

NUMBERS = {"int": "INT64", "float": "FP64", "bool": "BOOL", "number": "FP64", "Scalar": "FP64"}
"""TorchScript type of a number argument -> Open Inference Protocol datatype."""

_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable that makes `torch.load` unpickle tensors only."""
_NO_MEMORY = "can't allocate memory"
_INTERPRETED = "The following operation failed in the TorchScript interpreter"
"""Start of a multi-line error; its last line is the raised one."""
_SAVE_AS = (
    "store the module itself with torch.jit.save(torch.jit.script(module), ...) or "
    "torch.export.save(torch.export.export(module, ...), ...)"
)

Run = Callable[..., Any]
"""Tensors in signature order -> the module's result."""


class Model:
    """One module."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int, device: str = "auto") -> None:
        if path is None or not path.is_file():
            raise ModelLoadFailed(
                str(path),
                "no such file; the kind torch needs a TorchScript file or an exported program (.pt2)",
            )
        form, has_example = _form_of(path)
        torch.set_num_threads(threads)
        with contextlib.suppress(RuntimeError):  # can be set once per process
            torch.set_num_interop_threads(1)
        self.device = cuda.choose_device(
            device,
            model=str(path),
            runtime=f"the installed PyTorch {torch.__version__}",
            offers_cuda=torch.version.cuda is not None,
            gpus=_gpu_count() if device != cuda.CPU else 0,
        )
        self._device = torch.device(self.device)
        with as_load_failure(path, f"PyTorch {torch.__version__}"):
            load = _load_script if form == "script" else _load_program
            self._run, (inputs, outputs) = load(path, self._device, has_example=has_example)
        self.signature = Signature(inputs=inputs, outputs=outputs, platform=PLATFORMS[form])
        self._inputs = [spec.name for spec in inputs]
        self._numbers = _numbers(self._run, self._inputs) if form == "script" else frozenset()
        self._outputs = [spec.name for spec in outputs]

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Call the module once.

        Raises:
            InvalidRequest: several values for a number.
            PredictionFailed: outputs differ from the signature.
            MemoryError: out of memory.
            RuntimeError: TorchScript's error, in one line.
        """
        try:
            with torch.inference_mode():
                arguments = [self._argument(name, inputs[name]) for name in self._inputs]
                answer = self._run(*arguments)
        except torch.OutOfMemoryError as error:  # GPU memory
            raise MemoryError from error
        except (RuntimeError, torch.jit.Error) as error:
            text = str(error).strip()
            if _NO_MEMORY in text:
                raise MemoryError from error
            if text.startswith(_INTERPRETED):
                raise RuntimeError(text.splitlines()[-1]) from error
            raise
        found = _outputs_by_name(answer, self._outputs)
        return {name: _array(name, value) for name, value in found.items()}

    def _argument(self, name: str, array: NDArray[Any]) -> Any:
        """Convert an input to a tensor or a number."""
        if name not in self._numbers:
            return torch.from_numpy(array).to(self._device)
        if array.size != 1:
            raise InvalidRequest(
                f"input {name!r}: the model takes one number, given shape {list(array.shape)}"
            )
        return array.item()


def _gpu_count() -> int:
    """Number of GPUs usable by PyTorch."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


# File formats


def _form_of(path: pathlib.Path) -> tuple[Literal["script", "program"], bool]:
    """Return an archive's format, and whether it has a trace's example.

    Raises:
        ModelLoadFailed: unknown format, or pickled or native code.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            what = "a pickle" if file.read(1) == b"\x80" else "no archive of PyTorch"
        raise ModelLoadFailed(
            str(path), f"it is {what}; pickles are refused, they run code: {_SAVE_AS}"
        )
    with zipfile.ZipFile(path) as archive:
        parts = {name.partition("/")[2] for name in archive.namelist()}
    if "constants.pkl" in parts:
        return "script", "traced_inputs.pkl" in parts
    if "archive_format" in parts:
        doubtful = [part for part in parts if _is_doubtful(part)]
        if doubtful:
            raise ModelLoadFailed(
                str(path),
                f"it holds {min(doubtful)}, which is pickled or native code; expected a program of "
                "operators and tensors alone",
            )
        return "program", False
    if "data.pkl" in parts:
        raise ModelLoadFailed(
            str(path),
            "it is a pickle, such as a state dict; pickles are refused, they run code, and weights "
            f"alone are no model: {_SAVE_AS}",
        )
    raise ModelLoadFailed(str(path), f"it is an archive, but none of PyTorch; {_SAVE_AS}")


def _is_doubtful(part: str) -> bool:
    """Whether a part is pickled or compiled code."""
    constant = part.removeprefix("data/constants/")
    is_object = constant != part and not constant.startswith(("tensor_", "model_"))
    return is_object or part.startswith("data/aotinductor/")


# Loading


def _load_script(
    path: pathlib.Path, device: torch.device, *, has_example: bool
) -> tuple[Run, tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]:
    """Load a TorchScript module, inputs and outputs."""
    extra: dict[str, Any] = {SIGNATURE_FILE: ""}
    on_cpu = device.type == "cpu"
    module = torch.jit.load(
        str(path), map_location=device, _extra_files=extra, _restore_shapes=on_cpu and has_example
    )
    module.eval()
    arguments = module.forward.schema.arguments[1:]  # the first is `self`
    required = sum(not item.has_default_value() for item in arguments)
    declared = _read_signature(path, extra[SIGNATURE_FILE])
    if declared is not None:
        given = len(declared[0])
        if not required <= given <= len(arguments):
            names = ", ".join(item.name for item in arguments)
            raise ValueError(
                f"the signature declares {given} inputs, the module takes {required or 'none'}: {names}"
            )
        return module, declared
    if not has_example:
        raise ValueError(
            "a scripted module does not tell its datatypes and shapes: write them beside it, with the "
            f"true ones (-1: free) in place of these: echo '{_example(module.forward.schema)}' > "
            f"{shlex.quote(str(_beside(path)))}"
        )
    # Restoring shapes runs the example, which stays on the CPU.
    shaped = (
        module if on_cpu else torch.jit.load(str(path), map_location="cpu", _restore_shapes=True)
    )
    kinds = [value.type() for value in list(shaped.graph.inputs())[1:]]
    return module, _trace_signature(module, kinds, device, [item.name for item in arguments])


def _numbers(module: Any, names: Sequence[str]) -> frozenset[str]:
    """Inputs that the module takes as numbers."""
    arguments = module.forward.schema.arguments[1:]
    pairs = zip(names, arguments, strict=False)  # arguments with defaults may be omitted
    return frozenset(name for name, item in pairs if _plain(item.type) in NUMBERS)


def _plain(kind: Any) -> str:
    """Name of a TorchScript type, without Optional."""
    return str(kind.getElementType() if kind.kind() == "OptionalType" else kind)


def _example(schema: Any) -> str:
    """Build a one-line YAML signature to complete, from the schema of `forward`."""

    def entry(name: str, kind: Any) -> str:
        datatype, shape = NUMBERS.get(_plain(kind), "FP32"), "[]"
        if _plain(kind) not in NUMBERS:
            shape = "[-1, -1]"
        return f"{{name: {name}, datatype: {datatype}, shape: {shape}}}"

    inputs = [
        entry(item.name, item.type) for item in schema.arguments[1:] if not item.has_default_value()
    ]
    returned = schema.returns[0].type
    parts = returned.elements() if returned.kind() == "TupleType" else [returned]
    names = ["output"] if len(parts) == 1 else [f"output_{place}" for place in range(len(parts))]
    outputs = [entry(name, kind) for name, kind in zip(names, parts, strict=True)]
    return f"{{inputs: [{', '.join(inputs)}], outputs: [{', '.join(outputs)}]}}"


def _trace_signature(
    module: Any, kinds: Sequence[Any], device: torch.device, names: Sequence[str]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Read inputs from the trace's example, and outputs from a run on zeros."""
    inputs = tuple(
        _spec(name, kind.dtype(), (-1, *kind.sizes()[1:]))
        for name, kind in zip(names, kinds, strict=True)
    )
    zeros = [
        torch.zeros((1, *kind.sizes()[1:]), dtype=kind.dtype(), device=device) for kind in kinds
    ]
    with torch.inference_mode():
        answer = module(*zeros)
    if isinstance(answer, Mapping):
        found = {str(name): value for name, value in answer.items()}
    elif isinstance(answer, torch.Tensor):
        found = {"output": answer}
    else:
        found = {f"output_{place}": value for place, value in enumerate(answer)}
    outputs = tuple(
        _spec(name, value.dtype, (-1, *value.shape[1:])) for name, value in found.items()
    )
    return inputs, outputs


def _load_program(
    path: pathlib.Path, device: torch.device, *, has_example: bool
) -> tuple[Run, tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]:
    """Load an exported program, inputs and outputs."""
    del has_example
    extra: dict[str, Any] = {SIGNATURE_FILE: ""}
    with _only_tensors_unpickled(), warnings.catch_warnings():
        # PyTorch warns about its own buffer.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(path, extra_files=extra)
    program = torch.export.passes.move_to_device_pass(program, device)
    own = _of_program(program)
    specs = _read_signature(path, extra[SIGNATURE_FILE]) or own
    for what, given, there in zip(("inputs", "outputs"), specs, own, strict=True):
        if len(given) != len(there):
            raise ValueError(
                f"the signature declares {len(given)} {what}, the program has {len(there)}: "
                f"{', '.join(spec.name for spec in there)}"
            )
    module = program.module()
    form = program.call_spec.in_spec

    def run(*tensors: torch.Tensor) -> list[Any]:
        positional, named = trees.tree_unflatten(tensors, form)
        leaves: list[Any] = trees.tree_leaves(module(*positional, **named))
        return leaves

    return run, specs


def _of_program(
    program: torch.export.ExportedProgram,
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Read an exported program's inputs and outputs."""
    values = {node.name: node.meta.get("val") for node in program.graph_module.graph.nodes}
    signature = program.graph_signature
    names = list(signature.user_outputs)
    form = program.call_spec.out_spec
    if form is not None and form.type is dict and len(form.context) == len(names):
        labels = [str(name) for name in form.context]  # the module's names
    else:
        labels = [str(name) for name in names]
    inputs = tuple(_program_spec(str(name), values.get(name)) for name in signature.user_inputs)
    outputs = tuple(
        _program_spec(label, values.get(name)) for label, name in zip(labels, names, strict=True)
    )
    for spec in inputs:
        if spec.shape[:1] != (-1,):
            raise ValueError(
                f"input {spec.name!r} has the fixed shape {list(spec.shape)}, which takes no batches; "
                "export it with a dynamic first dimension: "
                f"dynamic_shapes={{{spec.name!r}: {{0: torch.export.Dim.DYNAMIC}}}}"
            )
    return inputs, outputs


def _program_spec(name: str, value: Any) -> TensorSpec:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name!r} is no tensor; only tensors can be served")
    return _spec(
        name, value.dtype, tuple(size if isinstance(size, int) else -1 for size in value.shape)
    )


def _spec(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> TensorSpec:
    if dtype not in DATATYPES:
        raise ValueError(
            f"{name!r} is of type {dtype}, expected one of {', '.join(map(str, DATATYPES))}; "
            "cast it inside the model"
        )
    return TensorSpec(name=name, datatype=DATATYPES[dtype], shape=shape)


def _read_signature(
    path: pathlib.Path, inside: str | bytes
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]] | None:
    """Read the declared signature, if any."""
    beside = _beside(path)
    if not inside and not beside.is_file():
        return None
    where = SIGNATURE_FILE if inside else beside.name
    try:
        data = bounded_yaml.parse(inside) if inside else bounded_yaml.read(beside)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    try:
        inputs, outputs = (
            tuple(TensorSpec.from_json(item) for item in data[key]) for key in ("inputs", "outputs")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{where}: expected inputs and outputs, each a list of name, datatype and shape; {error}"
        ) from error
    texts = [spec.name for spec in inputs + outputs if spec.datatype == "BYTES"]
    if texts:
        raise ValueError(f"{where}: {texts[0]!r} is of BYTES, and PyTorch has no texts")
    return inputs, outputs


def _beside(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(f".{SIGNATURE_FILE}")


@contextlib.contextmanager
def _only_tensors_unpickled() -> Iterator[None]:
    """Prevent `torch.export.load` from retrying a failed restricted unpickling unrestricted."""
    before = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCED]
        else:
            os.environ[_FORCED] = before


# Results


def _outputs_by_name(answer: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Map a result to the signature's output names."""
    if isinstance(answer, Mapping):
        missing = [name for name in names if name not in answer]
        if missing:
            raise InferenceFailed(
                f"the model returned {sorted(map(str, answer))}, its output {missing[0]!r} is missing"
            )
        return {name: answer[name] for name in names}
    values = [answer] if isinstance(answer, torch.Tensor) else answer
    if not isinstance(values, list | tuple) or len(values) != len(names):
        count = len(values) if isinstance(values, list | tuple) else type(answer).__name__
        raise InferenceFailed(
            f"the model returned {count} outputs, its signature has {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, values, strict=True))


def _array(name: str, value: Any) -> NDArray[np.generic]:
    if not isinstance(value, torch.Tensor):
        raise InferenceFailed(f"the model returned {name!r} as {type(value).__name__}, no tensor")
    try:
        array: NDArray[np.generic] = value.detach().cpu().numpy()
    except TypeError as error:  # a type that NumPy lacks
        raise InferenceFailed(f"the model returned {name!r} as {value.dtype}") from error
    return array
