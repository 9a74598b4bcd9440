"""mosec: its HTTP side is written in Rust, its workers are Python processes.

Settings: port, model, max_batch_size, max_wait_ms, workers, threads.
"""

from __future__ import annotations

import sys

from mosec import Server, Worker
from peer_model import SETTINGS, load


class Model(Worker):
    """Raw bytes in and out; `forward` gets one item or, when batching, a list."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        self._predict = load()

    def deserialize(self, data: bytes) -> bytes:
        """The body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """The answer as it is."""
        return data

    def forward(self, data: bytes | list[bytes]) -> bytes | list[bytes]:
        """One batch."""
        return self._predict(data) if isinstance(data, list) else self._predict([data])[0]


if __name__ == "__main__":
    sys.argv += [
        "--address",
        "127.0.0.1",
        "--port",
        str(SETTINGS["port"]),
    ]  # mosec reads them there
    server = Server()
    server.append_worker(
        Model,
        num=SETTINGS["workers"],
        max_batch_size=SETTINGS["max_batch_size"],
        max_wait_time=SETTINGS["max_wait_ms"],
    )
    server.run()
