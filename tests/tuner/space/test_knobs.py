"""Knobs: values, places in the unit interval, and what is refused."""

import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob, KnobError, knob_info


@st.composite
def int_knobs(draw):
    """Whole-number knobs of every form."""
    is_log = draw(st.booleans())
    low = draw(st.integers(1 if is_log else -50, 50))
    high = low + draw(st.integers(0, 300))
    form = draw(st.sampled_from(["plain", "points", "grid", "step"]))
    arguments = {}
    if form == "points":
        arguments["points"] = draw(st.integers(2, 20))
    elif form == "grid":
        inner = draw(st.sets(st.integers(low, high), max_size=6))
        arguments["grid"] = tuple(sorted(inner | {low, high}))
    elif form == "step" and not is_log:
        arguments["step"] = draw(st.integers(1, 40))
    default = draw(st.sampled_from(arguments.get("grid") or (low, high, (low + high) // 2)))
    return IntKnob(
        name="toy.whole",
        low=low,
        high=high,
        default=default,
        scale="log" if is_log else "linear",
        zero=is_log and draw(st.booleans()),
        **arguments,
    )


@st.composite
def float_knobs(draw):
    """Real-number knobs of every form."""
    low = draw(st.floats(0.01, 100))
    high = low * draw(st.floats(1, 1000))
    return FloatKnob(
        name="toy.real",
        low=low,
        high=high,
        default=draw(st.sampled_from((low, high))),
        scale=draw(st.sampled_from(("linear", "log"))),
        points=draw(st.none() | st.integers(2, 20)),
    )


choice_knobs = st.builds(
    lambda choices: ChoiceKnob(name="toy.text", default=choices[0], choices=tuple(choices)),
    st.lists(st.text("abc", min_size=1), min_size=1, max_size=5, unique=True),
)
knobs = st.one_of(int_knobs(), float_knobs(), choice_knobs)


@settings(deadline=None, max_examples=50)
@given(knob=knobs)
def test_every_value_has_a_place_in_the_unit_interval(knob):
    """Places lie in [0, 1], and two values share one only where all do."""
    places = [knob.to_unit(value) for value in knob.values()]

    assert all(0.0 <= u <= 1.0 for u in places)
    assert len(set(places)) in {1, len(places)}


@settings(deadline=None, max_examples=50)
@given(knob=st.one_of(int_knobs(), float_knobs()))
def test_places_keep_the_order_of_numbers(knob):
    """A larger value lies further up, and values of a grid lie apart."""
    places = [knob.to_unit(value) for value in knob.values()]

    assert all(a < b or knob.low == knob.high for a, b in itertools.pairwise(places))


@settings(deadline=None, max_examples=50)
@given(knob=knobs)
def test_the_grid_holds_the_default_and_nothing_out_of_range(knob):
    """The default configuration is a cell, and every value passes the knob's own check."""
    assert knob.default in knob.values()
    assert len(set(knob.values())) == len(knob.values())
    for value in knob.values():
        knob.check(value)


@settings(deadline=None, max_examples=50)
@given(knob=knobs)
def test_knobs_pickle(knob):
    """A knob crosses a process boundary as an equal knob."""
    assert knob == pickle.loads(pickle.dumps(knob))


def test_zero_lies_one_step_below_a_log_range():
    """0 beside a log range takes the place of one more value below it."""
    knob = IntKnob(name="wait", low=100, high=10_000, grid=(100, 1000, 10_000), default=0,
                   scale="log", zero=True)  # fmt: skip

    assert knob.values() == (0, 100, 1000, 10_000)
    assert pytest.approx([knob.to_unit(value) for value in knob.values()]) == [0, 1 / 3, 2 / 3, 1]


def test_off_the_grid_is_allowed_within_the_range():
    """A value that a person set, between two of the grid, has its place as well."""
    knob = IntKnob(name="size", low=1, high=64, points=7, default=8, scale="log")

    assert knob.to_unit(8) < knob.to_unit(12) < knob.to_unit(16)


def test_only_keeps_some_values_and_moves_the_default_to_the_nearest():
    """A cut knob has the kept values; its default is the nearest of them."""
    knob = FloatKnob(name="cpu", low=0.5, high=4.0, grid=(0.5, 1.0, 2.0, 4.0), default=4.0)

    cut = knob.only(lambda value: value <= 2)

    assert cut is not None
    assert (cut.values(), cut.default) == ((0.5, 1.0, 2.0), 2.0)
    assert knob.only(lambda value: value < 0.1) is None


def test_only_drops_the_zero_that_is_not_kept():
    """A 0 beside a log range goes like any other value, and does not stand alone."""
    knob = IntKnob(name="wait", low=100, high=1000, points=2, default=0, scale="log", zero=True)

    cut = knob.only(lambda value: value > 0)

    assert cut is not None
    assert (cut.values(), cut.default) == ((100, 1000), 100)
    assert knob.only(lambda value: value == 0) is None


def test_information_for_reports():
    """A report gets name, unit, scale, grid and default."""
    number = IntKnob(name="size", low=1, high=4, default=2, unit="items", scale="log", points=3)
    choice = ChoiceKnob(name="way", choices=("a", "b"), default="b")

    assert (
        knob_info(number).name, knob_info(number).unit, knob_info(number).scale, knob_info(number).values,
        knob_info(number).default,
    ) == ("size", "items", "log", (1, 2, 4), 2)  # fmt: skip
    assert (knob_info(choice).scale, knob_info(choice).values) == ("linear", ("a", "b"))


def test_a_device_knob_takes_evenly_from_what_is_offered():
    """Ends are kept, the highest is the default, doubles count once."""
    knob = DeviceKnob(name="accelerator.clock_mhz", unit="MHz", points=3)

    found = knob.on((900, 100, 500, 100, 700, 300))

    assert found is not None
    assert (found.values(), found.default, found.unit) == ((100, 500, 900), 900, "MHz")
    assert knob.on((900,)) is None
    assert DeviceKnob(name="clock", points=8).on((100, 900)).values() == (100, 900)


WRONG = [
    ("ends in the wrong order", "range", lambda: IntKnob(name="k", low=4, high=1, default=2)),
    ("a float for a whole number", "range", lambda: IntKnob(name="k", low=1.5, high=4, default=2)),
    ("a truth value for a number", "range", lambda: IntKnob(name="k", low=True, high=4, default=2)),
    ("infinity", "range", lambda: FloatKnob(name="k", low=1.0, high=float("inf"), default=2.0)),
    ("a log range from 0", "range",
     lambda: IntKnob(name="k", low=0, high=4, default=2, scale="log")),
    ("an unknown scale", "scale", lambda: IntKnob(name="k", low=1, high=4, default=2, scale="x")),
    ("zero on a linear scale", "zero", lambda: IntKnob(name="k", low=1, high=4, default=2, zero=True)),
    ("a default out of range", "default", lambda: IntKnob(name="k", low=1, high=4, default=5)),
    ("a default of the wrong type", "default", lambda: IntKnob(name="k", low=1, high=4, default="2")),
    ("a default that is no choice", "default",
     lambda: IntKnob(name="k", low=1, high=4, grid=(1, 4), default=2)),
    ("a default of 0 that is no choice", "default",
     lambda: FloatKnob(name="k", low=-1.0, high=1.0, grid=(-1.0, 1.0), default=0.0)),
    ("step and points", "points", lambda: IntKnob(name="k", low=1, high=4, default=2, step=1, points=2)),
    ("choices and step", "step",
     lambda: IntKnob(name="k", low=1, high=4, default=1, step=1, grid=(1, 4))),
    ("a step on a log scale", "step",
     lambda: IntKnob(name="k", low=1, high=4, default=2, step=1, scale="log")),
    ("a step of 0", "step", lambda: IntKnob(name="k", low=1, high=4, default=2, step=0)),
    ("one point", "points", lambda: IntKnob(name="k", low=1, high=4, default=2, points=1)),
    ("too many values", "range", lambda: IntKnob(name="k", low=1, high=4000, default=2)),
    ("descending choices", "choices",
     lambda: IntKnob(name="k", low=1, high=4, grid=(1, 3, 2, 4), default=1)),
    ("choices that do not span the range", "choices",
     lambda: IntKnob(name="k", low=1, high=5, grid=(1, 4), default=1)),
    ("no choices", "choices", lambda: ChoiceKnob(name="k", choices=(), default="a")),
    ("a choice twice", "choices", lambda: ChoiceKnob(name="k", choices=("a", "a"), default="a")),
    ("a default that is not a choice", "default", lambda: ChoiceKnob(name="k", choices=("a",), default="b")),
    ("one point of a device", "points", lambda: DeviceKnob(name="k", points=1)),
]  # fmt: skip


@pytest.mark.parametrize(("phrase", "field", "make"), WRONG, ids=[row[0] for row in WRONG])
def test_a_knob_that_contradicts_itself_names_the_field(phrase, field, make):
    """What is wrong is refused with the field that is wrong, and the error pickles."""
    with pytest.raises(KnobError) as caught:
        make()

    assert field == caught.value.field
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (IntKnob(name="k", low=1, high=4, default=2), 5),
        (IntKnob(name="k", low=1, high=4, default=2), 2.0),
        (IntKnob(name="k", low=1, high=4, default=2), True),
        (FloatKnob(name="k", low=1.0, high=4.0, default=2.0), float("nan")),
        (FloatKnob(name="k", low=1.0, high=4.0, default=2.0), "2"),
        (ChoiceKnob(name="k", choices=("a",), default="a"), "b"),
        (ChoiceKnob(name="k", choices=(True, False), default=True), 1),
    ],
)
def test_check_refuses_what_the_knob_cannot_hold(knob, value):
    """The text says what was given and what is allowed."""
    with pytest.raises(ValueError, match=r"k = .*, expected "):
        knob.check(value)
