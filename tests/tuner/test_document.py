"""YAML with positions, and what is refused of it."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.document import dotted_path, read
from tuner.errors import InvalidSpace

TEXT = """\
name: toy
knobs:
  replica.count:
    range: [1,
            8]
  replica.cpu: {default: 0.5}
"""


def test_values_and_the_lines_on_which_they_stand():
    """A document is plain data, and knows the line of each key and item."""
    found = read(TEXT, "toy.yaml")

    expected = {"replica.count": {"range": [1, 8]}, "replica.cpu": {"default": 0.5}}
    assert {"name": "toy", "knobs": expected} == found.value
    assert found.lines["knobs", "replica.count", "range"] == 4
    assert found.lines["knobs", "replica.count", "range", 1] == 5
    assert found.lines["knobs", "replica.cpu", "default"] == 6


def test_an_error_has_the_file_the_key_and_the_nearest_known_line():
    """What is missing is placed on the line of what should hold it."""
    document = read(TEXT, "toy.yaml")

    error = document.error(("knobs", "replica.cpu", "type"), "missing")

    assert str(error) == "search space toy.yaml, knobs.replica.cpu.type: missing (line 6)"
    assert str(document.error((), "wrong")) == "search space toy.yaml: wrong"


def test_paths_are_written_as_people_write_them():
    """Keys are joined by dots, items are in brackets."""
    assert dotted_path(("knobs", "replica.count", "range", 0)) == "knobs.replica.count.range[0]"


@pytest.mark.parametrize(
    ("phrase", "text", "key", "part"),
    [
        ("a key twice", "a: 1\nb: 2\na: 3", "a", "given twice, on lines 1 and 3"),
        ("a key twice further in", "a:\n  - b: 1\n    b: 1", "a[0].b", "lines 2 and 3"),
        ("an anchor", "a: &x [1]\nb: *x", "", "anchors and aliases"),
        ("broken YAML", "a: [1", "", "not YAML"),
        ("a tab", "a:\n\t- 1", "", "not YAML"),
        (
            "an object of Python",
            "a: !!python/object/apply:os.system [true]",
            "a",
            "is not supported",
        ),
        ("a scalar of Python", "a: !!python/name:os.system x", "", "not YAML"),
        ("a date that is none", "a: [1, 2024-99-99]", "a[1]", "'2024-99-99' cannot be read"),
        ("a timestamp that is none", "a: !!timestamp x", "a", "'x' cannot be read"),
        ("two documents", "a: 1\n---\nb: 2", "", "not YAML"),
        ("deep nesting", "[" * 500 + "]" * 500, "", "nested deeper than 32"),
    ],
)
def test_what_would_mislead_is_refused(phrase, text, key, part):
    """What YAML lets pass in silence, or cannot read, is an error."""
    with pytest.raises(InvalidSpace, match=part) as caught:
        read(text, "toy.yaml")

    assert key == caught.value.key, phrase


@settings(deadline=None)
@given(text=st.text("ab:[]{}-&*!|> \n'\"#0", max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    """No text ends in anything but a document or an InvalidSpace."""
    with contextlib.suppress(InvalidSpace):
        assert read(text, "toy.yaml").file == "toy.yaml"


@pytest.mark.parametrize(
    ("method", "given", "part"),
    [
        ("mapping", [1], "a list, expected a mapping"),
        ("mapping", None, "nothing, expected a mapping"),
        ("items", [], r"\[\], expected a list of values"),
        ("items", {"a": 1}, "a mapping, expected a list"),
        ("text", " ", "expected a text"),
        ("text", 3, "3, expected a text"),
        ("texts", "a", "'a', expected a list of texts"),
        ("texts", ["a", 1], r"\[1\]: 1, expected a text"),
        ("truth", 1, "1, expected true or false"),
        ("whole_number", 8.0, "8.0, expected a whole number"),
        ("whole_number", True, "True, expected a whole number"),
        ("number", "1e3", "'1e3', expected a number"),
        ("number", False, "False, expected a number"),
        ("number", float("nan"), "expected a number below"),
        ("number", float("inf"), "expected a number below"),
    ],
)
def test_accessors_refuse_another_form(method, given, part):
    """What is not of the expected form is refused with what it is."""
    document = read("a: 1", "toy.yaml")

    with pytest.raises(InvalidSpace, match=part):
        getattr(document, method)(given, ("a",))


def test_accessors_give_back_what_is_of_the_expected_form():
    """What is right passes; a whole number where a number is expected becomes a float."""
    document = read("a: 1", "toy.yaml")

    assert document.mapping({"a": 1}, ()) == {"a": 1}
    assert document.items([1], ()) == [1]
    assert document.texts(["a"], ()) == ("a",)
    assert document.truth(True, ())
    assert document.whole_number(8, ()) == 8
    assert isinstance(document.number(8, ()), float)
