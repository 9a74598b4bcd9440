"""BentoML: raw bodies through a mounted ASGI application, which is the way of its documentation.

Its own typed routes take JSON or multipart forms; both cost more than the raw body. Batches are made
between services only, so with `max_batch_size` above 1 the route hands each item to a second
service, whose one method is batchable.

Settings: port, model, max_batch_size, max_latency_ms, workers, threads.
"""

from __future__ import annotations

import os
import pathlib
import sys

os.environ["BENTOML_DO_NOT_TRACK"] = "1"  # read when bentoml is imported

import bentoml
from peer_model import SETTINGS, load
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

IS_BATCHED = SETTINGS["max_batch_size"] > 1
OPTIONS = {"logging": {"access": {"enabled": False}}, "metrics": {"enabled": False}}
# Without this the gateway closes its connections every 100 requests, with those that are in flight.
CONNECTION = {"max_requests": 1_000_000_000, "max_age": 86_400.0}


async def infer(request: Request) -> Response:
    """Answer one request."""
    service = bentoml.get_current_service()
    return Response(
        await service.answer(await request.body()), media_type="application/octet-stream"
    )


app = Starlette(routes=[Route("/infer", infer, methods=["POST"])])


@bentoml.service(workers=SETTINGS["workers"], **OPTIONS)
@bentoml.asgi_app(app)
class Single:
    """One call of the model for each request, in the process that has its connection."""

    def __init__(self) -> None:
        self._predict = load()

    async def answer(self, item: bytes) -> bytes:
        """One item's answer."""
        return self._predict([item])[0]


@bentoml.service(workers=SETTINGS["workers"], runner_connection=CONNECTION, **OPTIONS)
class Model:
    """The service whose method is batched: rows of bytes in, rows of bytes out."""

    def __init__(self) -> None:
        self._predict = load()

    @bentoml.api(
        batchable=True,
        max_batch_size=max(2, SETTINGS["max_batch_size"]),
        max_latency_ms=SETTINGS["max_latency_ms"],
    )
    def predict(self, items: list[bytes]) -> list[bytes]:
        """One batch."""
        return self._predict(items)


@bentoml.service(workers=1, **OPTIONS)
@bentoml.asgi_app(app)
class Gateway:
    """Has the connections, and asks the batched service."""

    model = bentoml.depends(Model)

    async def answer(self, item: bytes) -> bytes:
        """One item's answer."""
        return (await self.model.to_async.predict([item]))[0]


if __name__ == "__main__":
    service = "Gateway" if IS_BATCHED else "Single"
    command = ["-m", "bentoml", "serve", f"serve_bentoml:{service}"]
    command += ["--host", "127.0.0.1", "--port", str(SETTINGS["port"])]
    command += ["--working-dir", str(pathlib.Path(__file__).resolve().parent)]
    os.execv(sys.executable, [sys.executable, *command])
