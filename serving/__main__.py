"""Entry point of `python -m serving`: check the platform, then run `serving.app.command`.

The command is imported after the check, as some of its imports need Linux.
"""

from __future__ import annotations

import gc
import importlib
import sys

from serving.system import platform_check


def main() -> int:
    """Run the command and return its exit code."""
    told = platform_check.unsupported_message("python -m serving", sys.argv[1:], serves=True)
    if told is not None:
        sys.stderr.write(told)
        return 1
    gc.disable()  # imported objects stay alive: collecting takes 10 % of the time
    command = importlib.import_module("serving.app.command")
    gc.enable()
    code: int = command.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
