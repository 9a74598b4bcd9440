"""JSON tensors of the Open Inference Protocol v2 <-> raw bytes.

In: the `inputs` of a request's JSON, or its whole body; out: `Tensor`s in the protocol's binary form,
and back. `data` may be flat or nested by the shape. Pure; used by the gateway for small bodies and by
replicas for large ones. What does not fit raises `InvalidRequest` and names the input.

FP16 is accepted as numbers, which the protocol leaves open; NaN and Infinity are Python's JSON tokens.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest
from serving.replica.arrays import DTYPES, join_bytes, split_bytes
from serving.values import ITEM_BYTES, Signature, Tensor

_MAX_RANK = 32
_TYPES = {"BOOL": ({bool}, "true or false"), "BYTES": ({str}, "strings")}
_INTEGERS = ({int}, "integers")
_NUMBERS = ({int, float}, "numbers")


def tensor_from_json(item: Mapping[str, Any]) -> Tensor:
    """One input with its `data` in JSON.

    Raises:
        InvalidRequest: a member is missing or wrong, or the data do not fit shape and datatype.
    """
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"an input has the name {name!r}, expected a string")
    datatype = item.get("datatype")
    if not isinstance(datatype, str) or datatype not in ITEM_BYTES:
        raise InvalidRequest(
            f"input {name!r}: datatype is {datatype!r}, expected one of {', '.join(ITEM_BYTES)}"
        )
    shape = _shape(name, item.get("shape"))
    elements = _flat(name, item.get("data"), shape)
    types, expected = _TYPES.get(datatype) or (_NUMBERS if datatype.startswith("FP") else _INTEGERS)
    wrong = set(map(type, elements)) - types
    if wrong:
        given = next(element for element in elements if type(element) in wrong)
        raise InvalidRequest(
            f"input {name!r}: data holds {json.dumps(given)[:80]}, {datatype} takes {expected}"
        )
    return Tensor(name, datatype, shape, _raw(name, datatype, elements))


def tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    """An output as the response's JSON shows it: name, datatype, shape and flat data.

    Raises:
        InvalidRequest: a BYTES output is no text, so that it can only be had in binary.
    """
    name, datatype, shape, data = tensor
    flat: list[Any]
    if datatype == "BYTES":
        try:
            flat = [element.decode() for element in split_bytes(data, math.prod(shape))]
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"output {name!r} holds bytes that are no UTF-8 text, which JSON cannot carry; "
                f"ask for it with the parameter binary_data"
            ) from error
    else:
        flat = np.frombuffer(data, DTYPES[datatype]).tolist()
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": flat}


def decode_inputs(body: bytes | bytearray | memoryview, signature: Signature) -> tuple[Tensor, ...]:
    """The inputs of a whole request body in JSON, checked against the model's signature.

    Raises:
        InvalidRequest: it is no such request, or does not fit the model.
    """
    try:
        request = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from error
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise InvalidRequest(
            "the request has no array `inputs` of objects with name, shape, datatype and data"
        )
    tensors = tuple([tensor_from_json(item) for item in inputs])
    check_inputs([tensor[:3] for tensor in tensors], signature)
    return tensors


def check_inputs(inputs: Iterable[tuple[str, str, tuple[int, ...]]], signature: Signature) -> None:
    """Hold (name, datatype, shape) of all inputs of a request against a signature.

    Raises:
        InvalidRequest: names, datatypes or shapes differ, or inputs disagree in their first dimension.
    """
    listed = tuple(inputs)
    specs = {spec.name: spec for spec in signature.inputs}
    names = [name for name, _, _ in listed]
    if len(set(names)) < len(names) or set(names) != specs.keys():
        raise InvalidRequest(
            f"inputs are {', '.join(names) or 'none'}; the model takes exactly {', '.join(specs)}"
        )
    for name, datatype, shape in listed:
        spec = specs[name]
        if datatype != spec.datatype:
            raise InvalidRequest(
                f"input {name!r}: datatype is {datatype}, the model takes {spec.datatype}"
            )
        if len(shape) != len(spec.shape) or any(
            wanted not in (-1, given) for given, wanted in zip(shape, spec.shape, strict=True)
        ):
            raise InvalidRequest(
                f"input {name!r}: shape is {list(shape)}, the model takes {list(spec.shape)} (-1: any)"
            )
    if len({shape[0] for _, _, shape in listed if shape}) > 1:
        raise InvalidRequest(
            "inputs differ in their first dimension: "
            + ", ".join(f"{name!r} has {shape[0]}" for name, _, shape in listed if shape)
        )


def _shape(name: str, given: object) -> tuple[int, ...]:
    if (
        not isinstance(given, list)
        or len(given) > _MAX_RANK
        or not all(type(length) is int and 0 <= length < 2**63 for length in given)
    ):
        raise InvalidRequest(
            f"invalid shape for input {name!r}: {json.dumps(given)[:80]}, expected an array of at "
            f"most {_MAX_RANK} whole numbers"
        )
    return tuple(given)


def _flat(name: str, data: object, shape: tuple[int, ...]) -> list[Any]:
    """The elements of flat data, or of data nested exactly by the shape, in row-major order."""
    if not isinstance(data, list):
        raise InvalidRequest(f"input {name!r}: data is {json.dumps(data)[:80]}, expected an array")
    count = math.prod(shape)
    if not data or not isinstance(data[0], list) or len(shape) < 2:
        if len(data) != count:
            raise InvalidRequest(
                f"unexpected size for input {name!r}: {len(data)} elements, its shape {list(shape)} "
                f"takes {count}"
            )
        return data
    level: list[Any] = [data]
    for depth, length in enumerate(shape):
        if set(map(type, level)) != {list} or set(map(len, level)) != {length}:
            raise InvalidRequest(
                f"input {name!r}: data is not nested by its shape {list(shape)}: dimension {depth} "
                f"is not made of arrays of {length}"
            )
        level = list(itertools.chain.from_iterable(level))
        if not level:
            break
    return level


def _raw(name: str, datatype: str, elements: list[Any]) -> bytes:
    try:
        if datatype == "BYTES":
            return join_bytes([element.encode() for element in elements])
        return _numbers(datatype, elements).tobytes()
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"input {name!r}: data holds a value out of the range of {datatype}"
        ) from error


def _numbers(datatype: str, elements: list[Any]) -> NDArray[Any]:
    """The array; raises OverflowError for what the datatype cannot hold."""
    dtype = DTYPES[datatype]
    if dtype.kind == "b":
        return np.array(elements, dtype)
    if dtype.kind == "f":
        wide = np.array(elements, np.float64)
        with np.errstate(over="ignore"):
            array = wide.astype(dtype)
        if dtype.itemsize < 8 and not np.array_equal(np.isinf(array), np.isinf(wide)):
            raise OverflowError
        return array
    limits = np.iinfo(dtype)
    if elements and (min(elements) < limits.min or max(elements) > limits.max):
        raise OverflowError
    return np.array(elements, dtype)
