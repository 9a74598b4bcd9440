"""Examples in TensorFlow Serving's classify and regress requests, over REST and gRPC, as tensors.

A feature feeds the input of the same name. A model whose only input is one BYTES element per item
gets serialized `tf.Example`s.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.api.parsing import proto_fields as fields
from serving.api.parsing import varints
from serving.api.parsing.bounded_json import short_json
from serving.api.parsing.parse_budget import ParseBudget
from serving.api.parsing.tensors import item_shape
from serving.api.tensorflow import rest_tensors
from serving.errors import InvalidRequest
from serving.values import Signature, Tensor, TensorSpec

Example = Mapping[str, Sequence[Any]]
"""Values by feature; those of one feature are all bytes, all int or all float."""

MAX_SHARED = 2**18
"""Maximum number of values and bytes created by copying the context into examples."""

MAX_FEATURES = 2**14

MAX_EXAMPLE_FIELDS = 2**14
"""Limit on fields in a request with examples, which have five fields per feature.

They cost up to three times as much as fields of tensors; 64 examples of 50 features fit.
"""
_PACKED = 8
"""Number of packed floats, or bytes of packed integers, that count as one field."""

_KIND_NAMES = {bytes: "bytes", float: "float", int: "int64"}
_INT64 = range(-(2**63), 2**63)


def read_examples(document: Mapping[str, Any]) -> list[Example]:
    """Return a request's examples, merged with its context.

    Raises:
        InvalidRequest: there are no examples, or a feature is malformed.
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
    return _in_context(_example(context), [_example(item) for item in listed])


def _check_number(listed: Sequence[object]) -> None:
    features = ParseBudget(MAX_FEATURES, "examples and their features")
    values = ParseBudget(what="values of features")
    features.spend(len(listed))
    for example in listed:
        if isinstance(example, dict):
            features.spend(len(example))
            for content in example.values():
                values.spend(len(content) if isinstance(content, list) else 1)


def _in_context(context: Example, listed: Sequence[Example]) -> list[Example]:
    size = sum(map(_size, context.values()))
    if size * len(listed) > MAX_SHARED:
        raise InvalidRequest(
            f"{len(listed)} examples would each get a context of {size} values or bytes; at most "
            f"{MAX_SHARED} are made for all"
        )
    return [{**context, **example} for example in listed]


def tensors(listed: Sequence[Example], signature: Signature) -> list[Tensor]:
    """Convert examples to the model's inputs.

    Raises:
        InvalidRequest: a feature is missing or does not fit.
    """
    if _takes_serialized(listed, signature):
        spec = signature.inputs[0]
        data = rest_tensors.encode_texts([serialize(example) for example in listed])
        return [Tensor(spec.name, "BYTES", (len(listed),), data)]
    return [_column(listed, spec) for spec in signature.inputs]


def serialize(example: Example) -> bytes:
    """Encode a `tf.Example`.

    features=1 {feature=1 map<string, Feature>}; a Feature is bytes_list=1, float_list=2 or
    int64_list=3, each with value=1, in which numbers are packed.
    """
    entries = []
    for name, values in example.items():
        if not values:
            feature = b""
        elif isinstance(values[0], bytes):
            feature = fields.content(1, b"".join(fields.content(1, value) for value in values))
        elif isinstance(values[0], float):
            feature = fields.content(2, fields.content(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            packed = b"".join(varints.one(value) for value in values)
            feature = fields.content(3, fields.content(1, packed))
        entries.append(fields.map_entry(1, name, feature))
    return fields.content(1, b"".join(entries))


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
    _encode(name, "A feature's name")
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
        return _encode(item, f"Feature: {name[:100]}")
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
    if spec.datatype == "BYTES":
        for value in flat:
            rest_tensors.check(value, "BYTES")
        data = rest_tensors.encode_texts(flat)
    else:
        # The error about a string must show it as a string.
        flat = [
            value.decode("utf-8", "replace") if type(value) is bytes else value for value in flat
        ]
        data = rest_tensors.dense(flat, spec.datatype, infinities=True).data
    shape = (len(listed), *item_shape(spec, length or 0))
    return Tensor(spec.name, spec.datatype, shape, data)


def _encode(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} contains a lone surrogate, which is not valid text") from None


# Protobuf


def decode_examples(message: memoryview, budget: ParseBudget) -> list[Example]:
    """Decode the examples of a protobuf Input, merged with its context.

    Raises:
        InvalidRequest: the message is malformed or exceeds a limit.
    """
    found: list[Example] = []
    context: Example = {}
    for number, kind, _, content in fields.read(message, budget):
        if kind != fields.BYTES or number not in {1, 2}:
            continue
        found, context = [], {}
        for inner, inner_kind, _, example in fields.read(content, budget):
            if inner == 1 and inner_kind == fields.BYTES:
                found.append(_decode_example(example, budget))
            elif number == 2 and inner == 2 and inner_kind == fields.BYTES:
                context = _decode_example(example, budget)
    return _in_context(context, found)


def _decode_example(message: memoryview, budget: ParseBudget) -> Example:
    features: dict[str, Sequence[Any]] = {}
    for number, kind, _, content in fields.read(message, budget):
        if number != 1 or kind != fields.BYTES:
            continue
        for inner, inner_kind, _, item in fields.read(content, budget):
            if inner == 1 and inner_kind == fields.BYTES:
                name, feature = fields.entry(item, budget)
                features[name] = _decode_feature(name, feature, budget)
    return features


def _decode_feature(name: str, message: memoryview, budget: ParseBudget) -> Sequence[Any]:
    values: Sequence[Any] = ()
    for number, kind, _, content in fields.read(message, budget):
        if kind == fields.BYTES and number in {1, 2, 3}:
            values = _decode_list(name, number, content, budget)
    return values


def _decode_list(name: str, kind: int, message: memoryview, budget: ParseBudget) -> list[Any]:
    values: list[Any] = []
    for number, wire_type, value, content in fields.read(message, budget):
        if number != 1:
            continue
        if kind == 1:
            values.append(bytes(content))
        elif kind == 2:
            if len(content) % 4:
                raise InvalidRequest(f"Feature: {name[:100]} holds no whole number of floats")
            budget.spend(len(content) // (4 * _PACKED))
            values += np.frombuffer(content, dtype="<f4").tolist()
        elif wire_type == fields.VARINT:
            values.append(fields.as_signed(value))
        else:
            budget.spend(len(content) // _PACKED)
            values += fields.whole_numbers(content).view(np.int64).tolist()
    return values
