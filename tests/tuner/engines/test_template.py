"""Places in texts, and braces that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines import template
from tuner.values.configuration import Configuration

VALUES = {"batching.max_size": "8", "port": "8000"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--batch={batching.max_size}", "--batch=8"),
        ("{port}{port}", "80008000"),
        ("max_batch_size: {batching.max_size}\ninput [ { dims: [ 3 ] } ]", None),
        ('{"size": {batching.max_size}}', '{"size": 8}'),
        ("{{port}}", "{port}"),
        ("{other}", "{other}"),
        ("{}", "{}"),
        ("{ port }", "{ port }"),
    ],
)
def test_only_names_in_braces_are_places(text: str, expected: str | None) -> None:
    """Braces around anything else stay what they are; doubled ones stand for themselves."""
    expected = text.replace("{batching.max_size}", "8") if expected is None else expected
    assert template.fill(text, VALUES) == expected


def test_names_come_once_and_in_order() -> None:
    """Over all texts, without those that stand for themselves."""
    assert template.names(["{b} {a.b}", "{b} {{c}} {port.grpc}"]) == ("b", "a.b", "port.grpc")


@given(st.text())
def test_a_text_without_braces_is_itself(text: str) -> None:
    """Nothing is put where there is no place."""
    plain = text.replace("{", "").replace("}", "")
    assert template.fill(plain, VALUES) == plain
    assert template.names([plain]) == ()


def test_values_are_written_as_programs_read_them() -> None:
    """Truths in small letters; numbers and texts as they are."""
    found = template.of_knobs(Configuration({"a": True, "b": 0.5, "c": 3, "d": "lru"}))
    assert found == {"a": "true", "b": "0.5", "c": "3", "d": "lru"}
