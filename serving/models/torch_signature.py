"""Signatures of PyTorch models: declared, traced, or from an exported program.

The signature is the first of these that exists:

1. `signature.yaml` in the archive (`extra_files` of `torch.jit.save` and `torch.export.save`);
2. a file next to the model: `net.signature.yaml` for `net.pt`;
3. in the model: an exported program's names, datatypes and shapes (dynamic dimensions are free),
   or a traced module's example, with a free first dimension.

    inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
    outputs: [{name: scores, datatype: FP32, shape: [-1, 10]}]
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from serving.system import bounded_yaml
from serving.tensors import arrays
from serving.values import TensorSpec

Specs = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
SIGNATURE_FILE = "signature.yaml"

DATATYPES: dict[torch.dtype, str] = {
    getattr(torch, dtype.name): name for name, dtype in arrays.DTYPES.items()
}
NUMBERS = {"int": "INT64", "float": "FP64", "bool": "BOOL", "number": "FP64", "Scalar": "FP64"}


def number_inputs(module: Any, names: Sequence[str]) -> frozenset[str]:
    """Return the inputs that the module takes as numbers."""
    arguments = module.forward.schema.arguments[1:]
    pairs = zip(names, arguments, strict=False)  # arguments with defaults may be omitted
    return frozenset(name for name, item in pairs if _plain(item.type) in NUMBERS)


def _plain(kind: Any) -> str:
    return str(kind.getElementType() if kind.kind() == "OptionalType" else kind)


def example_signature(schema: Any) -> str:
    """Build a one-line YAML signature for the user to complete, from the schema of `forward`."""

    def entry(name: str, kind: Any) -> str:
        datatype = NUMBERS.get(_plain(kind), "FP32")
        shape = "[]" if _plain(kind) in NUMBERS else "[-1, -1]"
        return f"{{name: {name}, datatype: {datatype}, shape: {shape}}}"

    inputs = [
        entry(item.name, item.type) for item in schema.arguments[1:] if not item.has_default_value()
    ]
    returned = schema.returns[0].type
    parts = returned.elements() if returned.kind() == "TupleType" else [returned]
    names = ["output"] if len(parts) == 1 else [f"output_{place}" for place in range(len(parts))]
    outputs = [entry(name, kind) for name, kind in zip(names, parts, strict=True)]
    return f"{{inputs: [{', '.join(inputs)}], outputs: [{', '.join(outputs)}]}}"


def trace_signature(
    module: Any, kinds: Sequence[Any], device: torch.device, names: Sequence[str]
) -> Specs:
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


def program_signature(
    program: torch.export.ExportedProgram,
) -> Specs:
    """Read an exported program's inputs and outputs."""
    values = {node.name: node.meta.get("val") for node in program.graph_module.graph.nodes}
    signature = program.graph_signature
    names = list(signature.user_outputs)
    labels = names
    form = program.call_spec.out_spec
    if form is not None and form.type is dict and len(form.context) == len(names):
        labels = form.context  # the module's names
    inputs = tuple(_program_spec(str(name), values.get(name)) for name in signature.user_inputs)
    outputs = tuple(
        _program_spec(str(label), values.get(name))
        for label, name in zip(labels, names, strict=True)
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
        raise TypeError(f"{name!r} is not a tensor; only tensors can be served")
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


def read_signature(path: pathlib.Path, inside: str | bytes) -> Specs | None:
    """Read the declared signature, if any."""
    beside = signature_file(path)
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
        raise ValueError(f"{where}: {texts[0]!r} is of type BYTES, which PyTorch does not have")
    return inputs, outputs


def signature_file(path: pathlib.Path) -> pathlib.Path:
    """Return the path of the signature file next to a model."""
    return path.with_suffix(f".{SIGNATURE_FILE}")
