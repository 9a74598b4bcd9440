"""Ray Serve: one deployment, asked with raw bodies, batched by `serve.batch`.

Settings: port, model, max_batch_size (1: no batching), wait_s, replicas, threads, switches (the
environment variables that its documentation names for throughput).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading

from peer_model import SETTINGS, load

# All of these are read when ray is imported.
os.environ["RAY_TMPDIR"] = tempfile.gettempdir()
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.update(dict.fromkeys(SETTINGS["switches"], "1"))

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

BINARY = "application/octet-stream"
OPTIONS = {
    "num_replicas": SETTINGS["replicas"],
    "max_ongoing_requests": 100,
    "ray_actor_options": {
        "num_cpus": 0
    },  # more processes than cores are allowed, as for every peer
    "logging_config": {"log_level": "WARNING", "enable_access_log": False},
}


@serve.deployment(**OPTIONS)
class Single:
    """One call of the model for each request."""

    def __init__(self) -> None:
        self._predict = load()

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        return Response(self._predict([await request.body()])[0], media_type=BINARY)


@serve.deployment(**OPTIONS)
class Batched:
    """Requests are collected into batches."""

    def __init__(self) -> None:
        self._predict = load()

    @serve.batch(max_batch_size=SETTINGS["max_batch_size"], batch_wait_timeout_s=SETTINGS["wait_s"])
    async def predict(self, items: list[bytes]) -> list[bytes]:
        """One batch."""
        return self._predict(items)

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        return Response(await self.predict(await request.body()), media_type=BINARY)


def main() -> None:
    """Serve until told to end; the cluster's processes end with this one."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    ray.init(include_dashboard=False, logging_level="warning", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": SETTINGS["port"]})
    deployment = Batched if SETTINGS["max_batch_size"] > 1 else Single
    serve.run(deployment.bind(), route_prefix="/")
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
