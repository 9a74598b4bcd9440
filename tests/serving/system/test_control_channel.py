"""Frames between a process and its child, and the end of either."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.system.control_channel import Closed, ControlChannel, ControlledProcess

WAIT_S = 20.0
FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text(), st.integers() | st.text()), st.binary(max_size=500)),
    min_size=1,
    max_size=5,
)
ECHO = """
import sys
from serving.system.control_channel import Closed, ControlChannel
parent = ControlChannel.to_parent()
print("said", sys.stdin.read(), flush=True)
try:
    while True:
        parent.send(*parent.receive())
except Closed:
    pass
"""


def pair():
    """Both ends of a channel, in this process."""
    return [ControlChannel(sock) for sock in socket.socketpair()]


@pytest.fixture
def ends():
    """Both ends, closed after the test."""
    both = pair()
    yield both
    for end in both:
        end.sock.close()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a module of this text."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def started(text, **options):
        (tmp_path / "child_of_test.py").write_text(text)
        return ControlledProcess.start("child_of_test", **options)

    return started


@given(frames=FRAMES)
def test_frames_come_out_as_they_went_in(frames):
    """In order, messages and blobs unchanged."""
    ours, theirs = pair()
    for message, blob in frames:
        ours.send(message, blob, timeout_s=5)
    assert [theirs.receive(timeout_s=5) for _ in frames] == frames
    for end in (ours, theirs):
        end.sock.close()


@given(frames=FRAMES, size=st.integers(min_value=1, max_value=40))
def test_frames_may_arrive_in_any_pieces(frames, size):
    """No frame has to come in one piece, nor alone."""
    ours, theirs = pair()
    for message, blob in frames:
        ours.send(message, blob)
    ours.sock.close()
    data = b"".join(iter(lambda: theirs.sock.recv(1 << 20), b""))
    theirs.sock.close()
    ours, theirs = pair()
    found = []
    for start in range(0, len(data), size):
        ours.sock.send(data[start : start + size])
        found += theirs.receive_all()
    assert found == [message for message, _ in frames]
    for end in (ours, theirs):
        end.sock.close()


def test_a_frame_larger_than_the_buffer_goes_through(ends):
    """Both sides wait for each other as often as it takes."""
    ours, theirs = ends
    blob = os.urandom(3 << 20)
    thread = threading.Thread(target=ours.send, args=({"a": 1}, blob), kwargs={"timeout_s": 10})
    thread.start()
    assert theirs.receive(timeout_s=10) == ({"a": 1}, blob)
    thread.join()


def test_what_is_there_is_received_without_waiting(ends):
    """Several messages at once, or none."""
    ours, theirs = ends
    assert theirs.receive_all() == []
    ours.send({"a": 1})
    ours.send({"b": 2})
    assert theirs.receive_all() == [{"a": 1}, {"b": 2}]
    ours.send({"c": 3})
    ours.sock.close()
    assert theirs.receive_all() == [{"c": 3}]
    with pytest.raises(Closed):
        theirs.receive_all()


def test_what_was_received_before_the_end_is_not_lost(ends):
    """Messages that came along with one that was waited for; the end is told after them."""
    ours, theirs = ends
    for number in range(3):
        ours.send({"number": number})
    ours.sock.close()
    assert theirs.receive(timeout_s=5) == ({"number": 0}, b"")
    assert theirs.receive_all() == [{"number": 1}, {"number": 2}]
    with pytest.raises(Closed):
        theirs.receive_all()


def test_the_end_of_the_other_side_is_said(ends):
    """A writer without reader and a reader without writer are told so."""
    ours, theirs = ends
    assert not theirs.has_ended()
    ours.sock.send(b"\0\0")
    ours.sock.close()
    assert theirs.has_ended()
    with pytest.raises(Closed):
        theirs.receive(timeout_s=5)
    with pytest.raises(Closed):
        theirs.send({}, timeout_s=5)
    with pytest.raises(Closed):  # and so is whoever closed it
        ours.receive(timeout_s=5)


def test_nobody_waits_for_ever(ends):
    """Silence ends a read, and a socket that nobody empties ends a write."""
    ours, theirs = ends
    with pytest.raises(TimeoutError, match="stood still"):
        theirs.receive(timeout_s=0.02)
    with pytest.raises(TimeoutError, match="stood still"):
        ours.send({}, bytes(3 << 20), timeout_s=0.02)


def test_garbage_is_not_waited_for(ends):
    """A length beyond all bounds ends the channel."""
    ours, theirs = ends
    ours.sock.send(b"\xff" * 12)
    with pytest.raises(Closed, match="expected at most"):
        theirs.receive(timeout_s=5)


def test_a_child_answers_and_ends_with_its_channel(start):
    """Its prints go elsewhere, its standard input is empty, and it needs no signal."""
    child = start(ECHO, output=subprocess.PIPE)
    child.send({"a": 1}, b"blob", timeout_s=WAIT_S)
    assert child.receive(timeout_s=WAIT_S) == ({"a": 1}, b"blob")
    child.end(WAIT_S)
    assert child.process.returncode == 0
    with child.process.stdout as printed:
        assert printed.read() == b"said \n"


def test_a_child_that_does_not_end_is_killed(start):
    """After its time."""
    child = start("import time; time.sleep(600)")
    child.end(0.1)
    assert child.process.returncode == -signal.SIGKILL


def test_a_child_ends_with_a_killed_parent(tmp_path):
    """The end of the channel needs no word of the parent."""
    (tmp_path / "child_of_test.py").write_text(ECHO)
    parent = (
        "import time; from serving.system.control_channel import ControlledProcess\n"
        "child = ControlledProcess.start('child_of_test'); time.sleep(600)"
    )
    root = pathlib.Path(__file__).resolve().parents[3]
    path = os.pathsep.join((str(tmp_path), str(root)))
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stderr.readline() == b"said \n"
        process.kill()
        assert process.stderr.read() == b""  # closed by the child's end


def test_a_full_socket_takes_no_frame_until_it_is_read(ends):
    """`can_send` says so, and a frame that it allows does not wait."""
    writer, reader = ends
    count = 0
    while writer.can_send():
        writer.send({"number": count}, timeout_s=0.0)
        count += 1
    found = []
    while not writer.can_send():
        found += reader.receive_all()
    assert found[0] == {"number": 0}
    assert len(found) <= count
