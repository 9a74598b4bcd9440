"""`tune`, and `python -m tuner`: `tuner.cli.main`, on Linux.

What the command imports is looked for after that: elsewhere some of it is not there.
"""

from __future__ import annotations

import importlib
import sys

from serving.system import platform_check


def main() -> int:
    """Run the command; returns the exit code."""
    told = platform_check.unsupported_message("tune", sys.argv[1:])
    if told is not None:
        sys.stderr.write(told)
        return 1
    code: int = importlib.import_module("tuner.cli.main").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
