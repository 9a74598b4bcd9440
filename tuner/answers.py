"""Whether a server's answers are right, by a few items whose label is known.

In: a server's address and payloads with labels. Out: one line for the notes of a study, or None
where there are no labels or the model names neither a class nor a text. It runs outside of any measurement: a
configuration that answers quickly and wrongly must not pass unseen. Reads answers of the Open
Inference Protocol in binary form (`Inference-Header-Content-Length`).
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
    if payloads.labels is None:
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
            predicted = answered(answer, header_bytes)
            if predicted is None:
                return None
            right += predicted == (str(label) if label.dtype.kind in "US" else int(label))
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return f"answers could not be checked: {error!r}"
    finally:
        connection.close()
    return f"answers checked: {right} of {count} labelled items right ({right / count:.0%})"


def answered(answer: bytes, header_bytes: int) -> int | str | None:
    """The class or the text that an answer of one item gives; None where it gives neither.

    A whole number is the class itself; of several numbers the largest is the class's score.
    """
    start = header_bytes
    for output in json.loads(answer[:header_bytes])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if output["datatype"] == "BYTES" and output["shape"] == [1]:
            # In binary form four bytes of length stand before a text.
            text = answer[start + 4 : start + size].decode() if size else output["data"][0]
            return str(text)
        values = _values(output, answer[start : start + (size or 0)])
        start += size or 0
        if values is None:
            continue
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
