"""Examples of TensorFlow Serving's classify and regress requests, as input tensors.

A feature feeds the input of its name. A model whose only input is one BYTES per item gets
serialized `tf.Example`s.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from serving.api.parsing.bounded_json import short_json
from serving.api.parsing.parse_budget import ParseBudget
from serving.api.parsing.tensors import item_shape
from serving.api.tensorflow import rest_tensors
from serving.errors import InvalidRequest
from serving.values import Signature, Tensor, TensorSpec

Example = Mapping[str, Sequence[Any]]
"""Values by feature, all bytes, int or float."""

MAX_SHARED = 2**18
"""Values and text bytes created by copying the context into examples."""

MAX_FEATURES = 2**14

_KIND_NAMES = {bytes: "bytes", float: "float", int: "int64"}
_INT64 = range(-(2**63), 2**63)


def examples(document: Mapping[str, Any]) -> list[Example]:
    """Return a request's examples, merged with its context.

    Raises:
        InvalidRequest: none, or a malformed feature.
    """
    if "examples" not in document:
        raise InvalidRequest(
            f"JSON Value: {short_json(document)} When method is classify, key 'examples' is expected "
            "and was not found"
        )
    listed = document["examples"]
    if not isinstance(listed, list):
        raise InvalidRequest(
            f"JSON Value: {short_json(document)} Expecting 'examples' value to be an list/array"
        )
    if not listed:
        raise InvalidRequest(
            f"JSON Value: {short_json(document)} 'examples' value is an empty array"
        )
    context = document.get("context", {})
    _check_number([context, *listed])
    return in_context(_example(context), [_example(item) for item in listed])


def _check_number(listed: Sequence[object]) -> None:
    features = ParseBudget(MAX_FEATURES, "examples and features of them")
    values = ParseBudget(what="values of features")
    features.spend(len(listed))
    for example in listed:
        if isinstance(example, dict):
            features.spend(len(example))
            for content in example.values():
                values.spend(len(content) if isinstance(content, list) else 1)


def in_context(context: Example, listed: Sequence[Example]) -> list[Example]:
    """Merge shared features into every example.

    Raises:
        InvalidRequest: the result would be too large.
    """
    size = sum(map(_size, context.values()))
    if size * len(listed) > MAX_SHARED:
        raise InvalidRequest(
            f"{len(listed)} examples would each get a context of {size} values or bytes; at most "
            f"{MAX_SHARED} are made for all"
        )
    return [{**context, **example} for example in listed]


def tensors(listed: Sequence[Example], signature: Signature) -> list[Tensor]:
    """Return the model's inputs.

    Raises:
        InvalidRequest: a feature is missing or does not fit.
    """
    if _takes_serialized(listed, signature):
        spec = signature.inputs[0]
        data = [serialize(example) for example in listed]
        flat = rest_tensors.flat_bytes(data, "BYTES", infinities=True)
        return [Tensor(spec.name, "BYTES", (len(data),), flat)]
    return [_column(listed, spec) for spec in signature.inputs]


def serialize(example: Example) -> bytes:
    """Encode a `tf.Example`.

    features=1 {feature=1 map<string, Feature>}; a Feature is bytes_list=1, float_list=2 or
    int64_list=3, each with value=1, numbers packed.
    """
    entries = []
    for name, values in example.items():
        if not values:
            feature = b""
        elif isinstance(values[0], bytes):
            feature = _message(1, b"".join(_message(1, value) for value in values))
        elif isinstance(values[0], float):
            feature = _message(2, _message(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            feature = _message(3, _message(1, b"".join(_varint(value) for value in values)))
        entries.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return _message(1, b"".join(entries))


def _size(values: Sequence[Any]) -> int:
    return 1 + len(values) + sum(len(value) for value in values if isinstance(value, bytes))


def _takes_serialized(listed: Sequence[Example], signature: Signature) -> bool:
    if len(signature.inputs) != 1 or signature.inputs[0].datatype != "BYTES":
        return False
    return len(signature.inputs[0].shape) == 1 and signature.inputs[0].name not in listed[0]


def _example(value: object) -> Example:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"Example must be JSON object but got JSON {rest_tensors.json_type(value)}"
        )
    return {name: _feature(name, content) for name, content in value.items()}


def _feature(name: str, content: object) -> list[Any]:
    if not _is_text(name):
        raise InvalidRequest("A feature's name contains a lone surrogate, which is not valid text")
    values = [_value(name, item) for item in (content if isinstance(content, list) else [content])]
    kinds = {type(value) for value in values}
    if kinds == {int, float}:  # 1 among 0.5 and 2.5 is a float
        return [float(value) for value in values]
    if len(kinds) > 1:
        raise InvalidRequest(
            f"Unexpected element type in feature: {name[:100]} expecting type: "
            f"{_KIND_NAMES[type(values[0])]}"
        )
    return values


def _value(name: str, item: object) -> bytes | int | float:
    if isinstance(item, dict) and rest_tensors.is_b64(item):
        return rest_tensors.decode_base64(item)
    if isinstance(item, dict | list) or item is None:
        raise InvalidRequest(
            f"Feature: {name[:100]} has element with unexpected JSON type: {rest_tensors.json_type(item)}"
        )
    if isinstance(item, str):
        if not _is_text(item):
            raise InvalidRequest(
                f"Feature: {name[:100]} contains a lone surrogate, which is not valid text"
            )
        return item.encode()
    if isinstance(item, float):
        rest_tensors.check(item, "FP32")
        return item
    assert isinstance(item, int)
    if item not in _INT64:
        raise InvalidRequest(f"Feature: {name[:100]} has uint64 element. Only int64 is supported.")
    return int(item)


def _column(listed: Sequence[Example], spec: TensorSpec) -> Tensor:
    flat: list[Any] = []
    length: int | None = None
    for example in listed:
        if spec.name not in example:
            raise InvalidRequest(
                f"Feature: {spec.name} (data type: {rest_tensors.TYPE_NAMES[spec.datatype]}) is "
                "required but could not be found."
            )
        values = example[spec.name]
        if length is not None and len(values) != length:
            raise InvalidRequest(
                f"Feature: {spec.name} has {len(values)} values in one example and {length} in "
                "another"
            )
        length = len(values)
        flat += values
    if spec.datatype == "BOOL":
        flat = [bool(value) if value in (0, 1) and type(value) is int else value for value in flat]
    if not rest_tensors.are_all(flat, spec.datatype):
        for value in flat:
            rest_tensors.check(_as_text(value), spec.datatype)
    shape = (len(listed), *item_shape(spec, length or 0))
    data = rest_tensors.flat_bytes(flat, spec.datatype, infinities=True)
    return Tensor(spec.name, spec.datatype, shape, data)


def _as_text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content
