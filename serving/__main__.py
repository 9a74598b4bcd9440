"""`python -m serving`: `serving.command`, on Linux.

What the command imports is looked for after that: elsewhere some of it is not there.
"""

from __future__ import annotations

import gc
import importlib
import sys

from serving import elsewhere


def main() -> int:
    """Run the command; returns the exit code."""
    told = elsewhere.told("python -m serving", sys.argv[1:], serves=True)
    if told is not None:
        sys.stderr.write(told)
        return 1
    gc.disable()  # what is imported stays: looking through it again and again takes a tenth of the time
    command = importlib.import_module("serving.command")
    gc.enable()
    code: int = command.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
