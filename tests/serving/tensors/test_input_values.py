"""Values of inputs that are made up: what was told, checked, or the defaults of a datatype."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidSettings
from serving.tensors import input_values
from serving.tensors.arrays import DTYPES
from serving.values import ITEM_BYTES, Signature, TensorSpec
from tuner.load_generator import error_responses

NUMBERS = [name for name in DTYPES if name != "BOOL"]


def content(datatype, *texts, file=""):
    signature = Signature(
        inputs=(TensorSpec(name="x", datatype=datatype, shape=(-1, 3)),), outputs=()
    )
    return input_values.value_specs_of(texts, signature, read=lambda _path: file)["x"]


def drawn(datatype, *texts, file="", seed=0, shape=(50, 3)):
    return content(datatype, *texts, file=file).draw(np.random.default_rng(seed), shape)


@given(datatype=st.sampled_from(NUMBERS), data=st.data(), seed=st.integers(0, 2**32))
def test_values_lie_in_the_range_that_was_told(datatype, data, seed):
    """Both ends included, in the datatype, whatever part of its range that is."""
    kind = DTYPES[datatype]
    if kind.kind == "f":
        ends = st.floats(-6e4, 6e4, width=16)
    else:
        ends = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    low, high = sorted([data.draw(ends), data.draw(ends)])
    found = drawn(datatype, f"x={low}..{high}", seed=seed)
    assert found.dtype == kind
    assert found.shape == (50, 3)
    assert found.min() >= kind.type(low)
    assert found.max() <= kind.type(high)


def test_the_ends_of_a_range_are_drawn():
    """Whole numbers are each as likely."""
    assert set(drawn("INT8", "x=-1..1").ravel().tolist()) == {-1, 0, 1}
    assert set(drawn("BOOL", "x=0..1").ravel().tolist()) == {True, False}


@pytest.mark.parametrize("datatype", list(ITEM_BYTES))
def test_every_datatype_has_a_default(datatype):
    """Only whole numbers are guessed: another range of them may take another way through the model."""
    found = content(datatype)
    values = found.draw(np.random.default_rng(0), (2, 3))
    assert values.shape == (2, 3)
    is_whole = datatype not in {"BOOL", "BYTES", "FP16", "FP32", "FP64"}
    assert found.is_guessed == is_whole
    if is_whole:
        assert 0 <= values.min() <= values.max() <= input_values.SMALL
        assert not content(datatype, "x=1").is_guessed


def test_one_value_is_sent_everywhere():
    """Numbers, truths and texts."""
    assert (drawn("INT64", "x=16000", shape=()) == 16000).all()
    assert drawn("BOOL", "x=true").all()
    assert set(drawn("BYTES", "x=a 1..2").ravel()) == {"a 1..2"}


def test_lines_of_a_file_are_drawn():
    """Texts as they are, numbers in the datatype; empty lines are none."""
    assert set(drawn("BYTES", "x=@f", file="one\n\ntwo words\n").ravel()) == {"one", "two words"}
    assert set(drawn("UINT8", "x=@f", file="7\n9\n").ravel().tolist()) == {7, 9}


@pytest.mark.parametrize(
    ("datatype", "text", "file", "said"),
    [
        (
            "INT8",
            "x=0..128",
            "",
            r"--values x=0..128: 128 is out of the range of INT8, -128 to 127",
        ),
        ("UINT8", "x=-1", "", "-1 is out of the range of UINT8"),
        ("FP16", "x=70000", "", "out of the range of FP16"),
        ("FP32", "x=nan", "", "out of the range"),
        ("INT64", "x=0.5", "", "'0.5' is not a value of INT64; expected a whole number"),
        ("INT64", "x=9..0", "", "the smaller number first"),
        ("INT64", "x=..3", "", "'' is not a value"),
        ("INT64", "y=1", "", "no such input"),
        ("INT64", "x", "", "expected INPUT=VALUES"),
        ("INT64", "x=@f", "1\nb\n", "'b' is not a value"),
        ("BYTES", "x=@f", "\n", "0 non-empty lines"),
    ],
)
def test_what_does_not_fit_is_refused(datatype, text, file, said):
    """In one line, with the option."""
    with pytest.raises(InvalidSettings, match=said):
        content(datatype, text, file=file)


@pytest.mark.parametrize(
    ("answer", "option"),
    [
        (
            "indices element out of data bounds, idx=9 must be within the inclusive range [-5,4]",
            "--values ids=0..4",
        ),
        ("index 10 is out of bounds for axis 0 with size 5", "--values ids=0..4"),
        ("indices[0,0] = 9 is not in [0, 5)", "--values ids=0..4"),
        ("IndexError: index out of range in self", "--values ids=0..HIGH"),
    ],
)
def test_an_index_out_of_range_names_the_option(answer, option):
    """With the range where the runtime tells it; not for inputs that the user gave."""
    assert error_responses.hint(answer, ["ids"]).endswith(option)
    assert not error_responses.hint(answer, [])
    assert not error_responses.hint("the queue is full", ["ids"])
