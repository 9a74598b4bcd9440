"""Model kind `echo`: returns its input, without computing or copying, to measure the core alone.

The input and output are `data` UINT8 [-1, -1].
"""

from __future__ import annotations

import pathlib

from serving.models import Arrays
from serving.values import Signature, TensorSpec

_DATA = TensorSpec(name="data", datatype="UINT8", shape=(-1, -1))


class Model:
    """Model that returns its input; it needs no file."""

    is_pure = True

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        del path, threads
        self.signature = Signature(inputs=(_DATA,), outputs=(_DATA,), platform="echo")

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Return the same array."""
        return {"data": inputs["data"]}
