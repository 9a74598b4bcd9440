"""Entry point of `python -m serving`: check the platform, then run `serving.app.command`.

The command is imported after the check, as some of its imports need Linux.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence

from serving.system import platform_check


def main(argv: Sequence[str] | None = None, *, program: str = "python -m serving") -> int:
    """Run the command under the name `program` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    told = platform_check.unsupported_message(program, arguments, serves=True)
    if told is not None:
        sys.stderr.write(told)
        return 1
    gc.disable()  # imported objects stay alive: collecting takes 10 % of the time
    with _without_certificates():
        command = importlib.import_module("serving.app.command")
    gc.enable()
    code: int = command.main(arguments, program=program)
    return code


@contextlib.contextmanager
def _without_certificates() -> Iterator[None]:
    """Keep the import of aiohttp from reading all certificates of the system, two times, for its client.

    The server uses that client nowhere, and reading them takes a tenth of a second.
    """
    given = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = os.devnull
    try:
        yield
    finally:
        del os.environ["SSL_CERT_FILE"]
        if given is not None:
            os.environ["SSL_CERT_FILE"] = given


if __name__ == "__main__":
    sys.exit(main())
