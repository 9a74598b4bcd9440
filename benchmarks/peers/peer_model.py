"""What every peer serves: the bytes of items in, the bytes of their answers out, a batch at a time.

`PEER` in the environment is the JSON object of settings that the benchmark chose; `model` in it is
`echo`, or the path of an ONNX file whose input is 3x32x32 bytes. Each server has its own way to
take and give bytes; what is done with them is the same code for all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

SETTINGS: dict[str, Any] = json.loads(os.environ["PEER"])

Predict = Callable[[Sequence[bytes]], list[bytes]]


def load() -> Predict:
    """The model, loaded in the process that calls this."""
    return list if SETTINGS["model"] == "echo" else _onnx(SETTINGS["model"])


def _onnx(path: str) -> Predict:
    import numpy as np  # noqa: PLC0415  echo is served without these
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = SETTINGS.get("threads", 1)
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def predict(items: Sequence[bytes]) -> list[bytes]:
        images = np.frombuffer(b"".join(items), np.uint8).reshape(-1, 3, 32, 32)
        return [scores.tobytes() for scores in session.run(None, {"image": images})[0]]

    return predict
