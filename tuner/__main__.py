"""`tune` and `python -m tuner`: run `tuner.cli.main`, on Linux only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from serving.system import platform_check


def main(argv: Sequence[str] | None = None, *, program: str = "tune") -> int:
    """Run the command under the name `program` and return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    told = platform_check.unsupported_message(program, arguments)
    if told is not None:
        sys.stderr.write(told)
        return 1
    code: int = importlib.import_module("tuner.cli.main").main(arguments, program=program)
    return code


if __name__ == "__main__":
    sys.exit(main())
