"""The frameworks, and a gateway's half of the wire to a host.

Where a framework is not installed, its tests are skipped.
"""

import socket
import threading

import pytest

from serving.replica import host, wire
from serving.values import Tensor
from tests.serving.replica.conftest import Talk

THREADS = 2
"""Of every load by TensorFlow in this process: it has one number, set before anything is computed."""


def import_torch():
    """PyTorch, or a skipped test."""
    return pytest.importorskip("torch", reason="PyTorch is installed by make test-frameworks")


def import_tensorflow():
    """TensorFlow with its threads set, or a skipped test."""
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is installed by make test-frameworks")
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def frame(*tensors):
    """A request in the tensors encoding, from (name, datatype, array)."""
    values = [
        Tensor(name, datatype, array.shape, array.tobytes()) for name, datatype, array in tensors
    ]
    data = wire.encode_descriptor(values) + b"".join(value.data for value in values)
    return data, wire.Encoding.TENSORS, 0, 0


@pytest.fixture(name="talk")
def _talk():
    """A conversation with a real host, which greeted."""
    ours, theirs = socket.socketpair()

    def run():
        with theirs:
            host.serve(theirs)

    thread = threading.Thread(target=run)
    thread.start()
    talk = Talk(ours)
    talk.hello()
    yield talk
    ours.close()
    thread.join(20)
    assert not thread.is_alive()
