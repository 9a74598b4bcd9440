"""Whether a server's answers are right, by a few items whose label is known.

In: a server's address and payloads with labels. Out: one line for the notes of a study, or None
where there are no labels or the model is no classifier. It runs outside of any measurement: a
configuration that answers quickly and wrongly must not pass unseen. Reads answers of the Open
Inference Protocol in binary form (`Inference-Header-Content-Length`), TensorFlow Serving's JSON, and
bare numbers of a known datatype.
"""

from __future__ import annotations

import http.client
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.traffic.oip_body import DTYPES
from tuner.traffic.payloads import Payloads

ITEMS = 64
"""Items that are asked for: enough to see that answers are wrong, too few to judge a model."""
TIMEOUT_S = 10.0


def checked(address: tuple[str, int], payloads: Payloads) -> str | None:
    """Ask for a few labelled items and compare.

    Args:
        address: host and query port of the server.
        payloads: what the study sends.
    """
    if payloads.labels is None or not payloads.answer:
        return None
    count = min(ITEMS, len(payloads.requests))
    right = 0
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    try:
        for body, label in zip(payloads.requests[:count], payloads.labels[:count], strict=True):
            connection.request(payloads.method, payloads.path, body, dict(payloads.headers))
            response = connection.getresponse()
            answer = response.read()
            if response.status != http.HTTPStatus.OK:
                return f"answers could not be checked: the server answered {response.status}"
            header_bytes = int(response.headers.get("Inference-Header-Content-Length", len(answer)))
            found = predicted(payloads.answer, answer, header_bytes)
            if found is None:
                return None
            right += found == int(label)
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return f"answers could not be checked: {error!r}"
    finally:
        connection.close()
    return f"answers checked: {right} of {count} labelled items right ({right / count:.0%})"


def predicted_class(answer: bytes, header_bytes: int) -> int | None:
    """The class that an answer of one item names; None where it names none."""
    start = header_bytes
    for output in json.loads(answer[:header_bytes])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        values = _values(output, answer[start : start + (size or 0)])
        start += size or 0
        if values is not None and (found := _class_of(values)) is not None:
            return found
    return None


def predicted(form: str, answer: bytes, header_bytes: int) -> int | None:
    """The class that an answer names, by the form of `Payloads.answer`."""
    if form == "open-inference":
        return predicted_class(answer, header_bytes)
    if form == "tensorflow-serving":
        first = json.loads(answer)["predictions"][0]
        values = first.values() if isinstance(first, dict) else [first]
        found = (_class_of(np.asarray(value).ravel()) for value in values)
        return next((one for one in found if one is not None), None)
    return _class_of(np.frombuffer(answer, DTYPES[form]))


def _class_of(values: NDArray[Any]) -> int | None:
    """A whole number is the class itself; of several numbers the largest is the class's score."""
    if len(values) == 1 and values.dtype.kind in "iu":
        return int(values[0])
    if len(values) > 1 and values.dtype.kind == "f":
        return int(np.argmax(values))
    return None


def _values(output: dict[str, Any], data: bytes) -> NDArray[Any] | None:
    kind = DTYPES.get(output["datatype"])
    if kind is None:
        return None
    if "data" in output:
        return np.asarray(output["data"], dtype=kind).ravel()
    return np.frombuffer(data, dtype=kind)
