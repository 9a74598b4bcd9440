"""An image classifier as Triton's python backend wants it: images of a batch make one call."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton  # the backend puts it on the path


class TritonPythonModel:
    """One instance, in a process of the backend."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002  Triton's signature
        """Load the model."""
        limits = onnxruntime.SessionOptions()
        limits.intra_op_num_threads = int(os.environ["MODEL_THREADS"])
        self._session = onnxruntime.InferenceSession(
            os.environ["MODEL_FILE"], limits, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One batch of requests, each with the rows of one client."""
        images = [triton.get_input_tensor_by_name(each, "image").as_numpy() for each in requests]
        (scores,) = self._session.run(None, {"image": np.concatenate(images)})
        ends = np.cumsum([len(rows) for rows in images])[:-1]
        return [
            triton.InferenceResponse([triton.Tensor("scores", rows)])
            for rows in np.split(scores, ends)
        ]
