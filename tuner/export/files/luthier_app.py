"""A Luthier model as a Ray Serve deployment with the Open Inference Protocol (JSON).

Needs `luthier` and `ray[serve]`, and the dependencies of the model kind. `ray.yaml` sets the model,
its variant, threads and batching.

    POST /v2/models/NAME/infer      GET /v2/models/NAME      GET /v2/health/ready
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from serving import models, zoo
from serving.errors import ServingError
from serving.models import Arrays
from serving.models.batching import BatchRunner
from serving.replica.request_plan import check_inputs
from serving.tensors import arrays, json_tensors
from serving.tensors.item_axes import detect_item_axes
from serving.values import Tensor


@serve.deployment
class Model:
    """One replica of the model."""

    def __init__(self, model: str, variant: str | None, threads: int, is_trusted: bool) -> None:
        card = zoo.find(model, is_trusted=is_trusted)
        self.name = card.name
        model = models.load(card.kind, card.weights(variant), threads=threads)
        model.signature = detect_item_axes(
            model.signature, item_axis=card.item_axis, shared=card.shared, where=card.name
        )
        self.model = BatchRunner(model)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Set the batching options; Ray calls this at the start and after changes."""
        self.predict.set_max_batch_size(user_config["max_batch_size"])
        self.predict.set_batch_wait_timeout_s(user_config["batch_wait_timeout_s"])

    @serve.batch
    async def predict(self, requests: list[Arrays]) -> list[Arrays | Exception]:
        """Run a batch in a thread, so that the event loop is not blocked."""
        return await asyncio.to_thread(self.model.run, requests)

    async def __call__(self, request: Request) -> JSONResponse:
        """Handle one request."""
        path, model = request.url.path, f"/v2/models/{self.name}"
        if path in {"/v2/health/live", "/v2/health/ready", f"{model}/ready"}:
            return JSONResponse({})
        if path == model:
            return JSONResponse({"name": self.name, **self.model.signature.as_json()})
        if path != f"{model}/infer" or request.method != "POST":
            return JSONResponse({"error": f"no route {path!r}; try {model}/infer"}, 404)
        try:
            outputs = await self.infer(await request.body())
        except ServingError as error:
            return JSONResponse({"error": str(error)}, error.status)
        return JSONResponse({"model_name": self.name, "outputs": outputs})

    async def infer(self, body: bytes) -> list[dict[str, Any]]:
        """Return the outputs of one request as JSON."""
        tensors = json_tensors.decode_inputs(body)
        check_inputs([tensor[:3] for tensor in tensors], self.model.signature)
        answer = await self.predict({tensor.name: array_of(tensor) for tensor in tensors})
        if isinstance(answer, Exception):
            raise answer
        return [
            json_tensors.tensor_to_json(
                Tensor(spec.name, spec.datatype, array.shape, arrays.raw_of(array))
            )
            for spec in self.model.signature.outputs
            for array in [answer[spec.name]]
        ]


def array_of(tensor: Tensor) -> Any:
    """Return one input as an array."""
    if tensor.datatype != "BYTES":
        return arrays.array_of(tensor.datatype, tensor.shape, [tensor.data])
    count = 1
    for length in tensor.shape:
        count *= length
    return arrays.bytes_array(tensor.shape, arrays.split_bytes(tensor.data, count))


def app(args: dict[str, Any]) -> serve.Application:
    """Build the application that `ray.yaml` names."""
    return Model.bind(
        args["model"], args.get("variant"), int(args["threads"]), bool(args.get("trust"))
    )
