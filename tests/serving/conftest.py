"""A gateway's half of the replica wire for tests: blocking, bounded by a timeout."""

import dataclasses
import socket

import pytest

from serving import wire
from serving.spawners.process import forkserver_client
from serving.values import Tensor
from tests.fakes.warm_fork_servers import warm_fork_servers

TIMEOUT_S = 20.0


@dataclasses.dataclass
class Talk:
    """A conversation with one replica over a connected socket."""

    sock: socket.socket
    action: int = 0

    def __post_init__(self):
        self.sock.settimeout(TIMEOUT_S)
        self._parser = wire.MessageParser()
        self._messages = []

    def receive(self):
        """The next message as (type, body)."""
        while not self._messages:
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._messages += self._parser.feed(data)
        return self._messages.pop(0)

    def hello(self):
        """Read HELLO."""
        kind, body = self.receive()
        assert kind is wire.MessageType.HELLO
        return wire.parse_hello(body)

    def load(self, kind, path=None, *, model=1, threads=1, **window):
        """Have a model loaded; returns LOADED."""
        self.action += 1
        message = wire.LoadMessage(
            action_id=self.action,
            model=model,
            name="m",
            version="1",
            kind=kind,
            path=None if path is None else str(path),
            threads=threads,
            **{"earliest_ns": 0, "latest_ns": 0, **window},
        )
        self.sock.sendall(wire.encode_load(message))
        answer, body = self.receive()
        assert answer is wire.MessageType.LOADED
        loaded = wire.parse_loaded(body)
        assert loaded.action_id == self.action
        return loaded

    def unload(self, model=1):
        """Have a model unloaded; returns UNLOADED."""
        self.action += 1
        self.sock.sendall(wire.encode_unload(self.action, model=model))
        answer, body = self.receive()
        assert answer is wire.MessageType.UNLOADED
        return wire.parse_unloaded(body)

    def send(self, frames, *, model=1, earliest_ns=0, latest_ns=0):
        """Send a batch; `frames` are (frame, encoding, start, stop)."""
        self.action += 1
        entries = [(len(frame), encoding, start, stop) for frame, encoding, start, stop in frames]
        head = wire.infer_head(self.action, model, earliest_ns, latest_ns, entries)
        self.sock.sendall(head + b"".join(frame for frame, _, _, _ in frames))
        return self.action

    def result(self):
        """Read a RESULT: (message, [tensors, or (status, text)] per request)."""
        answer, body = self.receive()
        assert answer is wire.MessageType.RESULT
        message = wire.parse_result(body)
        outcomes = [
            (status, bytes(frame).decode()) if status else wire.decode_frame(frame)
            for status, frame in message.entries
        ]
        return message, outcomes

    def infer(self, frames, **window):
        """Send a batch and read its result."""
        action = self.send(frames, **window)
        message, outcomes = self.result()
        assert message.action_id == action
        return message, outcomes


def frame(*tensors, start=0, stop=0):
    """A request in the tensors encoding, from (name, datatype, shape, data)."""
    values = [Tensor(*tensor) for tensor in tensors]
    data = wire.encode_descriptor(values) + b"".join(bytes(value.data) for value in values)
    return data, wire.Encoding.TENSORS, start, stop


@pytest.fixture(name="frame")
def frame_fixture():
    """The function that makes a request's frame."""
    return frame


@pytest.fixture(name="converse")
def talk_fixture():
    """Begin a conversation over a socket."""
    return Talk


@pytest.fixture(scope="session", name="_warm")
def _warm_fork_servers():
    with warm_fork_servers() as warm:
        yield warm


@pytest.fixture
def quick_starts(_warm, monkeypatch):
    """Fork servers have imported all that they import when they are started."""
    monkeypatch.setattr(forkserver_client, "ControlledProcess", _warm)
