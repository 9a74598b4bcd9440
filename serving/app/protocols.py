"""What is behind the inference ports: the handlers of all protocols, and their listeners."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from serving import zoo
from serving.api import credentials
from serving.api.clipper.routes import ClipperRoutes
from serving.api.grpc.listener import GrpcListener
from serving.api.grpc.routes import GrpcRoutes
from serving.api.http.access import Access, Token
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
from serving.app.ports import IDLE_S, REQUEST_S
from serving.metrics.clipper_metrics import Registry
from serving.model_spec import ModelSpec
from serving.settings.server import ServerSettings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Protocols:
    """The listeners of the inference ports, and the handlers behind them."""

    rest: HttpListener
    grpc: GrpcListener
    gate: Middleware
    triton: TritonRoutes
    calls: GrpcRoutes

    async def close(self) -> None:
        """Stop the handlers' remaining work."""
        self.gate.close()
        await asyncio.gather(self.triton.close(), self.calls.close())


def build_protocols(
    core: ServerComponents,
    specs: Sequence[ModelSpec],
    settings: ServerSettings,
    token: Token | None,
    metrics: Callable[[], Iterator[bytes]],
    door: ConnectionLimiter,
    held: BufferedBytes,
) -> Protocols:
    """Build the handlers of all protocols, and their listeners."""
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
    triton = TritonRoutes(hub, max_json_bytes)
    tfs = TensorFlowRoutes(
        engine, metrics=metrics if is_shown else None, max_json_bytes=max_json_bytes
    )
    clipper = ClipperRoutes(
        core.clipper,
        metrics=Registry(random.Random()),  # noqa: S311 - it samples latencies
        shows_metrics=is_shown,
        max_json_bytes=max_json_bytes,
    )
    oip = OpenInferenceRoutes(engine, triton, max_json_bytes)
    gate = _gate(Router(oip=oip, tfs=tfs, otherwise=clipper), settings, token, held)
    calls = GrpcRoutes(engine, hub, max_json_bytes)
    limits: dict[str, Any] = {
        "max_body_bytes": settings.max_body_bytes,
        "idle_s": IDLE_S,
        "request_s": REQUEST_S,
        "door": door,
        "buffered": held,
    }
    grpc = GrpcListener(calls, token=token, gzip_min_bytes=settings.gzip_min_bytes, **limits)
    rest = HttpListener(gate, refusal=gate.refusal, **limits)
    return Protocols(rest=rest, grpc=grpc, gate=gate, triton=triton, calls=calls)


def _gate(
    routes: Router, settings: ServerSettings, token: Token | None, held: BufferedBytes
) -> Middleware:
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
