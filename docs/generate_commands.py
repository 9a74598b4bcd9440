"""Writes the tables of options in docs/commands.md from the parsers: `python docs/generate_commands.py`.

What stands around the tables is written by hand; a section without a table gets one at its end.
"""

from __future__ import annotations

import argparse
import pathlib
import re

from tuner.cli import main as cli_main

PAGE = pathlib.Path(__file__).with_name("commands.md")
HEAD = "| option | meaning |\n|---|---|\n"
TABLE = r"\| option \| meaning \|\n\|---\|---\|\n(?:\|.*\n?)*"
MORE = {"--engine": " ([engines.md](engines.md))"}
"""What the page of a study adds to a help text."""


def table(name: str | None) -> str:
    """The options of a command."""
    rows = []
    for action in cli_main.parser_of(name)._actions:  # noqa: SLF001 - argparse has no public name for it
        if not action.option_strings or action.dest in {"help", "version"}:
            continue
        rows.append(_row(action, MORE.get(action.option_strings[0], "") if name is None else ""))
    return HEAD + "".join(rows)


def _row(action: argparse.Action, more: str) -> str:
    metavar = f" {action.metavar}" if action.metavar else ""
    if not metavar and action.nargs != 0:
        metavar = " NAME"
    flag = f"{action.option_strings[0]}{metavar}".replace("|", "\\|")
    told = " ".join((action.help or "").replace("%%", "%").split()).replace("|", "\\|")
    unsaid = [str(choice) for choice in action.choices or () if str(choice) not in told]
    if unsaid:
        more = f" (or {', '.join(unsaid)}){more}"
    needed = " (required)" if action.required else ""
    return f"| `{flag}` | {told}{more}{needed} |\n"


def main() -> None:
    """Replace every table."""
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
