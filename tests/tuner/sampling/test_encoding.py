"""Axes of the unit cube: every legal value goes there and comes back."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tuner.sampling.encoding import Cube, axis_of, encode_values

floats = st.floats(-1e3, 1e3, allow_nan=False)
linear_floats = st.tuples(floats, st.floats(0.01, 1e3)).map(
    lambda pair: FloatDistribution(pair[0], pair[0] + pair[1])
)
log_floats = st.tuples(st.floats(1e-4, 10), st.floats(1.1, 1e4)).map(
    lambda pair: FloatDistribution(pair[0], pair[0] * pair[1], log=True)
)
stepped_floats = st.tuples(st.integers(-50, 50), st.integers(1, 20), st.integers(1, 30)).map(
    lambda t: FloatDistribution(t[0] / 8, t[0] / 8 + t[1] / 8 * t[2], step=t[1] / 8)
)
integers = st.tuples(st.integers(-50, 50), st.integers(1, 9), st.integers(1, 30)).map(
    lambda t: IntDistribution(t[0], t[0] + t[1] * t[2], step=t[1])
)
log_integers = st.tuples(st.integers(1, 20), st.integers(1, 500)).map(
    lambda t: IntDistribution(t[0], t[0] + t[1], log=True)
)
choices = st.one_of(
    st.lists(st.text(max_size=5), min_size=2, max_size=6, unique=True),
    st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True),
    st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True).map(sorted),
    st.just([None, "a", 3.5]),
).map(CategoricalDistribution)
distributions = st.one_of(
    linear_floats, log_floats, stepped_floats, integers, log_integers, choices
)


@given(distributions, st.integers(0, 2**32))
def test_a_drawn_value_survives_the_cube(distribution: BaseDistribution, seed: int) -> None:
    """decode(encode(value)) is the value, and its vector lies in the unit cube."""
    axis = axis_of(distribution)
    value = axis.draw(np.random.default_rng(seed))
    assert axis.contains(value)
    vectors = axis.encode([value, value])
    assert vectors.shape == (2, axis.width)
    assert np.all((vectors >= -1e-12) & (vectors <= 1 + 1e-12))
    back, _ = axis.decode(vectors)
    if isinstance(value, float):
        assert math.isclose(back, value, rel_tol=1e-9, abs_tol=1e-9)
    else:
        assert back == value
        assert type(back) is type(value)


@given(distributions, st.data())
def test_any_point_becomes_a_legal_value(distribution: BaseDistribution, data: Any) -> None:
    """Whatever a model asks for inside the cube, the parameter may hold what it becomes."""
    axis = axis_of(distribution)
    point = data.draw(st.lists(st.floats(0, 1), min_size=axis.width, max_size=axis.width))
    value = axis.decode(np.array([point]))[0]
    assert axis.contains(value)
    assert distribution._contains(distribution.to_internal_repr(value))


@given(st.one_of(stepped_floats, integers, choices))
def test_a_grid_lists_each_of_its_values_once(distribution: BaseDistribution) -> None:
    """`values` has `size` different legal values."""
    axis = axis_of(distribution)
    values = axis.values()
    assert axis.size == len(values) == len(set(values))
    assert all(axis.contains(value) for value in values)


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ((1, 2, 4, 8), 1),  # ascending numbers have an order
        ((8, 4, 2, 1), 4),  # others are told apart, no more
        (("a", "b"), 1),  # two of anything
        (("a", "b", "c"), 3),
        ((False, True), 1),
    ],
)
def test_choices_take_as_many_entries_as_they_need(options: tuple[Any, ...], width: int) -> None:
    """Only unordered choices are one-hot."""
    assert axis_of(CategoricalDistribution(options)).width == width


def test_unordered_choices_are_equally_far_apart() -> None:
    """Two different choices are at distance one, like the ends of a number."""
    axis = axis_of(CategoricalDistribution(("a", "b", "c")))
    points = axis.encode(axis.values())
    distances = [np.linalg.norm(p - q) for i, p in enumerate(points) for q in points[:i]]
    assert np.allclose(distances, 1)


@pytest.mark.parametrize(
    "value", ["3", None, True, 0, 11, 3.5], ids=["text", "none", "bool", "low", "high", "between"]
)
def test_a_number_axis_refuses_what_is_no_value_of_it(value: Any) -> None:
    """Wrong types, values out of range and values between the steps are not legal."""
    assert not axis_of(IntDistribution(1, 10)).contains(value)


def test_values_of_an_older_space_have_no_place() -> None:
    """A configuration that lacks a parameter or lies outside is placed nowhere instead of wrongly."""
    cube = Cube.of({"a": IntDistribution(1, 10), "b": CategoricalDistribution(("x", "y", "z"))})
    assert cube.vector_of({"a": 3, "b": "x", "other": 1}) is not None
    assert cube.vector_of({"a": 3}) is None
    assert cube.vector_of({"a": 30, "b": "x"}) is None
    assert cube.vector_of({"a": 3, "b": "w"}) is None
    assert encode_values({"a": "three"}, frozenset({"a"}), lambda c: np.array([c["a"] / 2])) is None


def test_a_parameter_with_one_value_has_no_axis() -> None:
    """What cannot vary is no dimension of a model."""
    cube = Cube.of({"a": IntDistribution(1, 4), "b": IntDistribution(5, 5)})
    assert (cube.width, cube.size, cube.names) == (1, 4, frozenset({"a"}))
