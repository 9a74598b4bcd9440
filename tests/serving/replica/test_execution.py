"""A batch through a model: what the model does with its arrays between two calls touches no answer."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.replica import collation, output_frames
from serving.replica.execution import Execution
from serving.values import Signature, Tensor, TensorSpec


class Reusing:
    """Row sums in one array for all calls; raises for batches of more rows than it can."""

    signature = Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, -1)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1,)),),
    )

    def __init__(self, most):
        self._sums = np.zeros(8, np.float32)
        self._most = most

    def predict_batch(self, inputs):
        rows = inputs["x"]
        if len(rows) > self._most:
            raise ValueError("too many rows")
        np.sum(rows, axis=1, out=self._sums[: len(rows)])
        return {"y": self._sums[: len(rows)]}


def entry(*row):
    array = np.array([row], np.float32)
    tensor = Tensor("x", "FP32", array.shape, array.tobytes())
    frame = memoryview(wire.encode_descriptor([tensor]) + tensor.data)
    return (int(wire.Encoding.TENSORS), 0, 0, frame)


@pytest.mark.parametrize(
    ("most", "rows"),
    [(8, [(1, 1), (1, 1, 1), (4, 4)]), (1, [(1, 1), (2, 1), (4, 4)]), (8, [(1, 1), (2, 1)])],
)
def test_a_model_may_return_the_same_array_again(most, rows):
    """Groups of different shapes, and halves of a batch that failed, are calls of their own."""
    message = wire.InferMessage(0, 0, 0, 0, [entry(*row) for row in rows])
    outcomes, _ = Execution(Reusing(most)).run(message, 0)
    frames = [memoryview(b"".join(frame)) for _, _, frame in outcomes.one_by_one()]
    data = [wire.decode_frame(frame)[0].data for frame in frames]
    found = [np.frombuffer(each, np.float32).tolist() for each in data]
    assert found == [[sum(row)] for row in rows]


@pytest.fixture(autouse=True, scope="module")
def _blocks_of_few():
    """So that small batches show what large ones do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collation, "MIN_ROWS", 4)
        patch.setattr(output_frames, "MIN_ROWS", 4)
        yield


class Summing:
    """Row sums and twice the input; does not take 13, and refuses to count beyond a number of rows."""

    signature = Signature(
        inputs=(
            TensorSpec(name="x", datatype="INT32", shape=(-1, -1)),
            TensorSpec(name="on", datatype="BOOL", shape=(-1,)),
        ),
        outputs=(
            TensorSpec(name="sum", datatype="INT64", shape=(-1,)),
            TensorSpec(name="twice", datatype="INT32", shape=(-1, -1)),
        ),
    )

    def predict_batch(self, inputs):
        x = inputs["x"]
        if (x == 13).any():
            raise ValueError("thirteen")
        sums = np.where(inputs["on"], x.sum(axis=1), 0)
        x *= 2
        return {"sum": sums, "twice": x}


def asked(values, *, name="x", start=0, stop=0):
    """A request of several rows, all equal but for one value."""
    x = np.array([[value, 1, 2] for value in values], np.int32)
    on = np.array([value % 2 == 0 for value in values], np.bool_)
    tensors = [
        Tensor("on", "BOOL", on.shape, on.tobytes()),
        Tensor(name, "INT32", x.shape, x.tobytes()),
    ]
    frame = wire.encode_descriptor(tensors) + b"".join(tensor.data for tensor in tensors)
    return (int(wire.Encoding.TENSORS), start, stop, memoryview(frame))


def sent(entries):
    """The batch as a replica gets it."""
    sizes = [(len(frame), encoding, start, stop) for encoding, start, stop, frame in entries]
    data = wire.infer_head(1, 0, 0, 0, sizes) + b"".join(frame for _, _, _, frame in entries)
    return wire.parse_infer(memoryview(data)[wire.HEAD.size :])


def run(message):
    outcomes, _ = Execution(Summing()).run(message, 0)
    texts = [(status, size, b"".join(frame)) for status, size, frame in outcomes.one_by_one()]
    assert all(size == len(text) for _, size, text in texts)
    return outcomes.block is not None, texts


requests = st.builds(
    asked,
    st.lists(st.sampled_from([1, 2, 3, 13]), min_size=2, max_size=2)
    | st.lists(st.integers(-9, 9), min_size=1, max_size=3),
    name=st.sampled_from("xxxxxxxz"),
    stop=st.sampled_from([0, 0, 0, 0, 0, 1]),
)


@given(st.lists(requests, min_size=1, max_size=9))
def test_equal_requests_in_a_block_are_answered_as_one_by_one(entries):
    """Whatever is wrong with one of them."""
    _, found = run(sent(entries))
    assert found == run(wire.InferMessage(1, 0, 0, 0, entries))[1]


def test_a_block_is_made_of_requests_that_differ_in_nothing_but_their_data():
    equal = [asked([value]) for value in range(6)]
    is_block, found = run(sent(equal))
    assert is_block
    assert [wire.decode_frame(memoryview(text))[0].data.cast("q")[0] for _, _, text in found] == [
        3, 0, 5, 0, 7, 0,
    ]  # fmt: skip
    assert run(sent(equal[:3])) == (True, found[:3]), "few"
    assert not run(sent([*equal, asked([1, 2])]))[0]
    assert not run(sent([*equal, asked([1], name="z")]))[0]
    is_block, found = run(sent([*equal, asked([13])]))
    assert not is_block, "one has failed"
    assert [status for status, _, _ in found] == [0] * 6 + [wire.ActionStatus.MODEL_RAISED]


def test_large_answers_are_views():
    """To copy them would cost more than it saves."""
    is_block, found = run(sent([asked(list(range(100, 2_100)))] * 4))
    assert not is_block
    assert [status for status, _, _ in found] == [0] * 4


def test_a_model_that_always_raises_does_not_fill_the_log(caplog):
    """Every request is told the reason; the log has a traceback a second, with how many were left out before it."""
    failing = Execution(Reusing(most=0))
    began_s = time.monotonic()
    for _ in range(300):
        outcomes, _ = failing.run(wire.InferMessage(0, 0, 0, 0, [entry(1, 1)]), 0)
        ((status, _, frame),) = outcomes.one_by_one()
        assert status == wire.ActionStatus.MODEL_RAISED
        assert b"too many rows" in b"".join(frame)
    told = [record for record in caplog.records if record.getMessage() == "the model raised"]
    assert 1 <= len(told) <= 1 + (time.monotonic() - began_s)
    assert told[0].untold == 0
    assert all(record.exc_info for record in told)
