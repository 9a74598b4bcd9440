"""What of an array is one sample: by spec and signature, agreed between inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tensors.sample_rows import find_layouts, layouts_of
from serving.values import Signature, TensorSpec


def spec(name, *shape, axis=0):
    return TensorSpec(name=name, datatype="FP32", shape=shape, item_axis=axis)


def signature(*inputs, whole=False):
    return Signature(inputs=inputs, outputs=(), unbatched="it is so" if whole else "")


VOICE = signature(spec("input", -1, -1), spec("state", 2, -1, 8), spec("rate"), whole=True)
ROWS = signature(spec("x", -1, 4), whole=True)
STATES = signature(spec("x", -1, 4), spec("state", 2, -1, 3, axis=1), spec("k", 5, axis=None))


@pytest.mark.parametrize(
    ("model", "arrays", "samples"),
    [
        # plain inputs of one request
        (
            VOICE,
            {"input": (1, 16), "state": (2, 1, 8), "rate": ()},
            [((1, 16), (2, 1, 8), ())],
        ),
        # an axis that counts samples
        (
            VOICE,
            {"input": (3, 1, 16), "state": (3, 2, 1, 8), "rate": (3,)},
            [((1, 16), (2, 1, 8), ())] * 3,
        ),
        # rows, as many for each sample as the first dimension is fixed at
        (VOICE, {"input": (3, 16), "state": (6, 1, 8), "rate": ()}, [((1, 16), (2, 1, 8), ())] * 3),
        # whole arrays where only these agree
        (VOICE, {"input": (5, 16), "state": (2, 5, 8), "rate": ()}, [((5, 16), (2, 5, 8), ())]),
        (ROWS, {"x": (7, 4)}, [((1, 4),)] * 7),
        (ROWS, {"x": (2, 5, 4)}, [((5, 4),)] * 2),
        (signature(spec("x", 4, 2), whole=True), {"x": (8, 2)}, [((4, 2),)] * 2),
        # what is fixed may be given once, and does not make rows of others one sample
        (
            signature(spec("x", -1, 4), spec("size", 2), whole=True),
            {"x": (3, 4), "size": (2,)},
            [((1, 4), (2,))] * 3,
        ),
        # items along their axis; with it before them all; without it
        (STATES, {"x": (3, 4), "state": (2, 3, 3), "k": (5,)}, [((1, 4), (2, 1, 3), (5,))] * 3),
        (STATES, {"x": (3, 4), "state": (3, 2, 1, 3), "k": (5,)}, [((1, 4), (2, 1, 3), (5,))] * 3),
        (STATES, {"x": (3, 4), "state": (3, 2, 3), "k": (3, 5)}, [((1, 4), (2, 1, 3), (5,))] * 3),
    ],
)
def test_samples_are_found_in_arrays(model, arrays, samples):
    """Each with all axes of its input, whichever way the arrays of a file have it."""
    ways = find_layouts(arrays, model)
    found = {name: way.arrange(np.zeros(arrays[name])) for name, way in ways.items()}
    count = max(map(len, found.values()))
    assert [
        tuple(each[place % len(each)].shape for each in found.values()) for place in range(count)
    ] == samples


@pytest.mark.parametrize(
    ("model", "arrays"),
    [
        (STATES, {"x": (3, 4), "state": (2, 4, 3), "k": (5,)}),
        (STATES, {"x": (3, 4), "state": (2, 3, 4), "k": (5,)}),
        (ROWS, {"x": (3, 5)}),
        (ROWS, {"x": (0, 0, 4)}),
        (signature(spec("x", 4, 2), whole=True), {"x": (10, 2)}),
        (signature(spec("x", -1)), {"x": ()}),
    ],
)
def test_what_does_not_fit_is_no_sample(model, arrays):
    """Other sizes, unequal numbers, a part of a sample, none at all."""
    assert find_layouts(arrays, model) is None


sizes = st.integers(1, 3)


@given(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=3), sizes, st.data())
def test_items_come_back_in_their_order(axes, items, data):
    """An array as the model takes it holds its items in order, along whichever axis they lie."""
    axis = data.draw(st.integers(0, len(axes) - 1))
    shape = [size if place != axis else items for place, (size, _) in enumerate(axes)]
    one = spec(
        "x",
        *(-1 if free or place == axis else size for place, (size, free) in enumerate(axes)),
        axis=axis,
    )
    array = np.arange(np.prod(shape)).reshape(shape)
    way = layouts_of(shape, one, signature(one))[-1]
    assert way.axis == axis
    samples = way.arrange(array)
    assert len(samples) == way.samples == items
    assert (np.concatenate(list(samples), axis) == array).all()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_the_first_rows_hold_the_first_samples(rows, count, most):
    """As many as are asked for, where they lie row by row."""
    one = spec("x", rows, 2)
    array = np.arange(count * rows * 2).reshape(count * rows, 2)
    (way, *_) = layouts_of(array.shape, one, signature(one, whole=True))
    part = way.arrange(array[: way.rows(most)])
    assert (part == way.arrange(array)[:most]).all()
    assert len(part) == min(count, most)
