"""Traces of arrivals: what is read, and what is refused with its line."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import UsageError
from tuner.evaluation import open_loop


def written(folder: pathlib.Path, text: str | bytes) -> pathlib.Path:
    """A file with this text."""
    path = folder / "trace.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@given(
    seconds=st.lists(st.floats(0, 1e6), min_size=2, max_size=50, unique=True),
    ending=st.sampled_from(["\n", "\r\n", "  # seen\n", "\n\n"]),
)
def test_what_was_written_is_read(
    seconds: list[float], ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One second a line, in order; empty lines and remarks are not read."""
    ordered = sorted(seconds)
    text = "# arrivals\n" + "".join(f"{second!r}{ending}" for second in ordered)
    assert open_loop.read_trace(written(tmp_path_factory.mktemp("t"), text)) == tuple(ordered)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\n1\nsoon\n2", "line 3: 'soon' is not a time, expected seconds from 0, as 12.5"),
        ("0\nnan\n", "line 2: 'nan' is not a time"),
        ("inf\n", "line 1: 'inf' is not a time"),
        ("-1\n0\n", "line 1: '-1' is not a time"),
        ("0, 1\n", "line 1: '0, 1' is not a time"),
        ("0\n\n5\n4\n", "line 4: 4 comes after 5, expected seconds in ascending order"),
        ("", "at least two arrivals at different times, this one has 0"),
        ("3\n", "this one has 1"),
        ("3\n3\n", "at least two arrivals at different times, this one has 2"),
        (b"\xff\xfe0", "not text (byte 0), expected one second per line"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: pathlib.Path, text: str | bytes, said: str) -> None:
    """With the file, the line where there is one, and what was expected."""
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        open_loop.read_trace(path)
    assert str(caught.value).startswith(f"trace {path}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_has_a_largest_size(tmp_path: pathlib.Path) -> None:
    """The line of the first arrival too many is named; a file that is too large is not read to its end."""
    lines = "".join(f"{number}\n" for number in range(open_loop.MAX_ARRIVALS + 1))
    with pytest.raises(UsageError, match=r"line 100001: expected at most 100,000 arrivals"):
        open_loop.read_trace(written(tmp_path, lines))
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        open_loop.read_trace(written(tmp_path, b"#" * (open_loop.MAX_BYTES + 1)))


def test_a_file_that_is_not_there(tmp_path: pathlib.Path) -> None:
    """One line with the system's reason."""
    with pytest.raises(UsageError, match="No such file"):
        open_loop.read_trace(tmp_path / "none.txt")
