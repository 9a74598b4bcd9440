"""Methods of TensorFlow Serving's gRPC services.

Errors carry HTTP statuses, which the listener maps to gRPC codes.
"""

from __future__ import annotations

import time

from serving.api.grpc.calls import GrpcCall
from serving.api.grpc.exchange import GrpcResponseHandler, GrpcResponseWriter
from serving.api.tensorflow import grpc_codec, rest_codec, rest_routes
from serving.api.tensorflow.grpc_codec import TensorFlowGrpcCodec
from serving.api.transport.incremental import IncrementalRunner
from serving.engine.engine import Engine
from serving.errors import DeadlineExceeded, InvalidRequest, ServingError, Unimplemented
from serving.values import Buffer

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
SERVICES = (PREDICTION_SERVICE, MODEL_SERVICE)

_METHODS: dict[tuple[str, str], rest_codec.Method | None] = {
    (PREDICTION_SERVICE, "Predict"): "predict",
    (PREDICTION_SERVICE, "Classify"): "classify",
    (PREDICTION_SERVICE, "Regress"): "regress",
    (PREDICTION_SERVICE, "GetModelMetadata"): None,
    (MODEL_SERVICE, "GetModelStatus"): None,
}
"""Kind of inference by service and method; None for metadata and status."""


class TensorFlowGrpcRoutes:
    """Handler of both services over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._slices = IncrementalRunner()

    def check(self, call: GrpcCall) -> None:
        """Raise Unimplemented if the method does not exist."""
        if (call.service, call.method) not in _METHODS:
            raise Unimplemented(f"no method {call.service}/{call.method} on this server")

    def handle(
        self, call: GrpcCall, data: Buffer, reply: GrpcResponseWriter
    ) -> GrpcResponseHandler[grpc_codec.Wanted] | bytes:
        """Return the response of a checked call, or a handler that calls `reply` later.

        Raises:
            ServingError: the call fails with the error's code.
        """
        method = _METHODS[call.service, call.method]
        if method is not None:
            return self._infer(method, data, call, reply)
        request = grpc_codec.decode_request(data, None)
        if call.service == MODEL_SERVICE:
            found = rest_routes.states(self._engine, *_named(request.spec))
            return grpc_codec.status(found)
        target = rest_routes.resolve(self._engine, *_named(request.spec))
        return rest_routes.codec_of(target, TensorFlowGrpcCodec).metadata(request.wanted)

    def _infer(
        self, method: rest_codec.Method, data: Buffer, call: GrpcCall, reply: GrpcResponseWriter
    ) -> GrpcResponseHandler[grpc_codec.Wanted]:
        started_s = time.monotonic()
        timeout_s = call.timeout_s
        try:
            if timeout_s is not None and timeout_s <= 0:
                raise DeadlineExceeded("call before it arrived")
            request = grpc_codec.decode_request(data, method)
            target = rest_routes.resolve(self._engine, *_named(request.spec))
        except ServingError as error:
            self._engine.count_unknown_model(error.status)
            raise
        try:
            model_codec = rest_routes.codec_of(target, TensorFlowGrpcCodec)
            query = model_codec.query(request, method, timeout_s)
            flight = GrpcResponseHandler(
                reply,
                model_codec.encode_response,
                query.wanted,
                started_s,
                target.count_response,
                steps=model_codec.encode_in_pieces,
                slices=self._slices,
            )
            flight.ticket = target.submit(query, flight, call.application)
        except ServingError as error:
            target.count_response(error.status, time.monotonic() - started_s)
            raise
        return flight


def _named(spec: grpc_codec.Spec) -> tuple[str, str | None, str | None]:
    if not spec.name:
        raise InvalidRequest("Missing ModelSpec, or the name of a model in it")
    return spec.name, spec.version, spec.label
