"""Trial of a function before its deployment: it is saved, loaded and called as in a replica."""

from __future__ import annotations

import tempfile
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from serving.api.clipper.inputs import INPUT_TYPES
from serving.clipper_admin.function_source import load_function, save_function

_NUMBERS: dict[str, tuple[type[np.generic], type | types.UnionType]] = {
    "integers": (np.int32, int),
    "floats": (np.float32, int | float),
    "doubles": (np.float64, int | float),
}


def run_like_deployed(
    query: Mapping[str, Any], func: Callable[[list[Any]], Any], input_type: str
) -> Any:
    """Return the function's outputs, or a message that begins with "Invalid input type"."""
    if input_type not in INPUT_TYPES or query.keys() not in ({"input"}, {"input_batch"}):
        return "Invalid input type or JSON key"
    kind = INPUT_TYPES[input_type]
    inputs = query["input_batch"] if "input_batch" in query else [query["input"]]
    if not isinstance(inputs, list | tuple):
        return "Invalid input type or JSON key"
    given: list[Any] = []
    for value in inputs:
        if kind in _NUMBERS:
            array_type, number = _NUMBERS[kind]
            if not isinstance(value, list | tuple) or not all(
                isinstance(item, number) and not isinstance(item, bool) for item in value
            ):
                return "Invalid input type"
            given.append(np.array(value, dtype=array_type))
        elif not isinstance(value, str if kind == "strings" else bytes):
            return "Invalid input type"
        else:
            given.append(value)
    with tempfile.TemporaryDirectory() as folder:
        return load_function(save_function(func, folder, input_type=kind))(given)
