"""LitServe: FastAPI in front, workers behind a queue (`fast_queue`: ZeroMQ instead of a manager's).

A request type of its own makes FastAPI hand over the raw body, so that no JSON or form is parsed.

Settings: port, model, max_batch_size, batch_timeout_s, workers, api_servers, fast_queue, threads.
"""

from typing import Annotated

import litserve
from fastapi import Body, Response
from peer_model import SETTINGS, load

BINARY = "application/octet-stream"
IS_BATCHED = SETTINGS["max_batch_size"] > 1

# Annotations are read at run time here, so they must be objects: no `from __future__` above.
Raw = Annotated[bytes, Body(media_type=BINARY)]


class Api(litserve.LitAPI):
    """Bytes in and out; `predict` gets one item or, when batching, a list."""

    def setup(self, device: str) -> None:  # noqa: ARG002  LitServe's signature
        """Load the model in the worker."""
        self._predict = load()

    def decode_request(self, request: Raw) -> bytes:
        """The body as it is."""
        return request

    def predict(self, x: bytes | list[bytes]) -> bytes | list[bytes]:
        """One batch."""
        return self._predict(x) if IS_BATCHED else self._predict([x])[0]

    def encode_response(self, output: bytes) -> Response:
        """The answer as it is."""
        return Response(output, media_type=BINARY)


if __name__ == "__main__":
    api = Api(
        api_path="/infer",
        max_batch_size=SETTINGS["max_batch_size"],
        batch_timeout=SETTINGS["batch_timeout_s"],
    )
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=SETTINGS["workers"],
        fast_queue=SETTINGS["fast_queue"],
    )
    server.run(
        host="127.0.0.1",
        port=SETTINGS["port"],
        num_api_servers=SETTINGS["api_servers"],
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
