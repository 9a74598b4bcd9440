"""`tune`, and `python -m tuner`: `tuner.cli`, on Linux.

What the command imports is looked for after that: elsewhere some of it is not there.
"""

from __future__ import annotations

import importlib
import sys

from serving import elsewhere


def main() -> int:
    """Run the command; returns the exit code."""
    told = elsewhere.told("tune", sys.argv[1:])
    if told is not None:
        sys.stderr.write(told)
        return 1
    code: int = importlib.import_module("tuner.cli").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
