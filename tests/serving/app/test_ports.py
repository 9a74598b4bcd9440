"""The server's ports, as the settings name them."""

import pytest

from serving.app.ports import check_distinct
from serving.errors import InvalidSettings
from serving.settings.server import ServerSettings


@pytest.mark.parametrize(
    ("phrase", "ports"),
    [
        ("8002 is both --port and --admin-port", {"port": 8002}),
        ("9000 is both --port and --admin-port", {"port": 9000, "admin_port": 9000}),
        ("9000 is both --port and server.grpc_port", {"port": 9000, "grpc_port": 9000}),
        ("8002 is both --admin-port and server.grpc_port", {"grpc_port": 8002}),
        ("8001 is both --admin-port and server.grpc_port", {"admin_port": 8001}),
    ],
)
def test_two_equal_ports_are_rejected(phrase, ports):
    """Each pair is named, also the gRPC port that nobody named."""
    with pytest.raises(InvalidSettings, match=f"port {phrase}; choose different ports"):
        check_distinct(ServerSettings(**ports))


@pytest.mark.parametrize(
    "ports",
    [{}, {"port": 0, "admin_port": 0, "grpc_port": 0}, {"grpc_port": None, "admin_port": 8001}],
)
def test_different_and_free_ports_are_accepted(ports):
    """The defaults, free ports, and a port that gRPC does not take."""
    check_distinct(ServerSettings(**ports))
