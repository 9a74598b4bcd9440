"""Requests that are split over batches: what is sent for each part, and their answers put together."""

import itertools
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.values import Tensor
from serving.wire.parts import SplitRequest

TENSORS = int(wire.Encoding.TENSORS)


def frame_of(*tensors):
    return (wire.encode_descriptor(tensors), *[tensor.data for tensor in tensors])


def texts(elements):
    return b"".join([struct.pack("<I", len(element)) + element for element in elements])


def split_of(tensors, items, **how):
    return SplitRequest(frame_of(*tensors), TENSORS, items, **{"has_rows": True, **how})


@given(st.data(), st.integers(1, 12), st.integers(0, 3))
def test_parts_of_a_request_are_the_whole(data, items, width):
    """Wherever it is cut: numbers, texts and rows of nothing, joined again in any order."""
    elements = data.draw(st.lists(st.binary(max_size=4), min_size=items, max_size=items))
    numbers = np.arange(items * width, dtype="<i2")
    whole = [
        Tensor("n", "INT16", (items, width), numbers.tobytes()),
        Tensor("t", "BYTES", (items,), texts(elements)),
    ]
    split = split_of(whole, items)
    assert split.is_cut
    cuts = sorted(data.draw(st.sets(st.integers(1, items), max_size=4)) | {0, items})
    spans = list(itertools.pairwise(cuts))
    ended = []
    for start, stop in data.draw(st.permutations(spans)):
        part = b"".join(split.cut(start, stop))
        assert [tensor.shape[0] for tensor in wire.decode_frame(memoryview(part))] == [
            stop - start
        ] * 2
        ended.append(split.add_part(start, stop, part))
    assert ended == [False] * (len(spans) - 1) + [True]
    assert list(wire.decode_frame(split.join_response({}))) == whole


def test_a_part_costs_nothing_but_itself():
    """Parts are views of one copy of the request, however many they are."""
    items = 100_000
    split = split_of([Tensor("x", "UINT8", (items, 1), bytes(items))], items)
    parts = [split.cut(start, start + 8) for start in range(0, items, 8)]
    wholes = {id(data.obj) for _, data in parts}
    assert len(wholes) == 1
    assert {len(data) for _, data in parts} == {8}


@pytest.mark.parametrize(
    ("tensors", "how"),
    [
        ([Tensor("x", "UINT8", (2, 1), b"ab")], {"has_rows": False}),
        ([Tensor("x", "UINT8", (), b"a")], {}),
        ([Tensor("x", "UINT8", (0, 3), b"")], {}),
        ([Tensor("x", "BYTES", (2, 40_000), bytes(4 * 80_000))], {}),
        ([Tensor("x", "BYTES", (2,), texts([b"a", b"b"]) + b"more")], {}),
        ([Tensor("x", "BYTES", (2,), b"\xff" * 9)], {}),
    ],
)
def test_what_is_not_cut(tensors, how):
    """Items that are no rows, what has too many texts, and texts that are none: the replica takes the whole."""
    assert not split_of(tensors, 2, **how).is_cut


def test_json_is_not_cut():
    """Its numbers are not read here."""
    body = json.dumps({"inputs": []}).encode()
    assert not SplitRequest((body,), int(wire.Encoding.OIP_JSON), 2, has_rows=True).is_cut
