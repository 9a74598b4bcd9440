"""gRPC methods of the Open Inference Protocol, Triton's extensions, health, and TensorFlow Serving.

Only loading and unloading models uses tasks.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from serving import __version__
from serving.api.grpc import messages
from serving.api.grpc.calls import GrpcCall
from serving.api.grpc.codec import GrpcCodec, GrpcInferRequest
from serving.api.grpc.exchange import GrpcResponseHandler, GrpcResponseWriter
from serving.api.grpc.parse_cache import CachedRequest, ParseCache, infer_request_of
from serving.api.http.exchange import Exchange
from serving.api.open_inference import codec
from serving.api.parsing.bounded_json import MAX_JSON_BYTES
from serving.api.tensorflow.grpc_routes import SERVICES, TensorFlowGrpcRoutes
from serving.api.triton import extensions as triton_extensions
from serving.api.triton import unsupported
from serving.api.triton.repository_service import Changes, RepositoryService
from serving.engine.engine import DeploymentHandle, Engine
from serving.errors import DeadlineExceeded, InvalidRequest, ServingError, Unimplemented

HEALTH = "grpc.health.v1.Health"
_STREAM = "ModelStreamInfer"
_CODEC = "open inference grpc"
_HEALTH_SERVING = b"\x08\x01"
_HEALTH_NOT_SERVING = b"\x08\x02"


class UnknownService(InvalidRequest):
    """Error for a health check of an unknown service."""

    status = 404


class GrpcRoutes:
    """Handler of all gRPC calls."""

    def __init__(
        self, engine: Engine, hub: RepositoryService, max_json_bytes: int = MAX_JSON_BYTES
    ) -> None:
        self._engine = engine
        self._tensorflow = TensorFlowGrpcRoutes(engine)
        self._hub = hub
        self._max_json_bytes = max_json_bytes
        self._requests = messages.methods()
        self._repeats = ParseCache()
        self._changes = Changes()

    def is_stream(self, call: GrpcCall) -> bool:
        """Return whether a call streams (`infer`) or not (`handle`), or raise ServingError."""
        service, method = call.service, call.method
        if service in SERVICES:
            self._tensorflow.check(call)
        elif service == HEALTH:
            if method != "Check":
                raise Unimplemented(f"{HEALTH} offers only Check on this server")
        elif service != messages.SERVICE or method not in self._requests:
            refusal = unsupported.method(method) if service == messages.SERVICE else None
            raise refusal or Unimplemented(f"no method {service}/{method} on this server")
        return method == _STREAM and service == messages.SERVICE

    def handle(
        self, call: GrpcCall, data: memoryview, reply: GrpcResponseWriter
    ) -> Exchange | bytes:
        """Return the response, or an exchange that calls `reply` later.

        Raises:
            ServingError: the call fails with the error's code.
        """
        if call.method == "ModelInfer" and call.service == messages.SERVICE:
            return self.infer(call, data, reply)
        if call.service in SERVICES:
            return self._tensorflow.handle(call, data, reply)
        if call.service == HEALTH:
            return self._health(data.tobytes())
        return self._ask(call.method, messages.parse(self._requests[call.method], data), reply)

    # Inference

    def infer(self, call: GrpcCall, data: memoryview, reply: GrpcResponseWriter) -> Exchange:
        """Start an inference, or raise ServingError."""
        started_s = time.monotonic()
        timeout_s = call.timeout_s
        request: Any = None
        try:
            if timeout_s is not None and timeout_s <= 0:
                raise DeadlineExceeded("call before it arrived")
            known = self._repeats.find(data)
            if known is not None:
                target = self._engine.resolve(known.name, known.version)
            else:
                request = messages.parse(messages.ModelInferRequest, data)
                target = self._engine.resolve(request.model_name, request.model_version or None)
        except ServingError as error:
            self._engine.count_unknown_model(error.status)
            raise
        try:
            codec, query = self._query(target, data, known, request)
            if timeout_s is not None and timeout_s < (query.timeout_s or timeout_s + 1):
                query = query._replace(timeout_s=timeout_s)
            flight = GrpcResponseHandler(
                reply, codec.encode_response, query.wanted, started_s, target.count_response
            )
            flight.ticket = target.submit(query, flight, call.application)
        except ServingError as error:
            target.count_response(error.status, time.monotonic() - started_s)
            raise
        return flight

    def _query(
        self, target: DeploymentHandle, data: memoryview, known: CachedRequest | None, request: Any
    ) -> tuple[GrpcCodec, GrpcInferRequest]:
        signature = target.signature
        if known is not None:
            if signature is known.signature:
                return known.codec, infer_request_of(known, data)
            request = messages.parse(messages.ModelInferRequest, data)
        codec = _codec(target)
        query = codec.query(request)
        self._repeats.add(data, request, signature, codec, query)
        return codec, query

    # Everything else

    def _health(self, data: bytes) -> bytes:
        if data not in {b"", b"\x0a\x00"} and data[2:] != messages.SERVICE.encode():
            raise UnknownService("no such service; the empty name stands for the server")
        return _HEALTH_SERVING if self._engine.ready() else _HEALTH_NOT_SERVING

    def _ask(self, method: str, request: Any, reply: GrpcResponseWriter) -> Exchange | bytes:
        engine, hub = self._engine, self._hub
        data: dict[str, Any]
        match method:
            case "ServerLive":
                return messages.encode("ServerLiveResponse", {"live": True})
            case "ServerReady":
                return messages.encode("ServerReadyResponse", {"ready": engine.ready()})
            case "ServerMetadata":
                extensions = [*codec.EXTENSIONS, *triton_extensions.EXTENSIONS]
                data = {"name": "luthier", "version": __version__, "extensions": extensions}
                return messages.encode("ServerMetadataResponse", data)
            case "ModelReady":
                ready = engine.model_ready(request.name, request.version or None)
                return messages.encode("ModelReadyResponse", {"ready": ready})
            case "ModelMetadata":
                target = engine.resolve(request.name, request.version or None)
                return _codec(target).metadata(engine.versions(request.name))
            case "ModelStatistics":
                found = hub.statistics(request.name or None, request.version or None)
                data = triton_extensions.statistics_json(found)
                return messages.encode("ModelStatisticsResponse", data)
            case "ModelConfig":
                configured = hub.model_config(request.name, request.version or None)
                data = {"config": triton_extensions.config_json(configured)}
                return messages.encode("ModelConfigResponse", data)
            case "RepositoryIndex":
                models = triton_extensions.index_json(hub.index(), ready=request.ready)
                return messages.encode("RepositoryIndexResponse", {"models": models})
            case "RepositoryModelLoad":
                given = messages.parameters(request.parameters)
                config = triton_extensions.config_parameter(given, self._max_json_bytes)
                return self._change(method, hub.load(request.model_name, config), reply)
            case _:
                return self._change(method, hub.unload(request.model_name), reply)

    def _change(
        self, method: str, work: Coroutine[Any, Any, None], reply: GrpcResponseWriter
    ) -> Exchange:
        def answer(error: ServingError | None) -> None:
            if error is None:
                reply.send([b""])  # both responses are empty messages
            else:
                reply.reject(error)

        return self._changes.begin(work, answer, name=method)

    async def close(self) -> None:
        """Cancel loads and unloads of models."""
        await self._changes.close()


def _codec(target: DeploymentHandle) -> GrpcCodec:
    codec: GrpcCodec | None = target.codecs.get(_CODEC)
    if codec is None:
        codec = target.codecs[_CODEC] = GrpcCodec(
            target.id.name, target.id.version, target.signature
        )
    return codec
