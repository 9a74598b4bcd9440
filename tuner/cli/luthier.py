"""`luthier`: `tune` and the server under a name that no other package installs.

    luthier tune ...      is `tune ...`
    luthier serve ...     is `python -m serving ...`
    luthier COMMAND ...   is `tune COMMAND ...`

Ray installs scripts named `tune` and `serve`. As in `tuner.__main__`, the platform is checked
before anything that needs Linux is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from serving import __main__ as server
from serving.system import platform_check
from tuner import __main__ as tune

PROGRAM = "luthier"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    match arguments:
        case ["serve", *more]:
            return server.main(more, program=f"{PROGRAM} serve")
        case ["tune", *more]:
            return tune.main(more, program=f"{PROGRAM} tune")
        case [] | ["--help" | "-h", *_]:
            return _print_help(arguments)
        case _:
            return tune.main(arguments, program=PROGRAM)


def _print_help(arguments: Sequence[str]) -> int:
    told = platform_check.unsupported_message(PROGRAM, arguments)
    if told is not None:
        sys.stderr.write(told)
        return 1
    cli = importlib.import_module("tuner.cli.main")
    commands = {"tune": cli.SUMMARY, "serve": "serve models", **cli.COMMANDS}
    listed = "\n".join(f"  {name:<9} {summary}" for name, summary in commands.items())
    sys.stdout.write(
        f"usage: {PROGRAM} COMMAND ...\n\ncommands ({PROGRAM} COMMAND --help):\n{listed}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
