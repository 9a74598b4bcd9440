"""A model of your own: a class with `predict_batch`, served by

    python -m serving --model examples/text_length.py:TextLength

In: texts. Out: how many characters each has. `predict_batch` gets a whole batch, made of the
requests that waited together; it returns one answer per item, in their order.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class TextLength:
    """Counts characters."""

    inputs: ClassVar[list[dict[str, Any]]] = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    outputs: ClassVar[list[dict[str, Any]]] = [
        {"name": "length", "datatype": "INT64", "shape": [-1]}
    ]

    def predict_batch(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One count per text; texts come as UTF-8 bytes."""
        counts = [len(text.decode("utf-8")) for text in inputs["text"]]
        return {"length": np.array(counts, dtype=np.int64)}
