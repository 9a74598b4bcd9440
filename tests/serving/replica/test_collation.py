"""Requests become groups and arrays, outputs become frames; what is wrong fails alone."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.replica import output_frames
from serving.replica.collation import Collator
from serving.tensors.arrays import join_bytes
from serving.values import Signature, Tensor, TensorSpec
from serving.wire import parts

X = TensorSpec(name="x", datatype="INT32", shape=(-1, -1))
TEXT = TensorSpec(name="text", datatype="BYTES", shape=(-1,))


def _signature(*specs):
    return Signature(inputs=specs, outputs=specs)


def _entry(*tensors, start=0, stop=0):
    values = [Tensor(*tensor) for tensor in tensors]
    data = wire.encode_descriptor(values) + b"".join(value.data for value in values)
    return (wire.Encoding.TENSORS, start, stop, memoryview(bytearray(data)))


def _ints(rows, name="x", **cut):
    array = np.array(rows, "<i4")
    return _entry((name, "INT32", array.shape, array.tobytes()), **cut)


def _echo(signature, entries):
    """The answers of the identity: per request its tensors, or the text of its failure."""
    groups, failures = Collator(signature).groups(entries)
    result = {index: failure.text for index, failure in failures.items()}
    for group in groups:
        for index, (size, frame) in zip(
            group.indexes, output_frames.frames(group, group.inputs(), signature), strict=True
        ):
            data = b"".join(frame)
            assert len(data) == size
            result[index] = wire.decode_frame(memoryview(data))
    return [result[index] for index in range(len(entries))]


def _rows(tensors):
    (tensor,) = tensors
    return np.frombuffer(tensor.data, "<i4").reshape(tensor.shape).tolist()


requests = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(-9, 9), min_size=width, max_size=width), min_size=1, max_size=3
    )
)


def test_a_request_after_a_bad_one_of_its_layout_runs_with_its_like():
    """Not with those of another layout that came before the bad one."""
    entries = [_ints([[1, 2]]), _ints([[3]], start=1, stop=9), _ints([[4]]), _ints([[5, 6]])]
    first, bad, narrow, last = _echo(_signature(X), entries)
    assert bad == "items 1 to 9 are outside of a request of 1 items"
    assert [_rows(tensors) for tensors in (first, narrow, last)] == [[[1, 2]], [[4]], [[5, 6]]]


@given(st.lists(requests, max_size=6))
def test_every_request_gets_its_own_rows(batch):
    """Requests of any items and lengths come back as they went in, each once and in its place."""
    answered = _echo(_signature(X), [_ints(rows) for rows in batch])
    assert [_rows(tensors) for tensors in answered] == batch


@given(st.lists(requests, max_size=8))
def test_groups_hold_equals(batch):
    """There is one group per length, and items are neither lost nor made."""
    groups, failures = Collator(_signature(X)).groups([_ints(rows) for rows in batch])
    assert not failures
    assert len(groups) == len({len(rows[0]) for rows in batch})
    assert sum(sum(group.counts) for group in groups) == sum(map(len, batch))
    assert sorted(index for group in groups for index in group.indexes) == list(range(len(batch)))


@given(st.lists(st.lists(st.binary(max_size=4), min_size=1, max_size=3), max_size=5))
def test_bytes_come_back(batch):
    """BYTES of different sizes share a batch."""
    entries = [_entry(("text", "BYTES", (len(t),), join_bytes(t))) for t in batch]
    answered = _echo(_signature(TEXT), entries)
    assert [tensors[0].data for tensors in answered] == [join_bytes(t) for t in batch]


def test_ranges_are_cut_out():
    """A range of items is taken from its frame, of numbers as of BYTES."""
    rows = [[1], [2], [3], [4]]
    texts = join_bytes([b"a", b"bb", b"", b"d"])
    assert _rows(_echo(_signature(X), [_ints(rows, start=1, stop=3)])[0]) == [[2], [3]]
    (tensor,) = _echo(_signature(TEXT), [_entry(("text", "BYTES", (4,), texts), start=1, stop=3)])[
        0
    ]
    assert tensor == ("text", "BYTES", (2,), join_bytes([b"bb", b""]))


def test_tensors_may_come_in_any_order():
    """Two requests that list the same inputs in another order run together."""
    signature = _signature(X, TensorSpec(name="y", datatype="UINT8", shape=(-1,)))
    x, y = ("x", "INT32", (1, 1), b"\1\0\0\0"), ("y", "UINT8", (1,), b"\2")
    groups, _ = Collator(signature).groups([_entry(x, y), _entry(y, x)])
    assert [group.indexes for group in groups] == [[0, 1]]
    inputs = groups[0].inputs()
    assert inputs["x"].tolist() == [[1], [1]]
    assert inputs["y"].tolist() == [2, 2]


def test_json_runs_with_binary():
    """A request in JSON shares a batch with one in the tensors encoding."""
    item = {"name": "x", "datatype": "INT32", "shape": [1, 2], "data": [[3, 4]]}
    body = memoryview(json.dumps({"inputs": [item]}).encode())
    entries = [_ints([[1, 2]]), (wire.Encoding.OIP_JSON, 0, 0, body)]
    groups, failures = Collator(_signature(X)).groups(entries)
    assert not failures
    assert groups[0].inputs()["x"].tolist() == [[1, 2], [3, 4]]


def test_a_tensor_without_items_runs_alone():
    """Requests with a scalar input are run one by one, and their outputs go back whole."""
    scalar = TensorSpec(name="rate", datatype="INT64", shape=())
    entry = _entry(("rate", "INT64", (), bytes(8)), ("x", "INT32", (2, 1), bytes(8)))
    answered = _echo(_signature(X, scalar), [entry, entry])
    assert [[t.shape for t in tensors] for tensors in answered] == [[(2, 1), ()]] * 2


def test_no_items_are_a_request_too():
    """A request of zero items gets an answer of zero items."""
    empty = _entry(("x", "INT32", (0, 2), b""))
    answered = _echo(_signature(X), [empty, _ints([[1, 2]]), empty])
    assert [tensors[0].shape for tensors in answered] == [(0, 2), (1, 2), (0, 2)]


GOOD = _ints([[1]])
JSON = wire.Encoding.OIP_JSON


@pytest.mark.parametrize(
    ("phrase", "bad", "text"),
    [
        ("another datatype", _entry(("x", "FP32", (1, 1), bytes(4))), "the model takes INT32"),
        ("another rank", _entry(("x", "INT32", (1,), bytes(4))), "shape is \\[1\\]"),
        ("another name", _ints([[1]], name="z"), "inputs are z"),
        ("no inputs", _entry(), "inputs are none"),
        ("an input twice", _entry(*[("x", "INT32", (1, 1), bytes(4))] * 2), "inputs are x, x"),
        ("a range beyond its items", _ints([[1]], start=0, stop=2), "items 0 to 2"),
        ("a range that is empty", _ints([[1], [2]], start=1, stop=1), "items 1 to 1"),
        ("a frame without its end", (0, 0, 0, GOOD[3][:-1]), "a frame has"),
        ("an unknown encoding", (9, 0, 0, GOOD[3]), "encoding 9"),
        ("broken JSON", (JSON, 0, 0, memoryview(b"{")), "JSON"),
        ("JSON of the wrong type", (JSON, 0, 0, memoryview(b'{"inputs": [{}]}')), "name"),
    ],
)
def test_a_bad_request_fails_alone(phrase, bad, text):
    """The bad request of a batch gets its reason, its neighbours get their answers."""
    groups, failures = Collator(_signature(X)).groups([GOOD, bad, GOOD])
    assert [group.indexes for group in groups] == [[0, 2]]
    assert list(failures) == [1]
    assert failures[1].status == wire.ActionStatus.INVALID_INPUT
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(failures[1].text)


def test_bad_bytes_fail_alone():
    """BYTES whose elements do not end with the data are refused."""
    bad = _entry(("text", "BYTES", (1,), b"\xff\0\0\0"))
    good = _entry(("text", "BYTES", (1,), b"\1\0\0\0a"))
    groups, failures = Collator(_signature(TEXT)).groups([bad, good])
    assert groups[0].indexes == [1]
    assert "BYTES" in failures[0].text


def test_inputs_must_agree_on_their_items():
    """Inputs of different first dimensions are refused."""
    signature = _signature(X, TensorSpec(name="y", datatype="UINT8", shape=(-1,)))
    entry = _entry(("x", "INT32", (1, 1), bytes(4)), ("y", "UINT8", (2,), bytes(2)))
    _, failures = Collator(signature).groups([entry])
    assert "number of items" in failures[0].text


@pytest.mark.parametrize(
    ("phrase", "outputs", "text"),
    [
        ("no mapping", [1, 2], "list"),
        ("a missing output", {"y": np.zeros((2, 1), "i4")}, "'x' is missing"),
        ("another datatype", {"x": np.zeros((2, 1))}, "as FP64, its signature says INT32"),
        ("a type without a name", {"x": np.zeros((2, 1), complex)}, "complex"),
        ("too few items", {"x": np.zeros((1, 1), "i4")}, "\\[1, 1\\] for 2 items"),
        ("too many items", {"x": np.zeros((3, 1), "i4")}, "for 2 items"),
        ("no item axis", {"x": np.int32(1)}, "\\[\\] for 2 items"),
    ],
)
def test_broken_contracts_are_told(phrase, outputs, text):
    """Outputs that are not what the signature says are refused with the fact that is wrong."""
    groups, _ = Collator(_signature(X)).groups([GOOD, GOOD])
    with pytest.raises(output_frames.BrokenContract, match=text):
        output_frames.frames(groups[0], outputs, _signature(X))


def test_outputs_that_are_no_text_are_told():
    """An output of arbitrary objects breaks the contract."""
    groups, _ = Collator(_signature(TEXT)).groups([_entry(("text", "BYTES", (1,), bytes(4)))])
    with pytest.raises(output_frames.BrokenContract, match="NoneType"):
        output_frames.frames(groups[0], {"text": np.array([None], object)}, _signature(TEXT))


def test_plans_are_bounded():
    """Ever new lengths do not fill the memory."""
    collator = Collator(_signature(X))
    for length in range(1100):
        collator.groups([_entry(("x", "INT32", (0, length), b""))])
    assert len(collator._plans) <= 1024


def test_requests_of_a_model_with_a_fixed_batch_run_alone():
    """Two rows at a time, no more: each request is a call of its own, with all of its rows."""
    fixed = _signature(TensorSpec(name="x", datatype="INT32", shape=(2, -1)))
    entries = [_ints([[1], [2]]), _ints([[3], [4]]), _ints([[5]])]
    groups, failures = Collator(fixed).groups(entries)
    assert [group.inputs()["x"].tolist() for group in groups] == [[[1], [2]], [[3], [4]]]
    assert "takes [2, -1]" in failures[2].text
    answered = _echo(fixed, entries)
    assert [_rows(answer) for answer in answered[:2]] == [[[1], [2]], [[3], [4]]]


STATE = TensorSpec(name="state", datatype="INT32", shape=(2, -1, 3), item_axis=1)
RATE = TensorSpec(name="rate", datatype="INT64", shape=(), item_axis=None)
LAID = Signature(inputs=(X, STATE, RATE), outputs=(X, STATE), unbatched="")


def _laid(first, items, rate, **cut):
    x = np.arange(first, first + 2 * items, dtype="<i4").reshape(items, 2)
    state = np.arange(first, first + 6 * items, dtype="<i4").reshape(2, items, 3)
    return _entry(
        ("x", "INT32", x.shape, x.tobytes()),
        ("rate", "INT64", (), np.array(rate, "<i8").tobytes()),
        ("state", "INT32", state.shape, state.tobytes()),
        **cut,
    )


def _arrays(tensors):
    return {one.name: np.frombuffer(one.data, "<i4").reshape(one.shape) for one in tensors}


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([8, 16])), min_size=1, max_size=6))
def test_items_along_any_axis_come_back_in_their_request(requests):
    """Each request gets its own; only those that share what is to be equal run in one call."""
    entries = [_laid(100 * place, items, rate) for place, (items, rate) in enumerate(requests)]
    groups, failures = Collator(LAID).groups(entries)
    assert not failures
    assert len(groups) == len({rate for _, rate in requests})
    for group in groups:
        inputs = group.inputs()
        assert {requests[place][1] for place in group.indexes} == {int(inputs["rate"])}
        assert inputs["state"].shape == (2, sum(group.counts), 3)
    for entry, answer in zip(entries, _echo(LAID, entries), strict=True):
        given = _arrays([one for one in wire.decode_frame(entry[3]) if one.name != "rate"])
        for name, array in _arrays(answer).items():
            assert (array == given[name]).all()


@given(st.integers(2, 6), st.data())
def test_parts_along_any_axis_join_to_the_whole(items, data):
    """A request that is run in two parts is answered as one that was run whole."""
    middle = data.draw(st.integers(1, items - 1))
    whole = _echo(LAID, [_laid(0, items, 8)])[0]
    cut = [_laid(0, items, 8, start=0, stop=middle), _laid(0, items, 8, start=middle, stop=items)]
    frames = [
        wire.encode_descriptor(tensors) + b"".join(bytes(one.data) for one in tensors)
        for tensors in _echo(LAID, cut)
    ]
    joined = wire.decode_frame(parts.join(frames, {"x": 0, "state": 1}))
    for name, array in _arrays(joined).items():
        assert (array == _arrays(whole)[name]).all()


def test_requests_of_nothing_are_answered_with_nothing():
    """Also where all of a batch are, and come as a block."""
    outputs = {"x": np.empty((0, 2), "<i4")}
    group = Collator(_signature(X)).groups([_entry(("x", "INT32", (0, 2), b""))] * 2)[0][0]
    frames = output_frames.frames(group, outputs, _signature(X), as_block=True)
    shapes = [wire.decode_frame(memoryview(b"".join(frame)))[0].shape for _, frame in frames]
    assert shapes == [(0, 2), (0, 2)]
