"""Which axis holds the items: what fits axis 0 of everything, what is told, and what is served whole."""

import pytest

from serving.errors import ModelLoadFailed
from serving.tensors.item_axes import detect_item_axes
from serving.values import Signature, TensorSpec


def spec(name, *shape):
    """A float tensor; a name instead of a number is a free dimension."""
    sizes = tuple(-1 if isinstance(size, str) else size for size in shape)
    names = tuple(size if isinstance(size, str) else "" for size in shape)
    return TensorSpec(
        name=name, datatype="FP32", shape=sizes, dimensions=names if any(names) else ()
    )


def judge(inputs, outputs, item_axis=None, shared=()):
    signature = Signature(inputs=tuple(inputs), outputs=tuple(outputs))
    return detect_item_axes(signature, item_axis=item_axis or {}, shared=shared, where="a.onnx")


@pytest.mark.parametrize(
    ("phrase", "inputs", "outputs"),
    [
        ("input 'sr' is a scalar", [spec("x", "n", 4), spec("sr")], [spec("y", "n")]),
        ("fixed at 2", [spec("x", "n", 4), spec("state", 2, "n", 8)], [spec("y", "n")]),
        ("output 'h' has a first dimension", [spec("x", "n", 4)], [spec("h", 1, 4)]),
        ("'batch' and 'rows'", [spec("a", "batch"), spec("b", "rows")], [spec("y", "batch")]),
        ("called 'sequence_length'", [spec("x", "sequence_length", 5)], [spec("y", "n")]),
        ("as a later one", [spec("x", "n", "k")], [spec("y", "k")]),
    ],
)
def test_what_does_not_fit_is_served_whole_and_says_why(phrase, inputs, outputs):
    found = judge(inputs, outputs)
    assert not found.is_batched
    assert phrase in found.unbatched


@pytest.mark.parametrize("name", ["silent_batch", "runtimeBatch", "timeless", "N", "batch_size"])
def test_only_whole_words_are_lengths(name):
    assert judge([spec("x", name, 4)], [spec("y", name, 4)]).is_batched


@pytest.mark.parametrize("name", ["sequence_length", "maxSeqLen", "seq", "num_frames", "T_time"])
def test_a_length_is_no_number_of_items(name):
    assert not judge([spec("x", name, 4)], [spec("y", name, 4)]).is_batched


def test_what_fits_is_batched():
    """Without names, and with names that exporters made."""
    found = judge([spec("x", -1, 3, -1), spec("m", "n", "t")], [spec("y", "n", "t"), spec("z", -1)])
    assert found.is_batched
    assert found.unbatched == ""


def test_what_is_told_counts():
    """Axes and shared inputs; what is not named has its items along axis 0."""
    found = judge(
        [spec("input", -1, -1), spec("state", 2, -1, 128), spec("sr")],
        [spec("output", -1, 1), spec("stateN", -1, -1, -1)],
        item_axis={"state": 1, "stateN": 1},
        shared=["sr"],
    )
    assert found.is_batched
    assert [one.item_axis for one in (*found.inputs, *found.outputs)] == [0, 1, None, 0, 1]
    assert Signature.from_json(found.as_json()) == found


@pytest.mark.parametrize(
    ("phrase", "item_axis", "shared"),
    [
        ("no input or output of the model, did you mean 'state'", {"stat": 1}, ()),
        ("no input of the model", {}, ["y"]),
        ("fixed at 2", {"state": 0}, ["sr"]),
        ("no axis 3", {"state": 3}, ["sr"]),
        ("list it under shared", {"state": 1}, ()),
        ("expected in one", {"state": 1}, ["state", "sr"]),
        ("at least one with items", {}, ["x", "state", "sr"]),
    ],
)
def test_what_is_told_wrong_is_refused(phrase, item_axis, shared):
    with pytest.raises(ModelLoadFailed, match=phrase):
        judge(
            [spec("x", -1, 4), spec("state", 2, -1, 8), spec("sr")],
            [spec("y", -1)],
            item_axis=item_axis,
            shared=shared,
        )


def test_a_reason_of_the_file_stays_unless_axes_are_told():
    """A model that is quantised dynamically is batched when that is asked for."""
    signature = Signature(
        inputs=(spec("x", "n", 4),), outputs=(spec("y", "n"),), unbatched="with scales"
    )
    assert detect_item_axes(signature, item_axis={}, shared=(), where="") == signature
    assert detect_item_axes(signature, item_axis={"x": 0}, shared=(), where="").is_batched
