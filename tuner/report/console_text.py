"""Terminal lines, folded between words to the terminal's width, except commands and paths."""

from __future__ import annotations

import dataclasses
import textwrap

import rich.cells
import rich.console
import rich.text

INDENT = "    "
_BAR = " | "


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledCommand:
    """A labelled command or path, on its own line if it is too long."""

    label: str
    text: str

    def __rich_console__(
        self, _console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        """Yield one or two lines."""
        whole = f"{self.label} {self.text}"
        if options.no_wrap or rich.cells.cell_len(whole) <= options.max_width:
            yield rich.text.Text(whole)
        else:
            yield rich.text.Text(self.label.rstrip())
            yield rich.text.Text(self.text, no_wrap=True, overflow="ignore")


def show(console: rich.console.Console, answer: rich.console.RenderableType) -> None:
    """Print a result; a plain string stays as it is, since it may be a file's content."""
    is_folded = console.is_terminal and not isinstance(answer, str)
    console.print(answer, markup=False, soft_wrap=not is_folded, crop=False)


def write_line(console: rich.console.Console, text: str, *, style: str = "") -> None:
    """Print a sentence or table row, ignoring markup."""
    lines = fold(text, console.width) if console.is_terminal else [text]
    for line in lines:
        console.print(rich.text.Text(line, style=style), soft_wrap=True)


def fold(text: str, width: int) -> list[str]:
    """Fold a line to `width`, preferably before a bar, keeping longer words whole."""
    lines: list[str] = []
    for part in text.split(_BAR):
        if lines and len(lines[-1]) + len(_BAR) + len(part) <= width:
            lines[-1] += _BAR + part
            continue
        lines += textwrap.wrap(
            part,
            width,
            initial_indent=f"{INDENT}| " if lines else "",
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
