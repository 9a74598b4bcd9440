"""Payloads from npz arrays and JSON lines; conversions may lose only precision."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.error_text import nearest
from serving.system import user_files
from serving.tensors import shapes
from serving.values import Signature, TensorSpec
from tuner.errors import UsageError
from tuner.load_generator import input_conversion, oip_body, payloads
from tuner.load_generator.payloads import Payloads

MAX_REQUESTS = 1000
"""Maximum number of distinct requests, enough to defeat caches and branch predictors."""
MAX_BYTES = 256 << 20


def from_file(
    path: pathlib.Path, signature: Signature, *, model: str, client_batch: int = 1
) -> Payloads:
    """Read payloads from a .npz, .jsonl, .ndjson or .json file, or raise UsageError."""
    if path.suffix == ".npz":
        return from_npz(path, signature, model=model, client_batch=client_batch)
    if path.suffix in {".jsonl", ".ndjson", ".json"}:
        return from_json_lines(path, signature, model=model, client_batch=client_batch)
    raise UsageError(f"payload file {path}: expected .npz or .jsonl")


def from_npz(
    path: pathlib.Path,
    signature: Signature,
    *,
    model: str,
    most: int = MAX_REQUESTS,
    client_batch: int = 1,
) -> Payloads:
    """Read at most `most` items from arrays named like the inputs, and optional `labels`.

    Raises:
        UsageError: the file is missing or not an npz file, or an array is missing or has an
            unsuitable shape, datatype or count.
    """
    wanted = [spec.name for spec in signature.inputs]
    with open_npz(path) as data:
        for name in wanted:
            if name not in data:
                raise UsageError(
                    f"payload file {path}: no array {name!r}{nearest(name, data)} (arrays: "
                    f"{', '.join(data)}; expected {input_conversion.inputs_text(signature)})"
                )
        arrays = {name: data[name] for name in data if name in {*wanted, "labels"}}
    where = f"payload file {path}, array"
    found = input_conversion.convert({name: arrays[name] for name in wanted}, signature, where)
    count = max(map(len, found.values()))
    check_labels(arrays.get("labels"), count, where)
    each = sum(one.nbytes // len(one) for one in found.values())
    taken = fitting(count, each, most)
    batches = {
        spec.name: input_conversion.convert_datatype(
            found[spec.name][:taken], spec, f"{where} {spec.name!r}"
        )
        for spec in signature.inputs
    }
    items = [
        [
            oip_body.RequestInput(spec, batches[spec.name][row % len(batches[spec.name])])
            for spec in signature.inputs
        ]
        for row in range(taken)
    ]
    return payloads.of_items(
        items,
        path=payloads.infer_path(model),
        description=f"{path.name}: {taken} items" + (f" of {count}" if taken < count else ""),
        labels=arrays["labels"][:taken] if "labels" in arrays else None,
        client_batch=client_batch,
    )


def check_labels(labels: NDArray[Any] | None, count: int, where: str) -> None:
    """Raise UsageError unless there are exactly `count` labels, or none."""
    given = 0 if labels is None or not labels.ndim else len(labels)
    if labels is not None and given != count:
        raise UsageError(
            f"{where} 'labels': {given} items, expected {count}, as many as the inputs have"
        )


@contextlib.contextmanager
def open_npz(path: pathlib.Path) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Open an npz file, whose arrays are read on access, or raise UsageError."""
    if not path.is_file():
        raise UsageError(f"payload file {path}: no such file")
    if not zipfile.is_zipfile(path):
        raise UsageError(f"payload file {path} is not an npz, a zip with one array per input")
    try:
        with np.load(path, allow_pickle=False) as data:
            yield data
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"payload file {path} cannot be read as npz: {error}") from error


def fitting(items: int, item_bytes: int, most: int = MAX_REQUESTS) -> int:
    """Return how many items fit into `MAX_BYTES`, at least one and at most `most`."""
    return min(items, most, max(1, MAX_BYTES // max(1, item_bytes)))


def from_json_lines(
    path: pathlib.Path, signature: Signature, *, model: str, client_batch: int = 1
) -> Payloads:
    """Read one item per line: a protocol request or {input name: nested list}.

    A list may have a batch dimension of 1. Raises UsageError if the file or a line is unsuitable.
    """
    items: list[list[oip_body.RequestInput]] = []
    size, limit = 0, ""
    try:
        with io.TextIOWrapper(user_files.open_file(path), encoding="utf-8") as file:
            lines = iter(lambda: file.readline(MAX_BYTES + 1), "")
            for number, line in enumerate(lines, start=1):
                where = f"payload file {path}, line {number}"
                if len(line) > MAX_BYTES:
                    raise UsageError(f"{where}: longer than {MAX_BYTES >> 20} MiB")
                size += len(line)
                if size > MAX_BYTES:
                    limit = f", the first {MAX_BYTES >> 20} MiB"
                    break
                if line.strip():
                    items.append(_line(line, signature, where))
                if len(items) >= MAX_REQUESTS:
                    break
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"payload file {path} cannot be read: {error}") from error
    return payloads.of_items(
        items,
        path=payloads.infer_path(model),
        description=f"{path.name}: {len(items)} items{limit}",
        client_batch=client_batch,
    )


def _line(line: str, signature: Signature, where: str) -> list[oip_body.RequestInput]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:  # too many digits, too deep
        raise UsageError(f"{where}: not JSON ({error}); expected one request per line") from error
    if not isinstance(data, dict):
        raise UsageError(
            f"{where}: {type(data).__name__}, expected an object with "
            f"{input_conversion.inputs_text(signature)}"
        )
    names = [spec.name for spec in signature.inputs]
    given = data
    if "inputs" in data and "inputs" not in names:
        given = _oip_inputs(data["inputs"], where)
    for name in given:
        if name not in names:
            raise UsageError(
                f"{where}: unknown input {name!r}{nearest(name, names)}; "
                f"expected {input_conversion.inputs_text(signature)}"
            )
    for name in names:
        if name not in given:
            raise UsageError(
                f"{where}: input {name!r} is missing; "
                f"expected {input_conversion.inputs_text(signature)}"
            )
    items = [
        _one_item(given[spec.name], spec, signature, f"{where}, input {spec.name!r}")
        for spec in signature.inputs
    ]
    return list(map(oip_body.RequestInput, signature.inputs, items))


def _oip_inputs(inputs: object, where: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for item in inputs if isinstance(inputs, list) else [inputs]:
        if not isinstance(item, dict) or "name" not in item or "data" not in item:
            raise UsageError(
                f"{where}: an input without name or data; expected name, shape, datatype, data"
            )
        data = np.asarray(_array(item["data"], where))
        if "shape" in item:
            try:
                data = data.reshape(item["shape"])
            except (ValueError, TypeError) as error:
                raise UsageError(f"{where}, input {item['name']!r}: {error}") from error
        given[str(item["name"])] = data
    return given


def _array(data: object, where: str) -> NDArray[Any]:
    try:
        return np.array(data)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{where}: lists of unequal length, or numbers out of range ({error})"
        ) from error


def _one_item(data: object, spec: TensorSpec, signature: Signature, where: str) -> NDArray[Any]:
    array = _array(data, where)
    axis = shapes.item_axis(spec, signature)
    if axis == 0 and array.ndim == len(spec.shape) and array.shape[0] != 1:
        raise UsageError(
            f"{where}: {array.shape[0]} items, expected one item per request, "
            f"shape {input_conversion.shape_text(spec, signature)}"
        )
    return input_conversion.convert_datatype(
        input_conversion.one_sample(array, spec, signature, where), spec, where
    )
