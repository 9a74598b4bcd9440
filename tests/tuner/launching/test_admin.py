"""The admin port's client against a small real server: what an answer other than 200 means."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from tuner.errors import LaunchFailed
from tuner.launching.admin import AdminClient


class Faulty(http.server.BaseHTTPRequestHandler):
    """Answers every request with 500 and a reason of two lines."""

    def do_GET(self) -> None:
        body = b'{"error": "no such\\nreplica"}'
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def client() -> Iterator[AdminClient]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Faulty)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield AdminClient("127.0.0.1", server.server_port)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("read", [AdminClient.settings, AdminClient.replicas, AdminClient.metrics])
def test_an_engine_that_cannot_answer_costs_the_launch_and_not_the_study(
    client: AdminClient, read: object
) -> None:
    """It is a failed launch with a cause and one line of reason, which a trial keeps."""
    with pytest.raises(LaunchFailed) as caught:
        read(client)  # type: ignore[operator]
    assert caught.value.cause == "crash"
    assert "answered 500" in caught.value.text
    assert "no such replica" in caught.value.text


def test_an_engine_that_is_gone_is_a_crash() -> None:
    """Nobody listens: the same error, with what the system says."""
    with pytest.raises(LaunchFailed, match="no response") as caught:
        AdminClient("127.0.0.1", 1).replicas()
    assert caught.value.cause == "crash"
