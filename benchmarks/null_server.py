"""A server that does nothing, as fast as Python can: the yardstick for HTTP clients.

    python benchmarks/null_server.py [--port 9000] [--answer-bytes 64]

One process, one uvloop protocol. It reads each request to the end of its body (Content-Length is
counted; chunked requests are not understood), and answers 200 with a fixed small body and
keep-alive. Once it listens, it prints its port. It tells apart what a client costs from what a
server costs; it serves nobody.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import cast

import uvloop


class NullProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._begun = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is no subclass

    def data_received(self, data: bytes) -> None:
        """Answer each request that is complete."""
        data = self._begun + data if self._begun else data
        while data:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            whole = end + _content_length(data[:end])
            if len(data) < whole:
                break
            self._transport.write(self._answer)
            data = data[whole:]
        self._begun = data


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    start = lowered.find(b"\r\ncontent-length:")
    return 0 if start < 0 else int(lowered[start + 17 : lowered.find(b"\r\n", start + 2)])


async def serve(port: int, answer_bytes: int) -> None:
    lines = (
        "HTTP/1.1 200 OK",
        "Content-Type: text/plain",
        f"Content-Length: {answer_bytes}",
        "",
        "",
    )
    answer = "\r\n".join(lines).encode() + b"x" * answer_bytes
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(lambda: NullProtocol(answer), "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="A server that does nothing, for measuring clients."
    )
    parser.add_argument(
        "--port", type=int, default=0, help="default: any free one, which is printed"
    )
    parser.add_argument("--answer-bytes", type=int, default=64, help="length of the answer's body")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.answer_bytes))


if __name__ == "__main__":
    main()
