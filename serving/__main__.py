"""Entry point of `python -m serving`: check the platform, then run `serving.app.command`.

The command is imported after the check, as some of its imports need Linux.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence

from serving.system import platform_check


def main(argv: Sequence[str] | None = None, *, program: str = "python -m serving") -> int:
    """Run the command under the name `program` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    told = platform_check.unsupported_message(program, arguments, serves=True)
    if told is not None:
        sys.stderr.write(told)
        return 1
    gc.disable()  # imported objects stay alive: collecting takes 10 % of the time
    command = importlib.import_module("serving.app.command")
    gc.enable()
    code: int = command.main(arguments, program=program)
    return code


if __name__ == "__main__":
    sys.exit(main())
