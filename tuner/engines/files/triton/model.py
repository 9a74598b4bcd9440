"""ONNX model on Triton's Python backend, called once for all requests of a batch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton  # the backend puts it on the path

DATATYPES = {
    "bool": "BOOL",
    "double": "FP64",
    "float": "FP32",
    "float16": "FP16",
    "int32": "INT32",
    "int64": "INT64",
    "int8": "INT8",
    "uint8": "UINT8",
}
"""ONNX Runtime's names of datatypes -> Triton's."""


class TritonPythonModel:
    """Instance of the model, in a process of Triton's Python backend."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the inputs and outputs of the model file; Triton adds the batch axis to each."""
        session = _session()
        for node in session.get_inputs():
            config.add_input(_describe(node))
        for node in session.get_outputs():
            config.add_output(_describe(node))
        return config

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002  Triton's signature
        """Load the model."""
        self._session = _session()
        self._inputs = [node.name for node in self._session.get_inputs()]
        self._outputs = [node.name for node in self._session.get_outputs()]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run one batch of requests, each of which holds the rows of one client."""
        rows = {
            name: [triton.get_input_tensor_by_name(each, name).as_numpy() for each in requests]
            for name in self._inputs
        }
        found = self._session.run(
            None, {name: np.concatenate(parts) for name, parts in rows.items()}
        )
        ends = np.cumsum([len(part) for part in rows[self._inputs[0]]])[:-1]
        answers = zip(*(np.split(output, ends) for output in found), strict=True)
        return [
            triton.InferenceResponse(
                [triton.Tensor(name, part) for name, part in zip(self._outputs, parts, strict=True)]
            )
            for parts in answers
        ]


def _session() -> onnxruntime.InferenceSession:
    limits = onnxruntime.SessionOptions()
    limits.intra_op_num_threads = int(os.environ["MODEL_THREADS"])
    return onnxruntime.InferenceSession(
        os.environ["MODEL_FILE"], limits, providers=["CPUExecutionProvider"]
    )


def _describe(node: onnxruntime.NodeArg) -> dict[str, Any]:
    kind = DATATYPES[node.type.removeprefix("tensor(").removesuffix(")")]
    sizes = [size if isinstance(size, int) else -1 for size in node.shape[1:]]
    return {"name": node.name, "data_type": f"TYPE_{kind}", "dims": sizes}
