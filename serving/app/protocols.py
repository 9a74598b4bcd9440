"""What is behind the inference ports: the handlers of all protocols, and their listeners."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import socket
from collections.abc import Sequence

from serving import zoo
from serving.api import credentials
from serving.api.clipper.routes import ClipperRoutes
from serving.api.grpc.listener import GrpcListener
from serving.api.grpc.routes import GrpcRoutes
from serving.api.http.access import Access, Token
from serving.api.http.exchange import Routes
from serving.api.http.listener import HttpListener
from serving.api.http.middleware import Middleware
from serving.api.http.router import Router
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.connection_limiter import ConnectionLimiter
from serving.api.triton.repository_service import RepositoryService
from serving.api.triton.routes import TritonRoutes
from serving.app.bootstrap import ServerComponents
from serving.app.ports import IDLE_S, REQUEST_S, InferenceListener
from serving.metrics.clipper_metrics import Registry
from serving.metrics.exposition import Exposition
from serving.model_spec import ModelSpec
from serving.settings.server import ServerSettings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Protocols:
    """Handlers behind the inference ports; REST has a middleware."""

    gate: Middleware
    triton: TritonRoutes
    calls: GrpcRoutes

    async def close(self) -> None:
        """Stop their remaining work."""
        self.gate.close()
        await asyncio.gather(self.triton.close(), self.calls.close())


def build_protocols(
    core: ServerComponents,
    specs: Sequence[ModelSpec],
    settings: ServerSettings,
    token: Token | None,
    exposition: Exposition,
    held: BufferedBytes,
) -> Protocols:
    """Build the handlers behind the inference ports."""
    engine, max_json_bytes = core.engine, settings.max_json_bytes
    is_shown = settings.metrics == "inference"
    hub = RepositoryService(
        engine,
        core.repository,
        specs=[*zoo.bundled_specs(), *specs],
        is_controlled=settings.model_control == "explicit",
        shows_statistics=is_shown,
        keep=core.keep,
    )
    triton = TritonRoutes(hub)
    rest = Router(
        oip=OpenInferenceRoutes(engine, triton, max_json_bytes),
        tfs=TensorFlowRoutes(
            engine,
            metrics=exposition.pieces if is_shown else None,
            max_json_bytes=max_json_bytes,
        ),
        otherwise=ClipperRoutes(
            core.clipper,
            metrics=Registry(random.Random()),  # noqa: S311 - it samples latencies
            shows_metrics=is_shown,
            max_json_bytes=max_json_bytes,
        ),
    )
    return Protocols(
        gate=_gate(rest, settings, token, held),
        triton=triton,
        calls=GrpcRoutes(engine, hub),
    )


def _gate(
    routes: Routes, settings: ServerSettings, token: Token | None, held: BufferedBytes
) -> Middleware:
    """Build the middleware of the inference port."""
    origins = [origin.strip() for origin in (settings.cors or "").split(",")]
    return Middleware(
        routes,
        Access(
            token=token,
            origins=[origin for origin in origins if origin],
            hosts=credentials.hosts(settings, settings.host),
        ),
        max_body_bytes=settings.max_body_bytes,
        gzip_min_bytes=settings.gzip_min_bytes,
        is_timed=settings.timing == "header",
        buffered=held,
    )


def query_ports(
    protocols: Protocols,
    settings: ServerSettings,
    token: Token | None,
    query: socket.socket,
    grpc: socket.socket | None,
    door: ConnectionLimiter,
    held: BufferedBytes,
) -> list[tuple[InferenceListener, socket.socket]]:
    """Return the inference listeners with their sockets."""
    max_body_bytes = settings.max_body_bytes
    rest = HttpListener(
        protocols.gate,
        max_body_bytes=max_body_bytes,
        idle_s=IDLE_S,
        request_s=REQUEST_S,
        door=door,
        buffered=held,
        refusal=protocols.gate.refusal,
    )
    ports: list[tuple[InferenceListener, socket.socket]] = [(rest, query)]
    if grpc is not None:
        grpc_listener = GrpcListener(
            protocols.calls,
            max_body_bytes=max_body_bytes,
            idle_s=IDLE_S,
            request_s=REQUEST_S,
            token=token,
            door=door,
            buffered=held,
            gzip_min_bytes=settings.gzip_min_bytes,
        )
        ports.append((grpc_listener, grpc))
    return ports
