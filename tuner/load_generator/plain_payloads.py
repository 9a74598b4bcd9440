"""Payloads from files and arrays, for servers without model metadata.

An npz file has one array per input, with items on the first axis, and optional `labels`. A body is
one item's little-endian bytes, or TensorFlow Serving's `{"instances": [...]}`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from serving.system import user_files
from tuner.errors import UsageError
from tuner.load_generator import oip_body
from tuner.load_generator.payload_files import (
    MAX_BYTES,
    MAX_REQUESTS,
    check_labels,
    fitting,
    open_npz,
)
from tuner.load_generator.payloads import Payloads

LABELS = "labels"
JSON_TYPE = {"Content-Type": "application/json"}
BYTES_TYPE = {"Content-Type": "application/octet-stream"}


def from_file(
    path: pathlib.Path, *, to: str, method: str, headers: Mapping[str, str], response: str = ""
) -> Payloads:
    """Read a file as one body for the path `to`, or JSON lines as one body per line.

    Raises UsageError if the file cannot be read.
    """
    try:
        data = user_files.read(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise UsageError(f"payload file {path}: {error.strerror or error}") from error
    is_lines = path.suffix in {".jsonl", ".ndjson"}
    bodies = [line for line in data.splitlines() if line.strip()] if is_lines else [data]
    is_json = is_lines or path.suffix == ".json"
    return Payloads(
        requests=tuple(bodies[:MAX_REQUESTS]),
        headers=_with(headers, JSON_TYPE if is_json else BYTES_TYPE),
        path=to,
        method=method,
        description=f"{path.name}, {len(data)} bytes",
        answer=response,
    )


def tensors(
    path: pathlib.Path, *, to: str, method: str, headers: Mapping[str, str], response: str
) -> Payloads:
    """Make bodies from the bytes of the only input, or raise UsageError if it is not numeric."""
    arrays, labels = _arrays(path)
    if len(arrays) != 1:
        raise UsageError(
            f"payload file {path}: {len(arrays)} inputs ({', '.join(arrays)}), but a body "
            "of bytes has one"
        )
    ((name, array),) = arrays.items()
    if array.dtype.kind not in "biuf":
        raise UsageError(f"payload file {path}, array {name!r}: {array.dtype}, expected numbers")
    little = array.astype(array.dtype.newbyteorder("<"))
    return Payloads(
        requests=tuple(row.tobytes() for row in little),
        headers=_with(headers, BYTES_TYPE),
        path=to,
        method=method,
        description=f"{path.name}: {len(array)} items",
        labels=None if labels is None else labels[:, None],
        answer=response,
    )


def instances(
    path: pathlib.Path, *, to: str, headers: Mapping[str, str], client_batch: int = 1
) -> Payloads:
    """Make TensorFlow Serving's predict bodies: values of the only input, or mappings of all."""
    arrays, labels = _arrays(path)
    rows = [
        {
            name: _plain(array[i], f"payload file {path}, array {name!r}")
            for name, array in arrays.items()
        }
        for i in range(len(next(iter(arrays.values()))))
    ]
    values = [next(iter(row.values())) if len(row) == 1 else row for row in rows]
    places = oip_body.groups(len(rows), client_batch)
    bodies = [{"instances": [values[place] for place in group]} for group in places.tolist()]
    return Payloads(
        requests=tuple(json.dumps(body, separators=(",", ":")).encode() for body in bodies),
        headers=_with(headers, JSON_TYPE),
        path=to,
        description=f"{path.name}: {len(rows)} items",
        labels=None if labels is None else labels[places],
        client_batch=client_batch,
        answer="tensorflow-serving",
    )


def _with(headers: Mapping[str, str], default: Mapping[str, str]) -> dict[str, str]:
    has_type = any(name.lower() == "content-type" for name in headers)
    return {**({} if has_type else default), **headers}


def _arrays(path: pathlib.Path) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
    with open_npz(path) as found:
        arrays = dict(found)
    labels = arrays.pop(LABELS, None)
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise UsageError(
            f"payload file {path}: expected arrays with the same number of items, at least 1"
        )
    (count,) = counts
    check_labels(labels, count, f"payload file {path}, array")
    most = fitting(count, sum(array.nbytes for array in arrays.values()) // count)
    cut = {name: array[:most] for name, array in arrays.items()}
    return cut, None if labels is None else labels[:most]


def _plain(value: Any, where: str) -> Any:
    found = value.tolist()
    if isinstance(found, bytes):
        raise UsageError(f"{where}: bytes cannot be sent as JSON; give strings")
    return found
