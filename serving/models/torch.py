"""Model kind `torch`: a TorchScript archive or an exported program (`.pt2`), on the CPU or a GPU.

Inputs are in the order of `forward`; an argument that is a number gets the element of an array of
shape []. Outputs are one tensor, a tuple in signature order, or a dictionary by name.

Pickles, including state dicts, are rejected because they run code. Both formats hold PyTorch code,
which is not sandboxed: serve only models that you trust.
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

from serving.errors import InferenceFailed, InvalidRequest
from serving.models import Arrays, as_load_failure, check_file, cuda
from serving.models.torch_signature import (
    SIGNATURE_FILE,
    Specs,
    example_signature,
    number_inputs,
    program_signature,
    read_signature,
    signature_file,
    trace_signature,
)
from serving.values import Signature

PLATFORMS = {"script": "pytorch_torchscript", "program": "pytorch_export"}

_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_NO_MEMORY = "can't allocate memory"
_INTERPRETED = "The following operation failed in the TorchScript interpreter"
_SAVE_AS = (
    "store the module itself with torch.jit.save(torch.jit.script(module), ...) or "
    "torch.export.save(torch.export.export(module, ...), ...)"
)

Run = Callable[..., Any]


class Model:
    """TorchScript module or exported program."""

    signature: Signature
    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int, device: str = "auto") -> None:
        path = check_file(
            path, "the kind torch needs a TorchScript file or an exported program (.pt2)"
        )
        torch.set_num_threads(threads)
        with contextlib.suppress(RuntimeError):  # can be set once per process
            torch.set_num_interop_threads(1)
        wants_gpu = device != cuda.CPU
        self.device = cuda.choose_device(
            device,
            model=str(path),
            runtime=f"the installed PyTorch {torch.__version__}",
            offers_cuda=torch.version.cuda is not None,
            gpus=torch.cuda.device_count() if wants_gpu and torch.cuda.is_available() else 0,
        )
        self._device = torch.device(self.device)
        with as_load_failure(path, f"PyTorch {torch.__version__}"):
            form, has_example = _form_of(path)
            if form == "script":
                loaded = _load_script(path, self._device, has_example=has_example)
            else:
                loaded = _load_program(path, self._device)
        self._run, (inputs, outputs) = loaded
        self.signature = Signature(inputs=inputs, outputs=outputs, platform=PLATFORMS[form])
        self._inputs = [spec.name for spec in inputs]
        self._numbers = number_inputs(self._run, self._inputs) if form == "script" else frozenset()
        self._outputs = [spec.name for spec in outputs]

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Call the module once.

        Raises:
            InvalidRequest: an input for a number has several elements.
            InferenceFailed: the outputs differ from the signature.
            GpuMemoryFull: the GPU's memory is exhausted.
            MemoryError: memory is exhausted.
            RuntimeError: the module fails.
        """
        try:
            with torch.inference_mode():
                arguments = [self._argument(name, inputs[name]) for name in self._inputs]
                found = _outputs_by_name(self._run(*arguments), self._outputs)
            return {name: _array(name, value) for name, value in found.items()}
        except torch.OutOfMemoryError as error:
            raise cuda.GpuMemoryFull from error
        except (RuntimeError, torch.jit.Error) as error:
            text = str(error).strip()
            if _NO_MEMORY in text:
                raise MemoryError from error
            if text.startswith(_INTERPRETED):
                raise RuntimeError(text.splitlines()[-1]) from error
            raise

    def _argument(self, name: str, array: NDArray[Any]) -> Any:
        if name not in self._numbers:
            return torch.from_numpy(array).to(self._device)
        if array.size != 1:
            raise InvalidRequest(
                f"input {name!r}: the model takes one number, given shape {list(array.shape)}"
            )
        return array.item()


# File formats


def _form_of(path: pathlib.Path) -> tuple[Literal["script", "program"], bool]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            what = "a pickle" if file.read(1) == b"\x80" else "not a PyTorch archive"
        raise ValueError(f"it is {what}; pickles are refused, they run code: {_SAVE_AS}")
    with zipfile.ZipFile(path) as archive:
        parts = {name.partition("/")[2] for name in archive.namelist()}
    if "constants.pkl" in parts:
        return "script", "traced_inputs.pkl" in parts
    if "archive_format" in parts:
        doubtful = [part for part in parts if _is_doubtful(part)]
        if doubtful:
            raise ValueError(
                f"it contains {min(doubtful)}, which is pickled or native code; expected "
                "only operators and tensors"
            )
        return "program", False
    if "data.pkl" in parts:
        raise ValueError(
            "it is a pickle, such as a state dict; pickles are refused, because they run "
            f"code, and weights alone are not a model: {_SAVE_AS}"
        )
    raise ValueError(f"it is an archive, but not one of PyTorch; {_SAVE_AS}")


def _is_doubtful(part: str) -> bool:
    constant = part.removeprefix("data/constants/")
    is_object = constant != part and not constant.startswith(("tensor_", "model_"))
    return is_object or part.startswith("data/aotinductor/")


# Loading


def _load_script(
    path: pathlib.Path, device: torch.device, *, has_example: bool
) -> tuple[Run, Specs]:
    extra: dict[str, Any] = {SIGNATURE_FILE: ""}
    on_cpu = device.type == "cpu"
    module = torch.jit.load(
        str(path), map_location=device, _extra_files=extra, _restore_shapes=on_cpu and has_example
    )
    module.eval()
    arguments = module.forward.schema.arguments[1:]  # the first is `self`
    required = sum(not item.has_default_value() for item in arguments)
    declared = read_signature(path, extra[SIGNATURE_FILE])
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
            "a scripted module does not store its datatypes and shapes: write them to a "
            "file next to it, replacing these by the true ones (-1: free): echo "
            f"'{example_signature(module.forward.schema)}' > "
            f"{shlex.quote(str(signature_file(path)))}"
        )
    # Restoring shapes runs the example, which stays on the CPU.
    shaped = (
        module if on_cpu else torch.jit.load(str(path), map_location="cpu", _restore_shapes=True)
    )
    kinds = [value.type() for value in list(shaped.graph.inputs())[1:]]
    return module, trace_signature(module, kinds, device, [item.name for item in arguments])


def _load_program(path: pathlib.Path, device: torch.device) -> tuple[Run, Specs]:
    extra: dict[str, Any] = {SIGNATURE_FILE: ""}
    with _only_tensors_unpickled(), warnings.catch_warnings():
        # PyTorch warns about its own buffer.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(path, extra_files=extra)
    program = torch.export.passes.move_to_device_pass(program, device)
    own = program_signature(program)
    specs = read_signature(path, extra[SIGNATURE_FILE]) or own
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


@contextlib.contextmanager
def _only_tensors_unpickled() -> Iterator[None]:
    """Keep `torch.export.load` from retrying a restricted unpickling without restrictions."""
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


def _outputs_by_name(response: Any, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(response, Mapping):
        missing = [name for name in names if name not in response]
        if missing:
            raise InferenceFailed(
                f"the model returned {sorted(map(str, response))}, its output {missing[0]!r} is missing"
            )
        return {name: response[name] for name in names}
    values = [response] if isinstance(response, torch.Tensor) else response
    if not isinstance(values, list | tuple) or len(values) != len(names):
        count = len(values) if isinstance(values, list | tuple) else type(response).__name__
        raise InferenceFailed(
            f"the model returned {count} outputs, its signature has {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, values, strict=True))


def _array(name: str, value: Any) -> NDArray[np.generic]:
    if not isinstance(value, torch.Tensor):
        raise InferenceFailed(
            f"the model returned {name!r} as {type(value).__name__}, expected a tensor"
        )
    try:
        array: NDArray[np.generic] = value.detach().cpu().numpy()
    except TypeError as error:  # a type that NumPy lacks
        raise InferenceFailed(f"the model returned {name!r} as {value.dtype}") from error
    return array
