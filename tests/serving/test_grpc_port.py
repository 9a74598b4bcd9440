"""Which port gRPC gets where none is named, and what comes of it when another program has that port."""

import logging
import socket

import pytest

from serving.app import ports
from serving.errors import InvalidSettings, NotReady
from serving.settings import SETTINGS
from serving.settings.sources import resolve


@pytest.fixture(name="free")
def _free():
    """A port that is free, in the place of 8001."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(name="bound")
def _bound(monkeypatch, free):
    """Binds as the command's settings say; the ports are given back at the end."""
    sockets = []
    monkeypatch.setattr(ports, "_GRPC_BESIDE", {8000: free, 0: 0})

    def bind(**values):
        named = {f"server.{name}": value for name, value in values.items()}
        found = ports.bind_grpc(resolve(environment={}, command_line=named).server)
        if found is None:
            return None
        sockets.append(found)
        return found.getsockname()[1]

    yield bind
    for one in sockets:
        one.close()


def test_where_none_is_named(bound, free):
    """The usual one beside the usual query port, a free one beside a free one, none beside any other."""
    assert bound() == free
    assert bound(port=0) not in {None, free}
    assert bound(port=9000) is None


def test_one_that_is_named(bound, free):
    """It counts beside any query port, and null switches it off."""
    assert bound(port=9000, grpc_port=free) == free
    assert bound(port=9000, grpc_port=0) is not None
    assert bound(grpc_port=None) is None
    assert bound(port=0, grpc_port=None) is None


def test_one_that_another_program_has(bound, free, caplog):
    """Nobody named it: the server does without, and says so in one line. Who names it is refused."""
    with socket.socket() as other, caplog.at_level(logging.WARNING):
        other.bind(("127.0.0.1", free))
        other.listen()
        assert bound() is None
        (line,) = caplog.records
        assert line.message == "served without gRPC"
        assert f"port {free} on 127.0.0.1 is in use" in line.reason
        assert "server.grpc_port" in line.reason
        with pytest.raises(NotReady, match=f"port {free} on 127.0.0.1 is in use"):
            bound(grpc_port=free)


@pytest.mark.parametrize("value", ["on", -1, 70_000, True])
def test_what_is_no_port(value):
    """The line says what is allowed."""
    with pytest.raises(InvalidSettings, match="from 0 to 65535, auto or null"):
        resolve(environment={}, command_line={"server.grpc_port": value})


def test_the_usual_ports():
    """The table that the tests above replace in part."""
    assert ports._GRPC_BESIDE == {8000: 8001, 0: 0}
    assert SETTINGS["server.grpc_port"].default == "auto"
