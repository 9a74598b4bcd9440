"""Correctness check of a server's responses to a few labelled items, apart from measurements.

It reads the Open Inference Protocol's binary format (`Inference-Header-Content-Length`), TensorFlow
Serving's JSON, and bare numbers of a known datatype.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.tensors.arrays import DTYPES
from tuner.load_generator import error_responses
from tuner.load_generator.error_responses import message, reported_line
from tuner.load_generator.payloads import Payloads

ITEMS = 64
"""Number of items to request: enough to reveal wrong responses, too few to assess the model."""
_TRIED, _TRIED_S = 16, 5.0
"""Maximum number and total time of requests before any phase; one in hundreds may be bad."""
TIMEOUT_S = 10.0
_UNREADABLE = (
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)


def check_responses(address: tuple[str, int], payloads: Payloads) -> str | None:
    """Return a note on how many responses are correct, or None if labels or classes are missing."""
    if payloads.labels is None or not payloads.answer:
        return None
    batch = payloads.client_batch
    sent = min(-(-ITEMS // batch), len(payloads.requests))
    right = 0
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    try:
        for body, labels in zip(payloads.requests[:sent], payloads.labels[:sent], strict=True):
            response, answer = _send(connection, payloads, body)
            if response.status != http.HTTPStatus.OK:
                return f"responses could not be checked: the server returned {response.status}"
            header_bytes = int(response.headers.get("Inference-Header-Content-Length", len(answer)))
            found = read(payloads.answer, answer, header_bytes, items=batch)
            if found is None:
                return None
            right += int(np.sum(found == labels))
    except _UNREADABLE as error:
        return f"responses could not be checked: {error!r}"
    finally:
        connection.close()
    count = sent * batch
    return f"answers checked: {right} of {count} labelled items right ({right / count:.0%})"


def _send(
    connection: http.client.HTTPConnection, payloads: Payloads, body: bytes
) -> tuple[http.client.HTTPResponse, bytes]:
    connection.request(payloads.method, payloads.path, body, dict(payloads.headers))
    response = connection.getresponse()
    return response, response.read()


def rejection_reason(address: tuple[str, int], payloads: Payloads) -> str:
    """Return why the server rejects one of the first requests; empty if it accepts them."""
    until_s = time.monotonic() + _TRIED_S
    for count, body in enumerate(payloads.requests[:_TRIED]):
        if count and time.monotonic() > until_s:
            break
        if refused := _rejection_reason(address, payloads, body):
            return refused
    return ""


def _rejection_reason(address: tuple[str, int], payloads: Payloads, body: bytes) -> str:
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    try:
        response, answer = _send(connection, payloads, body)
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()
    if response.status == http.HTTPStatus.OK:
        return ""
    said = message(answer.decode(errors="replace"))
    advice = error_responses.hint(said, payloads.indexes)
    return f"{response.status}: {reported_line(said)}" + (f"; {advice}" if advice else "")


def read(form: str, answer: bytes, header_bytes: int, *, items: int = 1) -> NDArray[Any] | None:
    """Return each item's class or string (items,), or None if unreadable; see `Payloads.answer`."""
    if form == "open-inference":
        return read_oip(answer, header_bytes, items=items)
    if form != "tensorflow-serving":
        return _classes(np.frombuffer(answer, DTYPES[form]), items)
    rows = json.loads(answer)["predictions"]
    named = isinstance(rows[0], dict)
    outputs = [[row[name] for row in rows] for name in rows[0]] if named else [rows]
    found = (_classes(np.asarray(output).ravel(), items) for output in outputs)
    return next((classes for classes in found if classes is not None), None)


def read_oip(answer: bytes, header_bytes: int, *, items: int = 1) -> NDArray[Any] | None:
    """Read each item's class or string from an Open Inference response, as `read` does."""
    start = header_bytes
    for output in json.loads(answer[:header_bytes])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size", 0)
        data, start = answer[start : start + size], start + size
        found: NDArray[Any] | None = None
        kind = DTYPES.get(output["datatype"])
        if output["datatype"] == "BYTES":
            texts = output["data"] if "data" in output else _texts(data)
            found = np.array(texts, dtype=str) if len(texts) == items else None
        elif kind is not None and "data" in output:
            found = _classes(np.asarray(output["data"], dtype=kind).ravel(), items)
        elif kind is not None:
            found = _classes(np.frombuffer(data, dtype=kind), items)
        if found is not None:
            return found
    return None


def _classes(values: NDArray[Any], items: int) -> NDArray[Any] | None:
    """Return integers as classes, the index of each item's largest float, or None."""
    if len(values) % items:
        return None
    if len(values) == items and values.dtype.kind in "iu":
        return values
    if len(values) > items and values.dtype.kind == "f":
        return np.asarray(values.reshape(items, -1).argmax(axis=1))
    return None


def _texts(data: bytes) -> list[str]:
    """Decode binary strings, each preceded by its four-byte length."""
    texts = []
    start = 0
    while start < len(data):
        stop = start + 4 + int.from_bytes(data[start : start + 4], "little")
        texts.append(data[start + 4 : stop].decode())
        start = stop
    return texts
