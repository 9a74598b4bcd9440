"""Decoder of the examples (`tensorflow.Example`) of classify and regress over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from serving.api.parsing import proto_fields as fields
from serving.api.parsing.parse_budget import ParseBudget
from serving.api.tensorflow import rest_examples
from serving.api.tensorflow.rest_examples import Example
from serving.errors import InvalidRequest

MAX_EXAMPLE_FIELDS = 2**14
"""Limit on fields in a request of examples, five per feature of each.

They cost up to three times those of tensors; 64 examples of 50 features fit.
"""
_PACKED = 8
"""Packed floats, or bytes of integers, counted as a field."""


def decode_examples(message: memoryview, budget: ParseBudget) -> list[Example]:
    """Decode an Input."""
    found: list[Example] = []
    context: Example = {}
    for number, kind, _, content in fields.read(message, budget):
        if kind != fields.BYTES or number not in {1, 2}:
            continue
        found, context = [], {}
        for inner, inner_kind, _, example in fields.read(content, budget):
            if inner == 1 and inner_kind == fields.BYTES:
                found.append(_example(example, budget))
            elif number == 2 and inner == 2 and inner_kind == fields.BYTES:
                context = _example(example, budget)
    return rest_examples.in_context(context, found)


def _example(message: memoryview, budget: ParseBudget) -> Example:
    features: dict[str, Sequence[Any]] = {}
    for number, kind, _, content in fields.read(message, budget):
        if number != 1 or kind != fields.BYTES:
            continue
        for inner, inner_kind, _, item in fields.read(content, budget):
            if inner == 1 and inner_kind == fields.BYTES:
                name, feature = fields.entry(item, budget)
                features[name] = _feature(name, feature, budget)
    return features


def _feature(name: str, message: memoryview, budget: ParseBudget) -> Sequence[Any]:
    values: Sequence[Any] = ()
    for number, kind, _, content in fields.read(message, budget):
        if kind == fields.BYTES and number in {1, 2, 3}:
            values = _list(name, number, content, budget)
    return values


def _list(name: str, kind: int, message: memoryview, budget: ParseBudget) -> list[Any]:
    """Decode a BytesList, FloatList or Int64List, packed or not."""
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
