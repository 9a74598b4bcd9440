"""A Luthier model in Triton's python backend.

Needs `luthier` and the dependencies of the model kind in the backend's Python. `config.pbtxt` sets
the model, its variant and threads.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from serving import models, zoo
from serving.models.batching import BatchRunner
from serving.tensors.item_axes import detect_item_axes


class TritonPythonModel:
    """One instance of the model, like a replica of Luthier."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        parameters = json.loads(args["model_config"])["parameters"]
        card = zoo.find(parameters["model"]["string_value"], is_trusted="trust" in parameters)
        threads = int(parameters["threads"]["string_value"])
        variant = parameters.get("variant", {}).get("string_value")
        model = models.load(card.kind, card.weights(variant), threads=threads)
        model.signature = detect_item_axes(
            model.signature, item_axis=card.item_axis, shared=card.shared, where=card.name
        )
        self.model = BatchRunner(model)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run a batch of requests from Triton in one call."""
        signature = self.model.signature
        inputs = [
            {
                spec.name: pb_utils.get_input_tensor_by_name(request, spec.name).as_numpy()
                for spec in signature.inputs
            }
            for request in requests
        ]
        return [self._response(answer) for answer in self.model.run(inputs)]

    def _response(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            text = f"{type(answer).__name__}: {answer}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in answer.items()]
        )
