"""gRPC methods of the Open Inference Protocol, statistics, model repository and health.

Only load and unload run in tasks.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from serving import __version__
from serving.api.grpc import messages
from serving.api.grpc.calls import GrpcCall
from serving.api.grpc.codec import GrpcCodec, GrpcInferRequest
from serving.api.grpc.exchange import GrpcResponseHandler, GrpcResponseWriter
from serving.api.grpc.parse_cache import CachedRequest, ParseCache, infer_request_of
from serving.api.grpc.streams import InferStream, StreamExchange, StreamTransport
from serving.api.open_inference import codec
from serving.api.triton import extensions as triton_extensions
from serving.api.triton import unsupported
from serving.api.triton.repository_service import Changes, RepositoryService
from serving.engine.engine import DeploymentHandle, Engine
from serving.errors import DeadlineExceeded, InvalidRequest, ServingError, Unimplemented

HEALTH = "grpc.health.v1.Health"
_STREAM = "ModelStreamInfer"
_WITHOUT_REPOSITORY = frozenset(
    {
        *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata"),
        *("ModelInfer", _STREAM),
    }
)
_CODEC = "open inference grpc"
_HEALTH_SERVING = b"\x08\x01"
_HEALTH_NOT_SERVING = b"\x08\x02"


class GrpcService(Protocol):
    """Handler of another gRPC service on the port."""

    def check(self, call: GrpcCall) -> None:
        """Raise ServingError for an unknown method."""
        ...

    def handle(
        self, call: GrpcCall, data: memoryview, reply: GrpcResponseWriter
    ) -> StreamExchange | bytes:
        """See `GrpcRoutes.handle`."""
        ...


class UnknownService(InvalidRequest):
    """Health check of an unknown service."""

    status = 404


class GrpcRoutes:
    """Handler of the service's calls."""

    def __init__(
        self,
        engine: Engine,
        *,
        hub: RepositoryService | None = None,
        services: Mapping[str, GrpcService] | None = None,
    ) -> None:
        self._engine = engine
        self._services = services or {}
        self._hub = hub
        self._requests = messages.methods()
        self._repeats = ParseCache()
        self._changes = Changes()

    def is_stream(self, call: GrpcCall) -> bool:
        """Return whether a call streams (`open`) or not (`handle`).

        Raises:
            ServingError: no such call.
        """
        service, method = call.service, call.method
        other = self._services.get(service)
        if other is not None:
            other.check(call)
        elif service == HEALTH:
            if method != "Check":
                raise Unimplemented(f"{HEALTH} offers only Check on this server")
        elif service != messages.SERVICE or method not in self._requests:
            refusal = unsupported.method(method) if service == messages.SERVICE else None
            raise refusal or Unimplemented(f"no method {service}/{method} on this server")
        elif method not in _WITHOUT_REPOSITORY and self._hub is None:
            raise Unimplemented(f"{method} is not offered by this server")
        return method == _STREAM and service == messages.SERVICE

    def open(self, call: GrpcCall, link: StreamTransport) -> InferStream:
        """Open a stream."""
        return InferStream(call, link, self._infer)

    def handle(
        self, call: GrpcCall, data: memoryview, reply: GrpcResponseWriter
    ) -> StreamExchange | bytes:
        """Return the response, or an exchange that calls `reply` later.

        Raises:
            ServingError: sent with its code.
        """
        if call.method == "ModelInfer" and call.service == messages.SERVICE:
            return self._infer(call, data, reply)
        other = self._services.get(call.service)
        if other is not None:
            return other.handle(call, data, reply)
        if call.service == HEALTH:
            return self._health(data.tobytes())
        return self._ask(call.method, _parse(self._requests[call.method], data), reply)

    # Inference

    def _infer(self, call: GrpcCall, data: memoryview, reply: GrpcResponseWriter) -> StreamExchange:
        started_s = time.monotonic()
        timeout_s = call.timeout_s
        request: Any = None
        try:
            if timeout_s is not None and timeout_s <= 0:
                raise DeadlineExceeded("call before it arrived")
            known = self._repeats.find(data)
            if known is None:
                request = _parse(messages.ModelInferRequest, data)
            if known is not None:
                target = self._engine.resolve(known.name, known.version)
            else:
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
            request = _parse(messages.ModelInferRequest, data)
        codec = _codec(target)
        query = codec.query(request)
        self._repeats.add(data, request, signature, codec, query)
        return codec, query

    # Everything else

    def _health(self, data: bytes) -> bytes:
        if data not in {b"", b"\x0a\x00"} and data[2:] != messages.SERVICE.encode():
            raise UnknownService("no such service; the empty name stands for the server")
        return _HEALTH_SERVING if self._engine.ready() else _HEALTH_NOT_SERVING

    def _ask(self, method: str, request: Any, reply: GrpcResponseWriter) -> StreamExchange | bytes:
        engine = self._engine
        match method:
            case "ServerLive":
                return _bytes(messages.ServerLiveResponse(live=True))
            case "ServerReady":
                return _bytes(messages.ServerReadyResponse(ready=engine.ready()))
            case "ServerMetadata":
                extensions = [
                    *codec.EXTENSIONS,
                    *(triton_extensions.EXTENSIONS if self._hub else ()),
                ]
                return _bytes(
                    messages.ServerMetadataResponse(
                        name="luthier", version=__version__, extensions=extensions
                    )
                )
            case "ModelReady":
                ready = engine.model_ready(request.name, request.version or None)
                return _bytes(messages.ModelReadyResponse(ready=ready))
            case "ModelMetadata":
                target = engine.resolve(request.name, request.version or None)
                return _codec(target).metadata(engine.versions(request.name))
            case _:
                assert self._hub is not None, "is_stream lets no such call in"
                return self._ask_hub(self._hub, method, request, reply)

    def _ask_hub(
        self, hub: RepositoryService, method: str, request: Any, reply: GrpcResponseWriter
    ) -> StreamExchange | bytes:
        match method:
            case "ModelStatistics":
                found = hub.statistics(request.name or None, request.version or None)
                data = triton_extensions.statistics_json(found)
                return messages.serialize(messages.ModelStatisticsResponse, data)
            case "ModelConfig":
                configured = hub.model_config(request.name, request.version or None)
                data = {"config": triton_extensions.config_json(configured)}
                return messages.serialize(messages.ModelConfigResponse, data)
            case "RepositoryIndex":
                models = triton_extensions.index_json(hub.index(), ready=request.ready)
                return messages.serialize(messages.RepositoryIndexResponse, {"models": models})
            case "RepositoryModelLoad":
                config = triton_extensions.config_parameter(_parameters(request))
                return self._change(method, hub.load(request.model_name, config), reply)
            case _:
                return self._change(method, hub.unload(request.model_name), reply)

    def _change(
        self, method: str, work: Coroutine[Any, Any, None], reply: GrpcResponseWriter
    ) -> StreamExchange:
        def answer(error: ServingError | None) -> None:
            if error is None:
                reply.send([b""])  # both responses are empty messages
            else:
                reply.reject(error)

        return self._changes.begin(work, answer, name=method)

    async def close(self) -> None:
        """Cancel loads and unloads."""
        await self._changes.close()


def _codec(target: DeploymentHandle) -> GrpcCodec:
    codec: GrpcCodec | None = target.codecs.get(_CODEC)
    if codec is None:
        codec = target.codecs[_CODEC] = GrpcCodec(
            target.id.name, target.id.version, target.signature
        )
    return codec


def _parse(kind: Any, data: memoryview) -> Any:
    try:
        return messages.parse(kind, data)
    except messages.MalformedMessage as error:
        raise InvalidRequest(str(error)) from error


def _parameters(request: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, given in request.parameters.items():
        field = given.WhichOneof("parameter_choice")
        found[name] = None if field is None else getattr(given, field)
    return found


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
