"""The inside of a container, here without one: it ends with its gateway."""

import socket
import subprocess
import sys
import tempfile

import pytest


@pytest.fixture(name="path")
def _path():
    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most some hundred letters
        yield f"{short}/gateway.sock"


def test_it_ends_without_a_gateway(path):
    """At once: nobody else may be left who would end it."""
    with socket.socket(socket.AF_UNIX) as gateway:
        gateway.bind(path)
        gateway.listen()
        gateway.settimeout(30)
        module = "serving.replica.in_container"
        with subprocess.Popen([sys.executable, "-m", module, path, "/", "echo"]) as replica:
            talk, _ = gateway.accept()
            with talk:
                assert talk.recv(65_536)
            assert replica.wait(30) == 0
