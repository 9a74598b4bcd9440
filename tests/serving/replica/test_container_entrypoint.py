"""The inside of a container, here without one: it ends with its gateway."""

import hashlib
import os
import socket
import subprocess
import sys
import tempfile

import pytest

from tests.fakes.adding import adding


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
        module = "serving.replica.container_entrypoint"
        with subprocess.Popen([sys.executable, "-m", module, path, "/", "echo"]) as replica:
            talk, _ = gateway.accept()
            with talk:
                assert talk.recv(65_536)
            assert replica.wait(30) == 0


def test_it_has_no_optimised_copies(path, converse, tmp_path):
    """What a container writes no other one finds: it loads the model's own file, whatever it is asked."""
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    with socket.socket(socket.AF_UNIX) as gateway:
        gateway.bind(path)
        gateway.listen()
        gateway.settimeout(30)
        command = [sys.executable, "-m", "serving.replica.container_entrypoint", path, "/", "onnx"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        with subprocess.Popen(command, env=environment) as replica:
            talk = converse(gateway.accept()[0])
            with talk.sock:
                talk.hello()
                loaded = talk.load("onnx", file, digest=digest, optimises=True)
            assert replica.wait(30) == 0
    assert (loaded.status, loaded.detail["optimised"]) == (0, None)
    assert not (tmp_path / "luthier").exists()
