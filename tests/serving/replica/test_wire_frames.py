"""Frames in the tensors encoding: descriptors, layouts, and what is refused."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.values import ITEM_BYTES, Tensor
from serving.wire import frames


@st.composite
def tensors(draw):
    """Any tensor whose data fit its shape; BYTES data are of the least size that may fit."""
    datatype = draw(st.sampled_from(list(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    least = math.prod(shape) * (ITEM_BYTES[datatype] or 4)
    more = 0 if ITEM_BYTES[datatype] else draw(st.integers(0, 5))
    return Tensor(draw(st.text(max_size=5)), datatype, shape, draw(_bytes(least + more)))


def _bytes(size):
    return st.binary(min_size=size, max_size=size)


def _frame(items):
    return memoryview(wire.encode_descriptor(items) + b"".join(item.data for item in items))


@given(st.lists(tensors(), max_size=4))
def test_frames_round_trip(items):
    """Decoding an encoded frame gives the same tensors."""
    assert list(wire.decode_frame(_frame(items))) == items


@given(st.lists(tensors(), min_size=1, max_size=3))
def test_equal_descriptors_share_their_layout(items):
    """Frames of one layout have the same layout object, whatever their data."""
    other = [item._replace(data=bytes(len(item.data))) for item in items]
    assert wire.split_frame(_frame(items))[0] is wire.split_frame(_frame(other))[0]


@given(st.lists(tensors(), max_size=2), st.data())
def test_cut_frames_are_refused(items, data):
    """A frame that lacks its end is never taken for a whole one."""
    frame = _frame(items)
    length = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(wire.WireError):
        wire.split_frame(frame[:length])


@given(st.binary(max_size=120))
def test_garbage_is_read_or_refused(garbage):
    """Any bytes are either a frame, which then reads back the same, or a WireError."""
    try:
        read = wire.decode_frame(memoryview(garbage))
    except wire.WireError:
        return
    assert bytes(_frame(read)) == garbage


@given(st.lists(tensors(), min_size=1, max_size=2), st.data())
def test_changed_descriptors_are_read_or_refused(items, data):
    """A frame with one byte changed is a frame or a WireError; nothing else happens."""
    frame = bytearray(_frame(items))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = wire.decode_frame(memoryview(frame))
    except wire.WireError:
        return
    assert sum(len(tensor.data) for tensor in read) <= len(frame)


def test_data_are_views():
    """Decoding copies no data."""
    frame = _frame([Tensor("x", "UINT8", (3,), b"abc")])
    (tensor,) = wire.decode_frame(frame)
    assert tensor.data.obj is frame.obj


def test_the_table_of_layouts_is_bounded():
    """Ever new shapes do not fill the memory, and known ones still read right afterwards."""
    for length in range(2 * wire.MAX_CACHED_LAYOUTS):
        wire.decode_frame(_frame([Tensor("bounded", "UINT8", (length, 0), b"")]))
    assert len(frames._layouts) <= wire.MAX_CACHED_LAYOUTS
    assert wire.decode_frame(_frame([Tensor("bounded", "UINT8", (5, 0), b"")]))[0].shape == (5, 0)


def test_equal_descriptors_are_made_once():
    """The encoder gives the same bytes object for the same layout."""
    one = wire.encode_descriptor([Tensor("x", "FP32", (1, 2), bytes(8))])
    assert one is wire.describe((("x", "FP32", (1, 2), 8),))


@pytest.mark.parametrize(
    ("phrase", "tensor"),
    [
        ("more data than its shape takes", Tensor("x", "FP32", (1,), bytes(5))),
        ("less data than its shape takes", Tensor("x", "INT64", (2,), bytes(8))),
        ("BYTES too short for the lengths of its elements", Tensor("x", "BYTES", (2,), bytes(7))),
        ("a negative length", Tensor("x", "UINT8", (-1, -3), bytes(3))),
        ("too many dimensions", Tensor("x", "UINT8", (1,) * 33, bytes(1))),
    ],
)
def test_tensors_that_do_not_fit_are_refused(phrase, tensor):
    """A descriptor whose facts disagree is refused."""
    with pytest.raises(wire.WireError):
        wire.split_frame(_frame([tensor]))


def test_a_huge_shape_costs_nothing():
    """A descriptor that claims 2^62 elements is refused by arithmetic, without an allocation."""
    name = b"x"
    descriptor = struct.pack("<HBBHQqq", 1, 1, 2, 1, 2**62, 2**31, 2**31) + name
    with pytest.raises(wire.WireError, match="a frame has"):
        wire.split_frame(memoryview(struct.pack("<I", len(descriptor)) + descriptor))


@pytest.mark.parametrize(
    ("phrase", "description"),
    [
        ("a name above 65,535 bytes", (("x" * 65_536, "UINT8", (1,), 1),)),
        ("a datatype of another protocol", (("x", "BF16", (1,), 2),)),
        ("a name that UTF-8 lacks", (("\ud800", "UINT8", (1,), 1),)),
        ("a length above 63 bits", (("x", "UINT8", (2**63,), 1),)),
    ],
)
def test_what_has_no_form_is_not_written(phrase, description):
    """A tensor that the wire cannot carry is refused where it is written."""
    with pytest.raises(wire.WireError, match="cannot be written"):
        wire.describe(description)


@pytest.mark.parametrize("shape", [(0, 2**39, 2**39), (2**62, 0), (2**30, 2**30, 0)])
def test_a_zero_does_not_hide_dimensions_that_no_array_has(shape):
    """The elements of an array of nothing would lie further apart than can be counted."""
    for datatype in ("UINT8", "FP64", "BYTES"):
        with pytest.raises(wire.WireError, match="does not fit"):
            wire.split_frame(_frame([Tensor("x", datatype, shape, b"")]))
