"""Frames between the tuner and the client's process."""

import contextlib
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load_generator import wire


@pytest.fixture
def pipe():
    """Reading and writing end, both non-blocking."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    yield reading, writing
    for end in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(end)


@given(
    frames=st.lists(
        st.tuples(st.dictionaries(st.text(), st.integers() | st.text()), st.binary(max_size=500)),
        min_size=1,
        max_size=5,
    )
)
def test_frames_come_out_as_they_went_in(frames):
    """In order, headers and blobs unchanged."""
    reading, writing = os.pipe()
    try:
        for header, blob in frames:
            wire.write_frame(writing, header, blob, timeout_s=5)
        assert [wire.read_frame(reading, timeout_s=5) for _ in frames] == frames
    finally:
        os.close(reading)
        os.close(writing)


def test_a_frame_larger_than_the_pipe_goes_through(pipe):
    """Both sides wait for each other as often as it takes."""
    reading, writing = pipe
    blob = os.urandom(3 << 20)
    thread = threading.Thread(
        target=wire.write_frame, args=(writing, {"a": 1}, blob), kwargs={"timeout_s": 10}
    )
    thread.start()
    assert wire.read_frame(reading, timeout_s=10) == ({"a": 1}, blob)
    thread.join()


def test_the_end_of_the_other_side_is_said(pipe):
    """A writer without reader and a reader without writer are told so."""
    reading, writing = pipe
    os.write(writing, b"\0\0")
    os.close(writing)
    with pytest.raises(wire.Closed):
        wire.read_frame(reading, timeout_s=5)
    again_reading, again_writing = os.pipe()
    os.close(again_reading)
    with pytest.raises(wire.Closed):
        wire.write_frame(again_writing, {}, timeout_s=5)
    os.close(again_writing)


def test_nobody_waits_for_ever(pipe):
    """Silence ends a read, and a pipe that nobody empties ends a write."""
    reading, writing = pipe
    with pytest.raises(TimeoutError, match="stood still"):
        wire.read_frame(reading, timeout_s=0.02)
    with pytest.raises(TimeoutError, match="stood still"):
        wire.write_frame(writing, {}, bytes(3 << 20), timeout_s=0.02)
