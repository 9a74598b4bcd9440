"""Sizes of free dimensions: what is written is what is drawn, and what is wrong is one line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidSettings
from serving.tensors import sizes

numbers = st.integers(1, 5000)
ranges = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}..{max(pair)}")
lognormals = st.tuples(numbers, st.floats(0.01, 3).map(lambda s: f"{s:.2f}"), numbers).map(
    lambda three: f"lognormal({three[0]},{three[1]})<={three[2]}"
)
one_size = st.one_of(numbers.map(str), ranges, lognormals)


@given(st.lists(one_size, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_what_is_drawn_is_within_what_was_written(texts, seed):
    """Also the typical size; and what is written of it reads as the same."""
    found = sizes.sizes_of([f"x={'x'.join(texts)}"])
    rng = np.random.default_rng(seed)
    assert [size.text for size in found["x"]] == texts
    for size in found["x"]:
        for drawn in (size.draw(rng), size.typical):
            assert size.low <= drawn <= size.high
    assert sizes.sizes_of(sizes.to_texts(found)) == found


def test_a_lognormal_has_its_median_and_is_cut():
    """Half of the draws are below the median, and none above the limit."""
    (size,) = sizes.sizes_of(["tokens=lognormal(64,0.8)<=128"])["tokens"]
    rng = np.random.default_rng(0)
    drawn = np.array([size.draw(rng) for _ in range(2000)])
    assert 0.45 < np.mean(drawn <= 64) < 0.56
    assert 0.1 < np.mean(drawn == 128) < 0.3


def test_lengths_of_a_file_are_drawn_as_they_are():
    """Each as likely as any other; elsewhere their range stands for them."""
    found = sizes.sizes_of(["tokens=@lengths.txt"], read={"lengths.txt": "3\n5\n900\n"}.get)
    rng = np.random.default_rng(0)
    assert {found["tokens"][0].draw(rng) for _ in range(100)} == {3, 5, 900}
    assert found["tokens"][0].typical == 5
    assert sizes.to_texts(found) == ("tokens=3..900",)


@pytest.mark.parametrize(
    "text",
    [
        "image",
        "image=",
        "=3",
        "image=3x",
        "image=0",
        "image=-1",
        "image=512..16",
        "image=lognormal(64,0.8)",
        "image=lognormal(0.5,1)<=9",
        "image=3x99999999999",
        "image=@lengths.txt",
    ],
)
def test_what_is_no_size_is_refused_by_its_text(text):
    with pytest.raises(InvalidSettings, match="--shape"):
        sizes.sizes_of([text])


def test_a_name_comes_once():
    with pytest.raises(InvalidSettings, match="twice"):
        sizes.sizes_of(["x=1", "x=2"])


@given(st.dictionaries(st.from_regex(r"[a-z:/.]{1,8}", fullmatch=True), st.floats(-9, 9)))
def test_pads_read_as_they_are_written(pads):
    assert sizes.pads_of(" ".join(f"{name}={value!r}" for name, value in pads.items())) == pads
