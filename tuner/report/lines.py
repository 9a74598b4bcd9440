"""Lines for a terminal's width, broken between words alone; elsewhere a line stays as long as it is.

In: texts, rich renderables and a console. What is to be copied, a command or a path, is never
broken. Knows nothing of studies.
"""

from __future__ import annotations

import dataclasses
import textwrap

import rich.cells
import rich.console
import rich.text

INDENT = "    "
"""Before what goes on with a line."""
_BAR = " | "


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """A command or a path after its label; on a line of its own where both do not fit into one."""

    label: str
    text: str

    def __rich_console__(
        self, _console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        """One line or two."""
        whole = f"{self.label} {self.text}"
        if options.no_wrap or rich.cells.cell_len(whole) <= options.max_width:
            yield rich.text.Text(whole)
        else:
            yield rich.text.Text(self.label.rstrip())
            yield rich.text.Text(self.text, no_wrap=True, overflow="ignore")


def show(console: rich.console.Console, answer: rich.console.RenderableType) -> None:
    """An answer; a plain text is printed as it is: it may be a file's content."""
    is_folded = console.is_terminal and not isinstance(answer, str)
    console.print(answer, markup=False, soft_wrap=not is_folded, crop=False)


def say(console: rich.console.Console, text: str, *, style: str = "") -> None:
    """One sentence or one row of a table, never read as markup."""
    lines = folded(text, console.width) if console.is_terminal else [text]
    for line in lines:
        console.print(rich.text.Text(line, style=style), soft_wrap=True)


def folded(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters but for longer words, broken before a bar where there is one."""
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
