"""The inside of a container, here without one: it ends with its gateway, or waits for the next one for a while."""

import socket
import subprocess
import sys
import tempfile

import pytest


@pytest.fixture(name="path")
def _path():
    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most some hundred letters
        yield f"{short}/gateway.sock"


@pytest.mark.parametrize("words", [(), ("--patience", "0.1")])
def test_it_ends_without_a_gateway(path, words):
    """At once, or when its patience has ended: nobody else may be left who would end it."""
    with socket.socket(socket.AF_UNIX) as gateway:
        gateway.bind(path)
        gateway.listen()
        gateway.settimeout(30)
        module = "serving.replica.in_container"
        with subprocess.Popen([sys.executable, "-m", module, *words, path, "/", "echo"]) as replica:
            talk, _ = gateway.accept()
            with talk:
                assert talk.recv(65_536)
            assert replica.wait(30) == 0


def test_it_comes_back_to_the_next_gateway(path):
    """Which says a word first, as it may be one of another kind."""
    module = "serving.replica.in_container"
    with socket.socket(socket.AF_UNIX) as gateway:
        gateway.bind(path)
        gateway.listen()
        gateway.settimeout(30)
        words = ["--patience", "60", path, "/", "echo"]
        with subprocess.Popen([sys.executable, "-m", module, *words]) as replica:
            first, _ = gateway.accept()
            with first:
                hello = first.recv(65_536)
            again, _ = gateway.accept()
            again.settimeout(30)
            with again:
                again.sendall(b"\n")
                assert again.recv(65_536)[:4] == hello[:4]
                replica.kill()
