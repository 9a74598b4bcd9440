"""JSON of a stranger: bounded nesting, one error type, and the shortest form of floats."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from serving.api.parsing.bounded_json import (
    MAX_DEPTH,
    JsonError,
    depth,
    read,
    short_json,
    shortest,
    write,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_what_is_written_is_read_again(value):
    """Any JSON value comes back as it was."""
    if "inf" in repr(value):
        return
    assert read(write(value).encode()) == value


@given(st.binary())
def test_any_bytes_are_read_or_refused(text):
    """Bytes of a stranger give a value or a JsonError of one line, never anything else."""
    said = ""
    try:
        read(text)
    except JsonError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        (MAX_DEPTH, b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
        (MAX_DEPTH, b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH),
        (1, b"[" + b"[],[]," * 200 + b'"' + b"[" * 500 + b'\\"[["]'),
    ],
)
def test_nesting_up_to_the_bound_is_read(levels, text):
    """A hundred levels are read; brackets inside of strings are no levels."""
    assert depth(text) <= MAX_DEPTH
    read(text)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"x":[1,'])
@pytest.mark.parametrize("times", [MAX_DEPTH + 1, 100_000])
def test_deeper_nesting_is_refused(opening, times):
    """One level more is an error with the bound in it, and so is a hundred thousand."""
    with pytest.raises(JsonError, match="at most 100"):
        read(opening * times)


@pytest.mark.parametrize("text", [b"", b"[1,NaN]", b"\xff", b"1" * 5000, b"[1", b"{1:2}"])
def test_what_is_no_json_is_refused(text):
    """Empty, cut off, not UTF-8, tokens and numbers that JSON does not have."""
    with pytest.raises(JsonError):
        read(text)


def test_constants_on_request():
    """NaN and the infinities are read and written where a protocol has them."""
    assert str(read(b"[NaN,Infinity,-Infinity]", constants=True)) == "[nan, inf, -inf]"
    assert write([float("nan"), float("-inf")], constants=True) == "[NaN,-Infinity]"
    with pytest.raises(ValueError):
        write(float("nan"))


def test_values_in_errors_are_cut_off():
    """A large value in an error's text costs and shows its beginning only."""
    assert short_json({"a": [1, 2]}) == '{"a":[1,2]}'
    assert len(short_json(["x" * 1000] * 100_000)) == 203


@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32, allow_nan=False)).map(
        lambda array: np.resize(array, 200)
    )
)
def test_shortest_reads_back_as_the_same_float(array):
    """The float64 of a float32 is another number, and yet the same float32."""
    result = shortest(array)
    assert result.astype(np.float32).tobytes() == array.tobytes()
    for new, old in zip(result.tolist(), array.astype(np.float64).tolist(), strict=True):
        assert digits(new) <= digits(old)


def digits(value):
    """Digits that a number's decimal form needs."""
    return len(repr(value).lstrip("-").partition("e")[0].replace(".", "").strip("0"))


@pytest.mark.parametrize("count", [1, 100])
def test_shortest_drops_the_noise(count):
    """0.2 as a float32 is written 0.2, one or many."""
    array = np.full(count, 0.2, dtype=np.float32)
    assert json.dumps(shortest(array).tolist()[-1]) == "0.2"
    assert shortest(array.astype(np.float16)).tolist()[0] == 0.2
    assert shortest(np.array([0.1, np.nan])).tolist()[0] == 0.1
