"""The peer of `serving_core.py`: mosec with one worker that returns the bytes it was given.

In: `BATCH_SIZE` and `WAIT_MS` in the environment (mosec reads the command line itself: `--address`,
`--port`). No parsing and no model, so what is measured is the way of a request through the server.
"""

from __future__ import annotations

import os

from mosec import Server, Worker


class Echo(Worker):
    """Raw bytes in and out; `forward` gets one item or, when batching, a list."""

    resp_mime_type = "application/octet-stream"

    def deserialize(self, data: bytes) -> bytes:
        """The body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """The answer as it is."""
        return data

    def forward(self, data: bytes | list[bytes]) -> bytes | list[bytes]:
        """Nothing to compute."""
        return data


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Echo,
        num=1,
        max_batch_size=int(os.environ["BATCH_SIZE"]),
        max_wait_time=int(os.environ["WAIT_MS"]),
    )
    server.run()
