"""YAML that stands for more than is written, or is more than anybody writes, is refused before any of it is built."""

import pathlib
import tracemalloc

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidSettings
from serving.settings.sources import read_file, resolve
from serving.system import bounded_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""A few hundred bytes that stand for gigabytes."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_what_is_written_is_read(value):
    """As PyYAML's safe loader reads it, without its aliases."""

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data):
            return True

    text = yaml.dump(value, Dumper=Plain)
    assert bounded_yaml.parse(text) == bounded_yaml.parse(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "aliases"),
        ("a: &a 1\nb: *a", "aliases"),
        ("&a [*a]", "aliases"),
        ("{<<: &a {b: 1}, c: *a}", "aliases"),
        ("[" * 33 + "]" * 33, "nested deeper than 32"),
        ("[" * 100_000, "nested deeper than 32"),
        ("{a: " * 33 + "}" * 33, "nested deeper than 32"),
        ("#" * (bounded_yaml.MAX_BYTES + 1), "larger than"),
    ],
)
def test_too_much_is_refused(text, reason):
    """With little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=reason):
            bounded_yaml.parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


def test_as_deep_as_allowed_is_read():
    """Lists and mappings in turn."""
    assert bounded_yaml.parse("[" * 32 + "1" + "]" * 32) is not None


def test_a_file_is_read_no_further_than_it_may_be(tmp_path):
    """One that is too large, and one without an end."""
    file = tmp_path / "large.yaml"
    file.write_bytes(b"#" * 1001)
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        bounded_yaml.read(file, max_bytes=1000)
    with pytest.raises(OSError, match="not a regular file"):
        bounded_yaml.read(pathlib.Path("/dev/zero"), max_bytes=1000)


@pytest.mark.parametrize("text", [BOMB, "[" * 5000, "#" * 2**21])
def test_settings_are_bounded(tmp_path, text):
    """A file, the environment: one line that says what is wrong."""
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    for read in (
        lambda: read_file(file),
        lambda: resolve(environment={"LUTHIER_BATCHING__MAX_SIZE": text}),
    ):
        with pytest.raises(InvalidSettings, match=r"aliases|nested deeper|larger than") as caught:
            read()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a: [1\nb: 2",
            "while parsing a flow sequence, expected ',' or ']', but got ':' (line 2, column 2)",
        ),
        ("a: {b", "while parsing a flow mapping, expected ',' or '}', but got '<stream end>'"),
        ("a: b: c", "mapping values are not allowed here (line 1, column 5)"),
        ("\x00", "character #x00 at position 0: special characters are not allowed"),
        ("a: 2001-99-99", "month must be in 1..12"),
    ],
)
def test_the_problem_is_one_line(text, said):
    """PyYAML's words without the drawing and without the name of a string."""
    with pytest.raises((yaml.YAMLError, ValueError)) as caught:
        yaml.safe_load(text)
    assert bounded_yaml.yaml_problem(caught.value).startswith(said)
    assert "\n" not in bounded_yaml.yaml_problem(caught.value)
    assert "unicode string" not in bounded_yaml.yaml_problem(caught.value)
