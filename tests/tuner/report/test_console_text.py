"""Lines for a terminal: broken between words, commands never, and nothing broken in a pipe."""

import io

import pytest
import rich.console
import rich.text
from hypothesis import given
from hypothesis import strategies as st

from tuner.report import console_text

WORDS = st.lists(st.text("abc./=-", min_size=1, max_size=12), max_size=20)
ROW = "  3 initial   39.8 ms (38.1 to 41.0) | count=2 memory_mb=12 | best 39.8 ms | 3 min 49 s left"
COMMAND = "python -m serving --model linear --settings runs/a-study/best.yaml"


def console(width: int, *, is_terminal: bool) -> rich.console.Console:
    """One that writes to a text."""
    return rich.console.Console(
        file=io.StringIO(),
        width=width,
        force_terminal=is_terminal,
        color_system=None,
        highlight=False,
        soft_wrap=True,
    )


@given(words=WORDS, width=st.integers(12, 40))
def test_no_word_is_broken_and_none_is_lost(words: list[str], width: int) -> None:
    """Lines hold the words in order, and only a word that is too long by itself passes the width."""
    made = console_text.fold(" ".join(words), width)
    assert " ".join(made).split() == words
    assert all(len(line) <= width or len(line.split()) == 1 for line in made)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (100, [ROW]),
        (
            80,
            [
                "  3 initial   39.8 ms (38.1 to 41.0) | count=2 memory_mb=12 | best 39.8 ms",
                "    | 3 min 49 s left",
            ],
        ),
    ],
)
def test_a_row_is_broken_before_a_bar(width: int, expected: list[str]) -> None:
    """A figure stays beside its unit."""
    assert console_text.fold(ROW, width) == expected


@pytest.mark.parametrize(("is_terminal", "count"), [(True, 2), (False, 1)])
def test_only_a_terminal_gets_folded_lines(is_terminal: bool, count: int) -> None:
    """In a pipe a row is one line."""
    made = console(80, is_terminal=is_terminal)
    console_text.write_line(made, ROW)
    assert len(made.file.getvalue().splitlines()) == count


@pytest.mark.parametrize(
    ("width", "is_terminal", "expected"),
    [
        (80, True, ["note: five short words here", f"use  {COMMAND}"]),
        (20, True, ["note: five short", "words here", "use", COMMAND]),
        (20, False, ["note: five short words here", f"use  {COMMAND}"]),
    ],
)
def test_a_command_is_never_broken(width: int, is_terminal: bool, expected: list[str]) -> None:
    """Where it does not fit beside its label it has a line of its own."""
    made = console(width, is_terminal=is_terminal)
    note = rich.text.Text("note: five short words here")
    console_text.show(made, rich.console.Group(note, console_text.LabelledCommand("use ", COMMAND)))
    assert [line.rstrip() for line in made.file.getvalue().splitlines()] == expected


def test_a_plain_text_is_printed_as_it_is() -> None:
    """It may be the content of a file."""
    made = console(20, is_terminal=True)
    console_text.show(made, f"# {COMMAND} [x]")
    assert made.file.getvalue() == f"# {COMMAND} [x]\n"
