"""`python -m serving`: `serving.command`, on Linux.

What the command imports is looked for after that: elsewhere some of it is not there.
"""

from __future__ import annotations

import importlib
import sys

from serving import elsewhere


def main() -> int:
    """Run the command; returns the exit code."""
    told = elsewhere.told("python -m serving", sys.argv[1:], serves=True)
    if told is not None:
        sys.stderr.write(told)
        return 1
    code: int = importlib.import_module("serving.command").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
