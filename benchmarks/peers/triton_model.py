"""The model as Triton's python backend wants it; `serve_triton.py` puts it into a repository."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as triton  # the backend puts it on the path
from peer_model import SETTINGS, load


class TritonPythonModel:
    """Each request holds the rows of one client; all the rows of a batch make one call."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002  Triton's signature
        """Load the model in the backend's process."""
        self._predict = load()
        self._dtype = np.dtype(np.uint8 if SETTINGS["model"] == "echo" else np.float32)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One batch."""
        items = [
            triton.get_input_tensor_by_name(request, SETTINGS["input"]).as_numpy().tobytes()
            for request in requests
        ]
        return [
            triton.InferenceResponse(
                [triton.Tensor("scores", np.frombuffer(answer, self._dtype)[None])]
            )
            for answer in self._predict(items)
        ]
