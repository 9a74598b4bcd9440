"""Write the option tables of docs/commands.md from the parsers: `python docs/generate_commands.py`.

The text around the tables is written by hand; a section without a table gets one at its end.
"""

from __future__ import annotations

import argparse
import pathlib
import re
from collections.abc import Iterator

from tuner.cli import main as cli_main

PAGE = pathlib.Path(__file__).with_name("commands.md")
HEAD = "| option | meaning |\n|---|---|\n"
SHARED = "Also, as in [a study](#a-study):"
_ALSO = rf"{re.escape(SHARED)} .*\n"
TABLE = rf"(?:{re.escape(HEAD)}(?:\|.*\n?)+(?:\n{_ALSO})?|{_ALSO})"
MORE = {"--engine": " ([engines.md](engines.md))"}
"""Links that the page adds to a help text."""


def table(name: str | None) -> str:
    """Return the options of a command; those of a study are only named elsewhere."""
    known = {} if name is None else {flag: row for flag, _, row in _rows(None)}
    rows, shared = [], []
    for flag, is_needed, row in _rows(name):
        if known.get(flag) == row and not is_needed:
            shared.append(f"`{flag}`")
        else:
            rows.append(row)
    also = f"\n{SHARED} {', '.join(shared)}.\n" if shared else ""
    return (HEAD + "".join(rows) if rows else "") + (also if rows else also.lstrip())


def _rows(name: str | None) -> Iterator[tuple[str, bool, str]]:
    for action in cli_main.parser_of(name)._actions:  # noqa: SLF001 - argparse has no public name for it
        if action.option_strings and action.dest not in {"help", "version"}:
            more = MORE.get(action.option_strings[0], "")
            yield action.option_strings[0], action.required, _row(action, more)


def _row(action: argparse.Action, more: str) -> str:
    metavar = f" {action.metavar}" if action.metavar else ""
    if not metavar and action.nargs != 0:
        metavar = " NAME"
    flag = f"{action.option_strings[0]}{metavar}".replace("|", "\\|")
    text = " ".join((action.help or "").replace("%%", "%").split()).replace("|", "\\|")
    missing = [str(choice) for choice in action.choices or () if str(choice) not in text]
    if missing:
        more = f" (or {', '.join(missing)}){more}"
    needed = " (required)" if action.required else ""
    return f"| `{flag}` | {text}{more}{needed} |\n"


def main() -> None:
    """Replace all tables."""
    first, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    made = [first]
    for section in sections:
        title = section.partition("\n")[0]
        name = None if title == "A study" else title.removeprefix("tune ")
        if name is not None and name not in cli_main.COMMANDS:
            made.append(section)
            continue
        new = table(name)
        parts = re.split(TABLE, section, maxsplit=1)
        made.append(new.join(parts) if len(parts) > 1 else f"{section.rstrip()}\n\n{new}")
    PAGE.write_text("\n## ".join(made), encoding="utf-8")


if __name__ == "__main__":
    main()
